import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cafedcl.deploy.flower.records import OWN, SHARED, unwrap, wrap

PARTS = {SHARED: b"weights" * 1000, OWN: b""}


def test_parts_come_out_as_they_went_in():
    assert unwrap(wrap(PARTS)) == PARTS


def test_equal_parts_are_one_object_to_flower():
    """So what is the same for every site travels once to the SuperLink."""
    one = wrap(PARTS)
    other = wrap({SHARED: PARTS[SHARED], OWN: b"another"})
    assert one[SHARED].object_id == other[SHARED].object_id
    assert one[OWN].object_id != other[OWN].object_id


def test_what_is_too_large_is_refused_before_it_is_decoded():
    assert unwrap(wrap(PARTS), 7000) == PARTS
    with pytest.raises(ValueError, match="7000 bytes, more than the limit of 6999"):
        unwrap(wrap(PARTS), 6999)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"a": ConfigRecord({"packed": b"x"})}),
        RecordDict({"a": ArrayRecord({"other": Array("uint8", (1,), "cafedcl.packed", b"x")})}),
        RecordDict({"a": ArrayRecord({"packed": Array("uint8", (1,), "numpy.ndarray", b"x")})}),
        RecordDict({"a": ArrayRecord({})}),
    ],
)
def test_anything_else_is_refused(content):
    with pytest.raises(ValueError, match="packed"):
        unwrap(content)
