import pytest
from site_generator.markdown import plain, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$CAFEDCL_DATA", r"\$CAFEDCL\_DATA"),
        ("see `cafedcl_run` and *this*", r"see `cafedcl_run` and \*this\*"),
        ("``a|b`` or [c]", r"``a|b`` or \[c\]"),
        ("1 < 2", r"1 \< 2"),
    ],
)
def test_only_code_between_backticks_is_markup(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    lines = table(["a", "b"], [["`x | y`", r"1 \| 2"]]).splitlines()
    assert lines[2] == r"| `x \| y` | 1 \| 2 |"
