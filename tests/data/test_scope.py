import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.data.scope import refuse_other_tasks


@pytest.mark.parametrize(
    "labels",
    [
        ["['a']", "b"],
        ["[1, 2]", "3"],
        ["(a, b)", "c"],
        ["{a;b}", "c"],
        ["()", "c"],
        ['["a"]', "b"],
        ["Effusion|Mass", "Mass"],
        ["a,b", "b"],
    ],
)
def test_several_labels_per_image_are_refused(labels: list[str]) -> None:
    with pytest.raises(CafedclError, match="is a list; in scope is single-label"):
        refuse_other_tasks("table.csv", labels)


@pytest.mark.parametrize(
    "labels",
    [
        ["[/]", "(benign)", "{x}", "[red]a"],
        ["squamous, moderate", "basal"],
        ["(1)", "(2)"],
        ["0.5", "1.0", "1.5"] * 4,
        ["nan", "inf", "0.5"],
    ],
)
def test_names_in_brackets_or_with_commas_are_classes(labels: list[str]) -> None:
    refuse_other_tasks("table.csv", labels)


def test_measured_values_are_refused() -> None:
    with pytest.raises(CafedclError, match="the labels are 30 numbers such as"):
        refuse_other_tasks("table.csv", [f"{0.1 * value + 0.05:.2f}" for value in range(30)])
