import pytest

from cafedcl.core.sizes import power_of_two


@pytest.mark.parametrize(
    ("number", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)]
)
def test_the_next_power_of_two(number: int, expected: int) -> None:
    assert power_of_two(number) == expected
