from typing import Any

import pytest

from cafedcl.config.flags import base_of, set_flags


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ({"name": "fedprox", "mu": 0.1}, "moon", {"name": "moon"}),
        ({"name": "fedprox", "mu": 0.1}, "fedprox", {"name": "fedprox", "mu": 0.1}),
        ({"name": "fedprox", "mu": 0.1}, "fedprox+gan", {"name": "fedprox+gan", "mu": 0.1}),
        ({"name": "cafedcl", "tau": 0.2}, "cafedcl:best", {"name": "cafedcl:best", "tau": 0.2}),
        ({"mu": 0.1}, "fedprox", {"name": "fedprox", "mu": 0.1}),
        ({"name": "mine:A", "mu": 0.1}, "mine:B", {"name": "mine:B"}),
        ({"name": "mine:A", "mu": 0.1}, "mine:A:fast", {"name": "mine:A:fast", "mu": 0.1}),
        ({}, "moon", {"name": "moon"}),
    ],
)
def test_options_of_another_method_go_with_it(
    before: dict[str, Any], asked: str, after: dict[str, Any]
) -> None:
    tables: dict[str, Any] = {"method": before}
    set_flags(tables, {"method": asked})
    assert tables == {"method": after}


def test_the_name_of_a_method_without_its_preset_and_its_tail() -> None:
    names = ("fedavg", "cafedcl:best", "fedproto+gan", "cafedcl:best+gan")
    assert [base_of(name) for name in names] == ["fedavg", "cafedcl", "fedproto", "cafedcl"]
