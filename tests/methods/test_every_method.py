import dataclasses

import numpy as np
import pytest
import torch
from quick import QUICK

from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import ANCHORS, MODEL, floats, prefixed, under
from cafedcl.data import Dataset
from cafedcl.federation.rounds import Federation
from cafedcl.functional.reply_check import ReplyValidator
from cafedcl.methods import find_method, method_names
from cafedcl.methods.cafedcl import CAFedCL
from cafedcl.methods.fedavg import FedAvg
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve
from cafedcl.testing import CHECKS
from cafedcl.testing.case import Case

METHODS = method_names()
NO_SERVER_MODEL = ("local", "fedproto", "fedtgp")
INITS = ("orthonormal", "means")
READINGS = [
    # The first prototypes alternate: no term of the loss asks where they come from.
    {"geo": geo, "align": align, "align_norm": norm, "init": INITS[(i + j + k) % 2]}
    for i, geo in enumerate(("batch", "cross", "literal"))
    for j, align in enumerate(("batch", "sample", "literal"))
    for k, norm in enumerate(("unit", "literal"))
]
STRICTER_ELSEWHERE = {
    "engines": "tests/engine compares every method's rounds on both engines, to a tenth of this",
    "resume": "test_hard_cases stops every method in the middle, with clients that stay away",
}
SHORT = {
    name: {f"method.{key}": value for key, value in options.items()}
    for name, options in {**QUICK, "fedtgp": {"epochs": 5}}.items()
}


# Tests look at the same federations of a method, each of which is run once.


@pytest.fixture(scope="module", params=METHODS)
def case(request):
    return Case(request.param, SHORT.get(request.param, {}))


@pytest.fixture(scope="module")
def smoothed(case):
    """The same method, whose labels are smoothed."""
    return Case(case.method, {**case.settings, "train.label_smoothing": 0.1})


@pytest.fixture(scope="module", params=READINGS, ids=str)
def reading(request):
    return Case("cafedcl", {f"method.{key}": value for key, value in request.param.items()})


@pytest.mark.parametrize("check", [name for name in CHECKS if name not in STRICTER_ELSEWHERE])
def test_every_method_conforms(case, check):
    CHECKS[check](case)


@pytest.mark.parametrize("check", ["padding", "only padding", "no value is read"])
def test_every_reading_of_the_loss_conforms(reading, check):
    CHECKS[check](reading)


@pytest.mark.parametrize("check", ["padding", "no value is read"])
def test_every_method_conforms_with_smoothed_labels(smoothed, check):
    CHECKS[check](smoothed)


def test_labels_are_smoothed_wherever_there_is_a_cross_entropy(case, smoothed):
    plain = case.after_one_round.history[0]
    smooth = smoothed.after_one_round.history[0]
    assert not plain.failed
    assert not smooth.failed
    # SphereFed's loss is a mean squared error.
    assert (plain.loss != smooth.loss) == (case.method != "spherefed")


def test_what_a_client_sends_or_keeps_is_replayed_only_if_its_own_class_says_so():
    class Sends(FedAvg):
        def summarize(self, model, visit):
            return {}, {}

    class Keeps(CAFedCL):
        def remember(self, model, visit):
            return {}

    class Says(Sends):
        replayed = True

    class Inherits(Says):
        pass

    assert all(each.replayed for each in (FedAvg, CAFedCL, Says, Inherits))
    assert not Sends.replayed
    assert not Keeps.replayed


def test_a_round_has_scores(case):
    federation = case.finished
    assert len(federation.history) == 2
    for record in federation.history:
        scores = record.server if federation.task.has_server_model else record.own
        assert 0 <= scores["accuracy"] <= 1


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NO_SERVER_MODEL])
def test_the_server_learns_the_classes_of_all_clients(name):
    """A client has three of the ten digits: what one could learn alone is right for 3 in 10."""
    longer = {
        "data.images": 400,
        "split.classes": 3,
        "model.width": 1.0,
        "train.iterations": 20,
        "federation.rounds": 5,
        "federation.participation": 1.0,
        "evaluate.every": 5,
        "evaluate.own_every": 5,
    }
    with Federation(Case(name, SHORT.get(name, {})).config(**longer)) as federation:
        record = [federation.step() for _ in range(5)][-1]
    assert record.server["accuracy"] > 0.45


