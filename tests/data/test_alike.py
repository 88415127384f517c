"""Classes that may be one, although their names differ."""

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.data.alike import alike_classes, refuse_similar

EVERYONE = {"North", "South", "West"}


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        (
            {"Benign": {"South"}, "benign": {"North", "West"}},
            "'Benign' (South) and 'benign' (North",
        ),
        ({"A": set(), "a": set()}, "the classes 'A' and 'a' count as two"),
        ({"bening": {"West"}, "benign": {"North"}}, "'benign' (North) and 'bening' (West)"),
        ({"melanoma": {"a", "b", "c", "d"}, "melanomas": {"e"}}, "(a, b, c, …) and"),
    ],
)
def test_names_of_what_may_be_one_class(holders: dict[str, set[str]], expected: str) -> None:
    (remark,) = alike_classes("photos", holders)
    assert remark.startswith("photos: the classes ")
    assert expected in remark
    assert remark.endswith("count as two; name them alike if they are one")


@pytest.mark.parametrize(
    "holders",
    [
        {"typical": EVERYONE, "atypical": EVERYONE},
        {"typical": {"North"}, "atypical": {"North", "South"}},
        {"typical": set(), "atypical": set()},
        {"grade 1": {"North"}, "grade 2": {"South"}},
        {"normal": {"North"}, "abnormal": {"South"}},
        {"male": {"North"}, "female": {"South"}},
        {"cat": {"North"}, "car": {"South"}},
        {"melanoma": {"North"}, "naevus": {"South"}},
    ],
)
def test_names_of_two_classes(holders: dict[str, set[str]]) -> None:
    assert not alike_classes("photos", holders)


def test_many_classes_are_not_compared_in_pairs() -> None:
    holders = {
        f"{letter}{'x' * 40}{number}": {str(number)} for number in range(9) for letter in "ab"
    }
    many = holders | {f"class {number:05d}": {"North"} for number in range(50_000)}
    assert not alike_classes("photos", many)
    assert alike_classes("photos", many | {"CLASS 00001": {"South"}})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["01", "1"], "leading zeros or decimals"),
        (["1 ", "1"], "case or blanks"),
        (["North", "north"], "case or blanks"),
    ],
)
def test_in_what_the_names_of_two_clients_differ(names: list[str], words: str) -> None:
    with pytest.raises(CafedclError, match=f"differ only by {words}; rename"):
        refuse_similar("list.csv", "client", names)
