import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.core.digests import checked_header
from cafedcl.core.tensors import (
    floats,
    map_file,
    nbytes,
    pack,
    pack_with_digest,
    prefixed,
    spaced_rows,
    under,
    unpack,
    unpack_checked,
)

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
]
NAMES = st.text(max_size=12).filter(lambda name: name != "__metadata__")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from([*DTYPES, torch.bool]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


EXAMPLE = {
    "model/weight": torch.arange(6.0).view(2, 3),
    "known": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
    "round": torch.tensor(3),
}


@given(
    st.dictionaries(NAMES, tensors(), max_size=5),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)
@settings(max_examples=100)
def test_tensors_and_header_come_back_as_they_went(content, header):
    back, back_header = unpack(pack(content, header))
    assert back_header == header
    assert back.keys() == content.keys()
    for name, value in content.items():
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape
        assert torch.equal(back[name], value)


def test_nan_inf_and_negative_zero_come_back_bit_for_bit():
    value = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    back, _ = unpack(pack({"x": value}, {}))
    assert torch.equal(back["x"].view(torch.int32), value.view(torch.int32))


def test_transposed_and_trainable_tensors_can_be_packed():
    value = torch.arange(6.0).view(2, 3).requires_grad_()
    back, _ = unpack(pack({"x": value.T}, {}))
    assert back["x"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_one_tensor_may_go_under_two_names():
    value = torch.arange(3.0)
    back, _ = unpack(pack({"notes/x": value, "up/x": value}, {}))
    assert torch.equal(back["notes/x"], value)
    assert torch.equal(back["up/x"], value)


def test_bytes_cut_short_anywhere_are_refused():
    data = pack(EXAMPLE, {"round": 3})
    for length in range(len(data)):
        with pytest.raises(ValueError, match="whole"):
            unpack(data[:length])


def test_bytes_with_something_behind_them_are_refused():
    with pytest.raises(ValueError, match="whole"):
        unpack(pack(EXAMPLE, {}) + b"\0")


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_garbage_is_refused(data):
    with pytest.raises(ValueError, match="whole"):
        unpack(data)


@given(
    JSON | st.fixed_dictionaries({"__metadata__": JSON | st.fixed_dictionaries({"header": JSON})}),
    st.binary(),
)
@settings(max_examples=200)
def test_garbage_behind_a_plausible_header_is_refused(header, rest):
    text = json.dumps(header).encode()
    with pytest.raises(ValueError, match="whole"):
        unpack(len(text).to_bytes(8, "little") + text + rest + b"x")


def test_a_header_nested_too_deeply_is_refused():
    text = b"[" * 200_000
    with pytest.raises(ValueError, match="whole"):
        unpack(len(text).to_bytes(8, "little") + text)


@given(st.dictionaries(NAMES, tensors(), max_size=5))
@settings(max_examples=50)
def test_sizes_are_counted_by_hand(content):
    sizes = {torch.float64: 8, torch.int64: 8, torch.float32: 4, torch.uint8: 1, torch.bool: 1}
    assert nbytes(content) == sum(
        len(v.flatten().tolist()) * sizes.get(v.dtype, 2) for v in content.values()
    )
    real = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    assert floats(content) == sum(
        len(v.flatten().tolist()) for v in content.values() if v.dtype in real
    )


def test_sizes_of_the_example():
    assert nbytes(EXAMPLE) == 6 * 4 + 2 + 0 + 8
    assert floats(EXAMPLE) == 6


@given(st.text(max_size=5), st.dictionaries(NAMES, tensors(), max_size=3))
@settings(max_examples=30)
def test_a_prefix_put_on_comes_off(prefix, content):
    back = under(prefix, prefixed(prefix, content))
    assert back.keys() == content.keys()
    assert all(back[name] is content[name] for name in content)


def test_under_leaves_other_entries_out():
    assert under(
        "model/", {"model/a": torch.ones(1), "anchors/a": torch.zeros(1), "mode": torch.ones(1)}
    ).keys() == {"a"}


def test_a_file_is_read_as_it_was_packed(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(pack(EXAMPLE, {"names": ["a"]}))
    back, header = map_file(path)
    assert header == {"names": ["a"]}
    assert back.keys() == EXAMPLE.keys()
    assert all(torch.equal(back[name], value) for name, value in EXAMPLE.items())


def test_rows_are_spaced_evenly():
    assert spaced_rows(3, 5).tolist() == [0, 1, 2]
    rows = spaced_rows(10_000, 11)
    assert (rows[0], rows[-1]) == (0, 9999)
    gaps = rows.diff()
    assert gaps.max() - gaps.min() <= 1


@given(
    st.dictionaries(NAMES, tensors(), min_size=1, max_size=3),
    st.dictionaries(st.text(max_size=5), JSON, max_size=2),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_file_with_a_digest_is_read_as_it_was_written_or_not_at_all(tensors, header, data):
    header.pop("digest", None)
    content = pack_with_digest(tensors, header)
    read, told = unpack_checked(content)
    assert told == header
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    spoilt = bytearray(content)
    bit = data.draw(st.integers(0, 8 * len(spoilt) - 1))
    spoilt[bit // 8] ^= 1 << bit % 8
    try:
        again, still = unpack_checked(bytes(spoilt))
    except ValueError:
        return
    # The bit was one that says nothing, such as in the name of the entry with the digest.
    assert still == header or b"digest" not in spoilt
    assert all(torch.equal(again[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.int8, torch.float8_e5m2])
def test_a_digest_is_checked_without_pytorch(dtype):
    values = {**EXAMPLE, "more": torch.ones(3).to(dtype)}
    content = pack_with_digest(values, {"round": 3, "names": ["a", "ü"]})
    assert checked_header(content) == {"round": 3, "names": ["a", "ü"]}
    with pytest.raises(ValueError, match="does not match its digest"):
        checked_header(content[:-1] + bytes([content[-1] ^ 1]))
    assert checked_header(pack(values, {"round": 3})) == {"round": 3}


@given(st.binary(max_size=200) | JSON.map(lambda value: packed_json(value)))
@settings(max_examples=80, deadline=None)
def test_what_is_no_packed_file_has_no_header(content):
    try:
        found = checked_header(content)
    except ValueError:
        return
    assert found is None


def packed_json(value):
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text
