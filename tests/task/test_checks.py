"""What a method describes of its weights."""

from collections.abc import Callable

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.federation.rounds import Federation
from cafedcl.methods.fedavg import FedAvg


def test_a_method_whose_personal_weights_do_not_exist_says_so(
    tiny: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "personal", r"hed\..*")
    said = "personal = 'hed\\..*' matches no weight of this model, so all are averaged"
    (notice,) = [it for it in tiny("fedavg").notices if said in it]
    assert notice.endswith("the names begin with encoder., or are head.weight, head.bias")
    monkeypatch.setattr(FedAvg, "personal", r"head\..*")
    assert not any("personal" in notice for notice in tiny("fedavg").notices)


def test_personal_weights_that_nobody_can_read_are_one_line(
    tiny: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "personal", r"head(.*")
    with pytest.raises(CafedclError, match=r"personal = 'head\(\.\*' is not a regular expression"):
        tiny("fedavg")
