import dataclasses

import numpy as np
import pytest
import torch
from aggregating import aggregated

from cafedcl.core.contract import Batch, Down, Job, Visit
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import ANCHORS, MODEL, floats, prefixed, under
from cafedcl.data import Dataset
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.functional.reply_check import ReplyValidator
from cafedcl.methods import find_method, method_names
from cafedcl.methods.cafedcl import CAFedCL
from cafedcl.methods.fedavg import FedAvg
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

METHODS = method_names()
READINGS = [
    {"geo": geo, "align": align, "align_norm": norm, "init": init}
    for geo in ("batch", "cross", "literal")
    for align in ("batch", "sample", "literal")
    for norm in ("unit", "literal")
    for init in ("orthonormal", "means")
]
CASES = [(name, {}) for name in METHODS] + [("cafedcl", reading) for reading in READINGS]


def after_one_round(tiny, name, options=None):
    federation = tiny(name, **{f"method__{key}": value for key, value in (options or {}).items()})
    federation.step()
    return federation


def doubled(tensors):
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in tensors.items()
    }


def loss_and_gradient(federation, batch):
    """Return the terms of client 0's loss, the gradient and the scratch, all in float64."""
    task, method = federation.task, federation.method
    sent, kept = (
        doubled(method.broadcast(federation.state)),
        doubled(federation.memories.get(0, {})),
    )
    client = task.clients.client(0)
    counts = {name: getattr(client, name).double() for name in ("counts", "most", "total")}
    client = dataclasses.replace(client, **counts)
    network = task.network.double().train()
    received = {**doubled(task.initial), **under(MODEL, sent), **under(MODEL, kept)}
    network.load_state_dict(received)
    network.zero_grad()
    visit = Visit(
        client=client,
        round=torch.tensor(1.0).double(),
        progress=torch.tensor(0.5).double(),
        received=received,
        anchors=under(ANCHORS, sent),
        memory={name: value for name, value in kept.items() if not name.startswith(MODEL)},
        scratch=method.scratch(client),
        embed=lambda part, weights: pytest.fail("a loss embeds nothing"),
    )
    torch.manual_seed(0)
    terms = method.loss(network, batch, visit)
    sum(terms.values()).backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    return {name: term.detach() for name, term in terms.items()}, gradients, visit.scratch