def test_a_reply_is_what_the_method_said_it_would_be(case):
    federation = case.begun
    reply = case.replies[0]
    validator = ReplyValidator(
        federation.task.shared(),
        federation.method.fields(federation.task.network),
        federation.task.clients.shards.counts,
    )
    assert validator.problem(reply) is None
    for part in ("model", "tensors"):
        spoilt = {
            n: v * torch.nan if v.is_floating_point() else v
            for n, v in getattr(reply.up, part).items()
        }
        if floats(spoilt):
            up = dataclasses.replace(reply.up, **{part: spoilt})
            assert "NaN" in validator.problem(dataclasses.replace(reply, up=up))
    y = federation.task.clients.test_set(0)[1]
    assert reply.correct["tested"].tolist() == torch.bincount(y, minlength=10).tolist()
    lacks = federation.task.clients.shards.counts[0] == 0
    assert not reply.correct["held"][lacks].any()
    assert not reply.correct["prior"][lacks].any()
    assert (reply.correct["held"] >= reply.correct["all"])[~lacks].all()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name):
    method, _ = find_method(name)
    assert method.name == name
    assert method.paper
    assert method.sends
    assert method.predicts
    assert 2015 < method.year < 2100 or (method.name in ("local", "central") and not method.year)
    assert dataclasses.is_dataclass(method.Options)


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(CafedclError, match=r"did you mean 'fedproto'\?"):
        find_method("fedprot")


# communication


def rgb():
    """Twenty RGB images of 32×32 pixels, two of each of ten classes."""
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8))
    return Dataset.of(x, torch.arange(20) % 10, x[:1], torch.zeros(1).long(), tuple("0123456789"))


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("fedavg", 11_173_962, 11_173_962),
        ("fedproto", 5_120, 5_120),
        ("cafedcl", 11_173_962, 11_173_952),
        ("cafedcl:best", 11_441_226, 11_179_072),
        ("local", 0, 0),
    ],
)
def test_numbers_sent_for_resnet18_and_ten_classes(visit_with, name, up, down):
    tables = {"method": {"name": name}, "model": {"name": "resnet18"}, "engine": {"device": "cpu"}}
    tables |= {"federation": {"clients": 1}, "split": {"kind": "iid", "validation": 0.0}}
    setup = prepare(resolve(tables), rgb())
    task, method = setup.task, setup.task.method
    state = {**prefixed(MODEL, task.shared()), **setup.state}
    sent = method.broadcast(state)
    client = task.clients.client(0)
    assert len(client.holds) == 10
    features = torch.randn(20, method.dim), task.clients.data.train_y
    visit = visit_with(
        client.counts, anchors=under(ANCHORS, sent), embed=lambda part, weights: features
    )
    visit.scratch.update(method.scratch(visit.client))
    summary, _ = method.summarize(task.network, visit)
    assert floats(sent) == down
    assert floats({**prefixed(MODEL, task.shared()), **summary}) == up


def test_the_recorded_traffic_is_what_was_sent(tiny):
    federation = tiny("cafedcl")
    record = federation.step()
    weights, dim = floats(federation.task.shared()), federation.method.dim
    assert weights == 64 * 50 + 50 + 50 * 16 + 16
    assert record.traffic["down_floats"] == 3 * (weights + 10 * dim)
    assert record.traffic["up_floats"] == 3 * (weights + 2 * dim + 2)
    assert record.traffic["up_bytes"] == 4 * record.traffic["up_floats"] + 3 * 2 * 8
    assert record.traffic["down_bytes"] == 4 * record.traffic["down_floats"] + 3 * 10


def test_sample_weighted_client_accuracy_is_plain_accuracy_when_the_test_set_is_assigned(tiny):
    federation = tiny("fedavg", evaluate__protocol="pfllib")
    record = federation.step()
    sizes = torch.tensor(federation.evaluator.sizes).double()
    by_client = record.tables["server/clients"].double()
    assert len(sizes) == 5
    assert float((by_client * sizes).sum() / sizes.sum()) == pytest.approx(
        record.server["accuracy"], abs=1e-6
    )
    y = federation.task.clients.test_set(None)[1]
    correct = (federation.engine.predict(federation.state)() == y).double()
    assert record.server["accuracy"] == pytest.approx(float(correct.mean()))
