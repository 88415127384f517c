"""What is said of a method of one's own whose steps return something else than they should."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl import run
from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Field
from cafedcl.core.errors import CafedclError
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.methods import find_method
from cafedcl.methods.base import Method
from cafedcl.methods.fedavg import FedAvg

ENGINES = {
    "reference": ReferenceEngine,
    "stacked": lambda task: StackedClients(task, 3),
    "cuda": lambda task: CudaEngine(
        task, EngineOptions(device="cpu", precision="fp32"), 5, compiled=False
    ),
}


def reasons(federation):
    with federation:
        return {failure["reason"] for failure in federation.step().failed}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (torch.ones(()), "its loss returns Tensor; terms by name are expected"),
        (None, "its loss returns NoneType; terms by name"),
        ({}, "its loss returns no term; terms by name"),
        (
            {"ce": torch.ones(3)},
            "its loss returns a tensor of shape (3,) as 'ce'; a tensor with one",
        ),
        ({"ce": 1.0}, "its loss returns float as 'ce'; a tensor with one number is expected"),
        ({3: torch.ones(())}, "its loss returns the name 3; a text is expected"),
        ({"ce": torch.ones(())}, "its loss returns no term that depends on a weight; one must"),
    ],
    ids=["tensor", "None", "nothing", "vector", "float", "number", "constant"],
)
def test_a_loss_that_is_no_terms_by_name(returned, words, engine, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "loss", lambda *_: returned)
    federation = tiny("fedavg")
    federation.engine = ENGINES[engine](federation.task)
    (reason,) = reasons(federation)
    assert reason.startswith(f"method fedavg: {words}")


def test_a_summary_without_notes(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "summarize", lambda *_: {"a": torch.zeros(3)})
    (reason,) = reasons(tiny("fedavg", engine__name="reference"))
    assert reason.startswith("method fedavg: its summarize returns dict; two dicts")


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("summarize", ({"mean": 1.0}, {}), "float as 'mean'; a tensor is expected"),
        ("summarize", ({"mean": np.ones(3)}, {}), "ndarray as 'mean'; a tensor is expected"),
        ("summarize", ({}, {"note": "text"}), "str as 'note'; a tensor is expected"),
        ("remember", None, "NoneType; a dict of tensors is expected"),
        ("remember", {"kept": 1.0}, "float as 'kept'; a tensor is expected"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_client_cannot_use_is_said_with_its_step_and_place(
    step, returned, words, engine, tiny, monkeypatch
):
    monkeypatch.setattr(FedAvg, step, lambda *_: returned)
    federation = tiny("fedavg")
    federation.engine = ENGINES[engine](federation.task)
    (reason,) = reasons(federation)
    assert reason.startswith(f"method fedavg: its {step} returns {words}")
    assert re.search(r" \(test_checked\.py, line \d+\)$", reason)


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        ("weigh", lambda weights: weights[:-1], "a tensor of shape (2,); a tensor of shape (3,)"),
        ("weigh", lambda weights: weights[:, None], "a tensor of shape (3, 1); a tensor of shape"),
        (
            "update",
            lambda _: {"model/head.bias": torch.ones(10, dtype=torch.int64)},
            "torch.int64 as 'model/head.bias'; torch.float32 is expected",
        ),
        ("update", lambda _: {"anchors/x": 2.0}, "float as 'anchors/x'; a tensor is expected"),
        (
            "update",
            lambda _: {"anchors/x": torch.ones(1)},
            "'anchors/x'; an entry of `start` is expected",
        ),
        (
            "update",
            lambda _: {"model/head.weight": torch.ones(2)},
            "a tensor of shape (2,) as 'model/head.weight'; (10, 16) is expected",
        ),
        ("scores", lambda found: (found, 1), "tuple; a tensor of shape (359, 10) is expected"),
        ("scores", lambda found: found.argmax(1), "a tensor of shape (359,); a tensor of shape"),
    ],
)
def test_what_the_server_cannot_use_is_said_with_its_step_and_place(
    step, change, words, tiny, monkeypatch
):
    plain = getattr(FedAvg, step)
    monkeypatch.setattr(FedAvg, step, lambda *words: change(plain(*words)))
    with pytest.raises(CafedclError, match=r" \(test_checked\.py, line \d+\)$") as caught:
        reasons(tiny("fedavg"))
    assert str(caught.value).startswith(f"method fedavg: its {step} returns {words}")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (nn.Linear(7, 10), "its head fails on rows of 16 features: RuntimeError: mat1 and mat2"),
        (nn.Linear(16, 3), "its head returns a module that turns 2 rows of features into a tensor"),
    ],
    ids=["other features", "other classes"],
)
def test_a_head_that_does_not_fit_is_refused_before_the_first_round(head, words, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "head", lambda _: head)
    with pytest.raises(CafedclError, match=r" \(test_checked\.py, line \d+\)$") as caught:
        tiny("fedavg")
    assert str(caught.value).startswith(f"method fedavg: {words}")


def test_a_head_that_is_used_in_parts_need_not_give_scores(tiny, monkeypatch):
    parts = nn.ModuleDict({"linear": nn.Linear(16, 10)})
    scores = lambda _, model, x, *__: model.part("linear")(model.features(x))  # noqa: E731
    monkeypatch.setattr(Method, "head", lambda _: parts)
    monkeypatch.setattr(FedAvg, "scores", scores)
    assert tiny("fedavg").method.name == "fedavg"


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


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("weigh", [1.0], r"its weigh returns list; a tensor of shape \(3,\) is expected"),
        ("update", None, "its update returns NoneType; a dict of tensors is expected"),
        ("start", 1.0, "its start returns float; a dict of tensors is expected"),
        ("head", None, "its head returns NoneType; a module is expected"),
    ],
)
def test_a_step_that_returns_something_else(step, returned, words, tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, step, lambda *_: returned)
    with pytest.raises(CafedclError, match=f"method fedavg: {words}"):
        reasons(tiny("fedavg"))


ONE_PER_CLASS = {"n": Field(())}


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("fields", None, "its fields returns NoneType; a dict of Field is expected"),
        ("fields", {"n": (3,)}, r"its fields returns tuple as 'n'; Field\(shape\) is expected"),
        (
            "effective_counts",
            torch.ones(()),
            r"a tensor of shape \(\); a tensor of shape \(5, 10\)",
        ),
        ("claims", None, "its claims returns NoneType; a dict is expected"),
        ("claims", {"m": (torch.ones(5, 10),) * 2}, "its claims returns 'm'; only entries of"),
        ("claims", {"n": torch.ones(5, 10)}, r"of shape \(5, 10\) as 'n'; two tensors of shape"),
        ("claims", {"n": (torch.ones(3),) * 2}, r"of shape \(3,\) as 'n'; two tensors of shape"),
        ("broadcast", None, "its broadcast returns NoneType; a dict of tensors is expected"),
        ("aggregator", None, "its aggregator returns NoneType; an Aggregator is expected"),
    ],
)
def test_what_no_round_can_do_without(step, returned, words, tiny, monkeypatch):
    if step == "claims":
        monkeypatch.setattr(FedAvg, "fields", lambda *_: ONE_PER_CLASS)
    monkeypatch.setattr(FedAvg, step, lambda *_: returned)
    with pytest.raises(
        CafedclError, match=rf"^method fedavg: .*{words}.* \(test_checked\.py, line"
    ):
        reasons(tiny("fedavg"))


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("scratch", [torch.zeros(3)], "list; a dict of tensors is expected"),
        ("scratch", {"sum": 0.0}, "float as 'sum'; a tensor is expected"),
        ("embed", (torch.zeros(3), 1), r"tuple; a tensor of shape \(\d+, features\) is expected"),
        ("embed", torch.zeros(3), r"a tensor of shape \(3,\); a tensor of shape \(\d+, features\)"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_no_visit_can_do_without(step, returned, words, engine, tiny, monkeypatch):
    def summarize(self, model, visit):
        visit.embed("train", "trained")
        return {}, {}

    monkeypatch.setattr(FedAvg, "summarize", summarize)
    monkeypatch.setattr(FedAvg, step, lambda *_: returned)
    federation = tiny("fedavg")
    federation.engine = ENGINES[engine](federation.task)
    try:
        said = reasons(federation)
    except CafedclError as error:
        # A step that a GPU captures has to work before any client is trained.
        said = {str(error)}
    assert said
    assert all(re.match(rf"method fedavg: its {step} returns {words}", each) for each in said)


def test_a_contradiction_that_is_no_reason(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "contradiction", lambda *_: True)
    (reason,) = reasons(tiny("fedavg"))
    assert "its contradiction returns bool; a reason or None is expected" in reason


@pytest.mark.parametrize(
    ("step", "returned", "words"),
    [
        ("centre", None, "its centre returns NoneType; a tensor of shape"),
        ("centre", torch.ones(3, 2), "its centre returns a tensor of shape"),
        ("alphas", [1.0], "its alphas returns list; a tensor of shape"),
        (
            "alphas",
            torch.full((3, 10), 0.5),
            "its alphas returns weights of a class that sum to 1.5",
        ),
        ("alphas", torch.full((3, 10), torch.nan), "its alphas returns weights of .* to nan"),
    ],
)
def test_what_the_bias_loop_cannot_use(step, returned, words, tiny, monkeypatch):
    monkeypatch.setattr(find_method("fedproc")[0], step, lambda *_: returned)
    with pytest.raises(CafedclError, match=f"^method fedproc: {words}"):
        reasons(tiny("fedproc"))


def test_a_similarity_of_another_shape(tmp_path, monkeypatch):
    trained = run("fedavg", rounds=1, clients=3, callbacks=[])
    monkeypatch.setattr(FedAvg, "similarity", lambda *_: None)
    image = np.zeros((1, 8, 8, 1), np.uint8)
    with pytest.raises(CafedclError, match=r"its similarity returns NoneType; .* \(1, 10\) is"):
        trained.predict(image)


def test_an_empty_entry_of_the_state_is_a_placeholder(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "start", lambda *_: {"server/last": torch.zeros(0)})
    monkeypatch.setattr(FedAvg, "update", lambda *_: {"server/last": torch.ones(2, 3)})
    federation = tiny("fedavg")
    assert not reasons(federation)
    assert federation.state["server/last"].shape == (2, 3)


def test_a_state_with_weights_of_the_model_is_refused_before_the_first_round(tiny, monkeypatch):
    monkeypatch.setattr(FedAvg, "start", lambda *_: {"model/more": torch.zeros(1)})
    with pytest.raises(CafedclError, match=r"its start returns 'model/more'; names that begin"):
        tiny("fedavg")


@pytest.mark.parametrize("engine", ENGINES)
def test_views_of_the_models_weights_are_what_they_were_when_they_were_returned(
    engine, tiny, monkeypatch
):
    """The next client trains in the same memory."""

    def outcome(change):
        def weights(model):
            return {name: change(value) for name, value in model.named_parameters()}

        monkeypatch.setattr(FedAvg, "start", lambda _, m: {"server/w": change(m.head.bias)})
        monkeypatch.setattr(FedAvg, "remember", lambda _, m, visit: weights(m))
        sent = {"w": Field((10,), per_class=False)}
        monkeypatch.setattr(FedAvg, "fields", lambda _, model: sent)
        monkeypatch.setattr(
            FedAvg, "summarize", lambda _, m, visit: ({"w": change(m.head.bias)}, {})
        )
        monkeypatch.setattr(
            FedAvg,
            "update",
            lambda _, state, ups: {
                "server/w": torch.stack([up.tensors["w"] for up in ups]).mean(0)
            },
        )
        federation = tiny("fedavg")
        federation.engine = ENGINES[engine](federation.task)
        with federation:
            assert federation.step().failed == []
            assert not federation.state["server/w"].requires_grad
            kept = [value.clone() for its in federation.memories.values() for value in its.values()]
            return [federation.state["server/w"].clone(), *kept]

    found = outcome(lambda value: value)
    expected = outcome(lambda value: value.detach().clone())
    assert len(found) > 3
    assert all(map(torch.equal, found, expected))
