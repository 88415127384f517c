import broken_methods
import pytest
from broken_methods import BROKEN, Pull

from cafedcl.extend import FedAvg
from cafedcl.testing import CHECKS, ConformanceError, check_method


def test_a_method_of_ones_own_conforms() -> None:
    check_method(Pull)
    check_method(Pull, {"method.mu": 0.5})
    check_method("broken_methods:Pull", only="rounds")


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: method.__name__)
def test_a_method_that_breaks_a_rule_is_told_which(method: type[FedAvg]) -> None:
    check, reason = BROKEN[method]
    with pytest.raises(ConformanceError) as told:
        check_method(method, only=check)
    assert reason in str(told.value)
    assert str(told.value).startswith(f"method 'broken_methods:{method.__name__}': ")


def test_every_check_but_the_wire_is_seen_to_fail() -> None:
    assert {check for check, _ in BROKEN.values()} == CHECKS.keys() - {"wire"}
    assert {getattr(broken_methods, method.__name__) for method in BROKEN} == set(BROKEN)


def test_a_reply_that_changes_on_its_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from cafedcl.testing import checks

    def rounded(tensors: object, header: object) -> tuple[object, object]:
        assert isinstance(tensors, dict)
        return {n: v.round() if v.is_floating_point() else v for n, v in tensors.items()}, header

    monkeypatch.setattr(checks, "pack", rounded)
    monkeypatch.setattr(checks, "unpack", lambda packed: packed)
    with pytest.raises(ConformanceError, match="of its reply changes on the way"):
        check_method("fedavg", only="wire")
