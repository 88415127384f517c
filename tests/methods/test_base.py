"""What is said of a method of one's own whose steps return something else than they should."""

import pytest
import torch

from cafedcl.core.errors import CafedclError, in_words
from cafedcl.methods.fedavg import FedAvg


def reasons(federation):
    with federation:
        return {failure["reason"] for failure in federation.step().failed}


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (torch.ones(()), "its loss returns Tensor; terms by name are expected"),
        (None, "its loss returns NoneType; terms by name"),
        ({}, "its loss returns dict; terms by name"),
        ({"ce": torch.ones(3)}, "the term 'ce' of its loss has shape (3,); one number"),
        ({"ce": 1.0}, "the term 'ce' of its loss has no tensor; one number"),
    ],
    ids=["tensor", "None", "nothing", "vector", "float"],
)
def test_a_loss_that_is_no_terms_by_name(returned, words, engine, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "loss", lambda *_: returned)
    (reason,) = reasons(tiny("fedavg", engine__name=engine, engine__workers=1))
    assert reason.startswith(f"method fedavg: {words}")


def test_a_summary_without_notes(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "summarize", lambda *_: {"a": torch.zeros(3)})
    (reason,) = reasons(tiny("fedavg", engine__name="reference"))
    assert reason.startswith("method fedavg: its summarize returns dict; two dicts")


def test_weights_that_are_too_few(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "weigh", lambda _, ups: torch.ones(len(ups) - 1))
    with pytest.raises(CafedclError, match=r"its weigh returns \d weights for \d replies; one for"):
        reasons(tiny("fedavg"))


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (0.0, "its weigh returns 0 for every reply"),
        (-1.0, "its weigh returns -1; numbers from 0 on are expected"),
    ],
)
def test_weights_that_cannot_be_averaged_with(weight, words, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "weigh", lambda _, ups: torch.full((len(ups),), weight))
    with pytest.raises(CafedclError, match=f"method fedavg: {words}"):
        reasons(tiny("fedavg"))


def test_replies_that_weigh_nothing_are_fine_beside_others(tiny, monkeypatch):
    monkeypatch.setattr("cafedcl.methods.base.REPLIES_AT_A_TIME", 1)
    plain = FedAvg.weigh
    weigh = lambda self, ups: plain(self, ups) * (ups[0].client > 0)  # noqa: E731
    monkeypatch.setattr(FedAvg, "weigh", weigh)
    assert not reasons(tiny("fedavg", federation__participation=1.0))


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("weigh", [1.0], "its weigh returns list; a tensor is expected"),
        ("update", None, "its update returns NoneType; a dict of tensors is expected"),
        ("start", 1.0, "its start returns float; a dict of tensors is expected"),
        ("head", None, "its head returns NoneType; a module is expected"),
    ],
)
def test_a_step_that_returns_something_else(step, returned, words, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, step, lambda *_: returned)
    with pytest.raises(CafedclError, match=f"method fedavg: {words}"):
        reasons(tiny("fedavg"))


def test_an_error_for_people_has_no_kind():
    assert in_words(CafedclError("what to do")) == "what to do"
