import pytest

from cafedcl.core.client_names import client_number, client_title
from cafedcl.core.errors import CafedclError

NAMES = ("North", "South\x1b[31m", "7")


def test_a_client_has_its_name_or_its_number():
    assert client_title(NAMES, 0) == "North"
    assert client_title((), 2) == "client 2"
    assert client_title(NAMES, 9) == "client 9"
    assert "\x1b" not in client_title(NAMES, 1)


@pytest.mark.parametrize(("wanted", "number"), [("North", 0), ("7", 2), (1, 1), ("0", 0)])
def test_a_client_is_found_by_name_or_number(wanted, number):
    assert client_number(NAMES, 3, wanted) == number


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (NAMES, "Nort", "client Nort: there is no such client; did you mean 'North'"),
        ((), "North", "client North: there is no such client; they are numbered 0 to 2"),
        ((), -1, "client -1: there is no such client; they are numbered 0 to 2"),
        ((), "3", "numbered 0 to 2"),
    ],
)
def test_an_unknown_client_is_refused(names, wanted, words):
    with pytest.raises(CafedclError, match=words):
        client_number(names, 3, wanted)
