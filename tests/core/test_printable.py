import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.core.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe, 皮膚, ±\tand\nmore", "größe, 皮膚, ±\tand\nmore"),
        ("\x1b[31mred\x1b[0m", "\u241b[31mred\u241b[0m"),
        ("\x1b]0;title\x07", "\u241b]0;title\u2407"),
        ("over\rwritten", "over\u240dwritten"),
        ("\x00\x7f", "\u2400\u2421"),
        ("\x9b31m", "\ufffd31m"),
        ("exe\u202egnp", "exe\ufffdgnp"),
        ("\udcff", "\ufffd"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    shown.encode()


def test_the_message_of_an_error_is_one_printable_line() -> None:
    assert str(CafedclError("a\x1b[2J\r\n  b")) == "a\u241b[2J b"