def batch_of(federation, size):
    task = federation.task
    rows = task.clients.shards.train[0][:size]
    x = task.clients.data.images(task.clients.data.train_x[rows]).double()
    return Batch(x, task.clients.data.train_y[rows], torch.ones(size, dtype=torch.float64))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_padding_changes_neither_the_loss_nor_its_gradient(tiny, name, options):
    federation = after_one_round(tiny, name, options)
    batch = batch_of(federation, 12)
    junk = (
        3 * torch.randn(5, *batch.x.shape[1:], generator=torch.Generator().manual_seed(0)).double()
    )
    padded = Batch(
        torch.cat([batch.x, junk]),
        torch.cat([batch.y, torch.tensor([0, 3, 5, 7, 9])]),
        torch.cat([batch.weight, torch.zeros(5).double()]),
    )
    plain, with_padding = (loss_and_gradient(federation, b) for b in (batch, padded))
    assert any(gradient.any() for gradient in plain[1].values())
    for ours, other in zip(plain, with_padding, strict=True):
        assert ours.keys() == other.keys()
        for entry in ours:
            torch.testing.assert_close(other[entry], ours[entry], atol=1e-10, rtol=1e-9, msg=entry)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_batch_of_padding_gives_finite_losses_and_gradients(tiny, name, options):
    federation = after_one_round(tiny, name, options)
    batch = batch_of(federation, 6)
    terms, gradients, _ = loss_and_gradient(
        federation, batch._replace(weight=torch.zeros(6).double())
    )
    assert all(value.isfinite().all() for value in (*terms.values(), *gradients.values()))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_loss_reads_no_tensor_value_so_that_it_can_be_replayed(tiny, name, options):
    federation = after_one_round(tiny, name, options)
    loss = federation.method.loss

    def guarded(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            for reader in (
                "item",
                "tolist",
                "numpy",
                "cpu",
                "__bool__",
                "__float__",
                "__int__",
                "__index__",
            ):
                patch.setattr(
                    torch.Tensor, reader, lambda *_: pytest.fail("a tensor value was read")
                )
            return loss(*arguments)

    federation.method.loss = guarded
    terms, _, _ = loss_and_gradient(federation, batch_of(federation, 4))
    assert terms


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


@pytest.mark.parametrize("name", METHODS)
def test_a_round_runs_and_leaves_a_state_of_the_same_form(tiny, name):
    def form(state):
        """Names, types and shapes; only MP-FedCL's pool may grow."""
        grows = {"anchors/pool", "anchors/labels"}
        return {k: (v.shape[1:] if k in grows else v.shape, v.dtype) for k, v in state.items()}

    federation = tiny(name)
    before = form(federation.state)
    for record in federation.run():
        assert (record.status, record.failed) == ("ok", [])
        assert record.loss
        scores = record.server if federation.task.has_server_model else record.own
        assert 0 <= scores["accuracy"] <= 1
    assert form(federation.state) == before
    assert all(value.isfinite().all() for value in federation.state.values())


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_alone_makes_a_run(tiny, name):
    one, same, other = (tiny(name, run__seed=seed) for seed in (1, 1, 2))
    for federation in (one, same, other):
        federation.run()

    def result(federation):
        memories = {
            f"{k}/{n}": v for k, memory in federation.memories.items() for n, v in memory.items()
        }
        return {**federation.state, **memories, **federation.own}

    assert result(one).keys() == result(same).keys()
    assert all(
        torch.equal(v.nan_to_num(-1), result(same)[n].nan_to_num(-1))
        for n, v in result(one).items()
    )
    shared = result(one).keys() & result(other).keys()
    assert not all(
        torch.equal(result(one)[n].nan_to_num(-1), result(other)[n].nan_to_num(-1)) for n in shared
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_replies_does_not_matter(tiny, name):
    federation = tiny(name)
    clients = range(len(federation.task.clients.shards))
    down = Down(0, federation.method.broadcast(federation.state))
    ups = [reply.up for reply in federation.train(down, list(clients))]
    one, other = (
        aggregated(federation.method, federation.state, order) for order in (ups, ups[::-1])
    )
    assert one.keys() == other.keys()
    for entry in one:
        torch.testing.assert_close(one[entry], other[entry], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_reply_is_what_the_method_said_it_would_be(tiny, name):
    federation = tiny(name)
    down = Down(0, federation.method.broadcast(federation.state))
    reply = ReferenceEngine(federation.task).attempt(Job(0, down, {}, True))
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
    assert (reply.correct["held"] >= reply.correct["all"])[~lacks].all()


@pytest.mark.parametrize("name", METHODS)
def test_only_weights_and_anchors_are_broadcast_and_personal_weights_stay(tiny, name):
    federation = after_one_round(tiny, name)
    sent = federation.method.broadcast(federation.state)
    assert all(entry.startswith((MODEL, ANCHORS)) for entry in sent)
    assert under(MODEL, sent).keys() == federation.task.shared().keys()
    for memory in federation.memories.values():
        personal = federation.task.initial.keys() - federation.task.shared().keys()
        assert under(MODEL, memory).keys() == personal


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name):
    method, _ = find_method(name)
    assert method.name == name
    assert method.paper
    assert method.travels
    assert method.predicts
    assert 2015 < method.year < 2100
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


def test_sample_weighted_client_accuracy_is_plain_accuracy_when_the_test_set_is_dealt(tiny):
    federation = tiny("fedavg", evaluate__protocol="pfllib")
    record = federation.step()
    sizes = torch.tensor(federation.judge.sizes).double()
    by_client = record.tables["server/clients"].double()
    assert len(sizes) == 5
    assert float((by_client * sizes).sum() / sizes.sum()) == pytest.approx(
        record.server["accuracy"], abs=1e-6
    )
    y = federation.task.clients.test_set(None)[1]
    correct = (federation.engine.predict(federation.state)() == y).double()
    assert record.server["accuracy"] == pytest.approx(float(correct.mean()))
