"""What is read of `--grid`, `--choice` and `--range`."""

import pytest

from cafedcl.compare.swept_values import parse_ranges, parse_values
from cafedcl.core.errors import CafedclError


def test_values_may_be_words_numbers_and_lists() -> None:
    assert parse_values(["method.gamma = 0.2, 0.6"], "--grid") == {"method.gamma": [0.2, 0.6]}
    assert parse_values(["a.b=1,x,true,[1,2]"], "--grid") == {"a.b": [1, "x", True, [1, 2]]}


@pytest.mark.parametrize("text", ["lr=1,2", "train.lr", "train.lr=", "train.=3", ".lr=3"])
def test_values_that_cannot_be_read_are_one_line(text: str) -> None:
    with pytest.raises(CafedclError, match=r"section\.key=value,value is expected"):
        parse_values([text], "--grid")


@pytest.mark.parametrize("texts", [["train.lr=1,1"], ["train.lr=1", "train.lr=2"]])
def test_the_same_value_or_option_twice_is_one_line(texts: list[str]) -> None:
    with pytest.raises(CafedclError, match="given twice"):
        parse_values(texts, "--grid")


def test_ranges_are_read() -> None:
    assert parse_ranges(["train.lr = 0.1..0.5:log"]) == {"train.lr": "0.1..0.5:log"}


@pytest.mark.parametrize("texts", [["lr=0..1"], ["train.lr"]])
def test_ranges_that_cannot_be_read_are_one_line(texts: list[str]) -> None:
    with pytest.raises(CafedclError, match=r"section\.key=low\.\.high"):
        parse_ranges(texts)


def test_the_same_range_twice_is_one_line() -> None:
    with pytest.raises(CafedclError, match="given twice"):
        parse_ranges(["train.lr=0..1", "train.lr=0..2"])
