import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.methods.fedproto import FedProto, FedProtoOptions
from cafedcl.models import Network
from cafedcl.testing.case import aggregated

CLASSES, DIM = 4, 3


def down_of(federation):
    return Down(federation.round, federation.method.broadcast(federation.state))


def method_with(**options):
    return FedProto(FedProtoOptions(**options), CLASSES, DIM)


@pytest.fixture
def scene():
    rng = np.random.default_rng(0)
    h, y = rng.normal(size=(6, DIM)), np.array([0, 0, 1, 2, 2, 2])
    anchors = {
        "prototypes": torch.from_numpy(rng.normal(size=(CLASSES, DIM))),
        "known": torch.tensor([True, False, True, True]),
    }
    return h, y, anchors


def test_samples_without_a_prototype_add_nothing_but_stay_in_the_mean(scene, visit_with):
    h, y, anchors = scene
    p, known = anchors["prototypes"].numpy(), anchors["known"].numpy()
    expected = sum(np.mean((h[i] - p[y[i]]) ** 2) for i in range(6) if known[y[i]]) / 6
    method = method_with(lam=2.5)
    visit = visit_with(torch.ones(CLASSES).double(), anchors=anchors)
    visit.scratch.update(method.scratch(visit.client))
    network = Network(nn.Identity(), method.head()).double()
    batch = Batch(torch.from_numpy(h), torch.from_numpy(y), torch.ones(6).double())
    terms = method.loss(network, batch, visit)
    assert terms.keys() == {"ce", "proto"}
    assert terms["proto"].item() == pytest.approx(2.5 * expected, abs=1e-12)
    ce = nn.functional.cross_entropy(network.head(batch.x), batch.y)
    assert terms["ce"].item() == pytest.approx(ce.item(), abs=1e-12)


def test_before_any_prototype_is_known_only_cross_entropy_counts(scene, visit_with):
    h, y, anchors = scene
    method = method_with()
    visit = visit_with(
        torch.ones(CLASSES).double(), anchors={**anchors, "known": torch.zeros(CLASSES).bool()}
    )
    visit.scratch.update(method.scratch(visit.client))
    network = Network(nn.Identity(), method.head()).double()
    terms = method.loss(
        network, Batch(torch.from_numpy(h), torch.from_numpy(y), torch.ones(6).double()), visit
    )
    assert terms["proto"].item() == 0


def test_moving_prototypes_are_the_means_of_what_the_epoch_saw(scene, visit_with):
    h, y, anchors = scene
    method = method_with()
    visit = visit_with(torch.tensor([2.0, 1.0, 3.0, 0.0]).double(), anchors=anchors)
    visit.scratch.update(method.scratch(visit.client))
    network = Network(nn.Identity(), method.head()).double()
    for rows in (slice(0, 4), slice(4, 6)):
        weight = torch.ones(len(y[rows])).double()
        method.loss(
            network, Batch(torch.from_numpy(h[rows]), torch.from_numpy(y[rows]), weight), visit
        )
    summary, notes = method.summarize(network, visit)
    assert summary["classes"].tolist() == [0, 1, 2]
    np.testing.assert_allclose(
        summary["prototypes"], [h[y == c].mean(0) for c in range(3)], atol=1e-12
    )
    assert notes == {}


def test_in_a_round_moving_prototypes_are_of_the_last_epoch_as_weights_move(tiny, monkeypatch):
    federation = tiny("fedproto", train__epochs=2, train__iterations=3)
    method, seen = federation.method, []
    embed = method.embed

    def spy(model, x):
        h = embed(model, x)
        if model.training:
            seen.append(h.detach().clone())
        return h

    labels = []
    loss = method.loss

    def listen(model, batch, visit):
        labels.append(batch.y.clone())
        return loss(model, batch, visit)

    monkeypatch.setattr(method, "embed", spy)
    monkeypatch.setattr(method, "loss", listen)
    replies = list(federation.train(down_of(federation), [1]))
    assert len(seen) == len(labels) == 6
    h, y = torch.cat(seen[3:]).double(), torch.cat(labels[3:])
    up = replies[0].up.tensors
    for row, c in zip(up["prototypes"], up["classes"].tolist(), strict=True):
        torch.testing.assert_close(row.double(), h[y == c].mean(0), atol=1e-5, rtol=0)


def test_exact_prototypes_are_of_the_trained_model(tiny):
    federation = tiny("fedproto", method__prototypes="literal")
    replies = list(federation.train(down_of(federation), [2]))
    task = federation.task
    shard = task.clients.shards.train[2]
    h = (
        task.network.encoder(task.clients.data.images(task.clients.data.train_x[shard]))
        .detach()
        .double()
    )
    up, y = replies[0].up.tensors, task.clients.data.train_y[shard]
    for row, c in zip(up["prototypes"], up["classes"].tolist(), strict=True):
        torch.testing.assert_close(row.double(), h[y == c].mean(0), atol=1e-5, rtol=0)


def test_the_server_takes_the_plain_mean_over_the_holders():
    rng = np.random.default_rng(3)
    a, b = (
        rng.normal(size=(2, DIM)).astype(np.float32),
        rng.normal(size=(1, DIM)).astype(np.float32),
    )
    ups = [
        Up(0, 1000, {"classes": torch.tensor([0, 2]), "prototypes": torch.from_numpy(a)}),
        Up(1, 1, {"classes": torch.tensor([2]), "prototypes": torch.from_numpy(b)}),
    ]
    method = method_with()
    state = method.start(Network(nn.Identity(), nn.Identity()))
    state["anchors/prototypes"][3], state["anchors/known"][3] = 7.0, True
    after = aggregated(method, state, ups)
    expected = np.stack([a[0], np.zeros(DIM), (a[1] + b[0]) / 2, np.full(DIM, 7.0)])
    np.testing.assert_allclose(after["anchors/prototypes"], expected, atol=1e-6)
    assert after["anchors/known"].tolist() == [True, False, True, True]


def test_the_nearest_known_prototype_wins(scene):
    _, _, anchors = scene
    x = torch.from_numpy(np.random.default_rng(5).normal(size=(50, DIM)))
    method = method_with()
    scores = method.scores(Network(nn.Identity(), method.head().double()), x, anchors, {}).detach()
    p = anchors["prototypes"].numpy()
    for row, image in zip(scores, x.numpy(), strict=True):
        distance = {c: float(np.linalg.norm(image - p[c])) for c in (0, 2, 3)}
        assert int(row.argmax()) == min(distance, key=distance.get)
        assert row[1] < row[[0, 2, 3]].min()
        assert {c: -float(row[c]) for c in distance} == pytest.approx(distance, abs=1e-5)


def test_until_a_prototype_is_known_the_classifier_predicts():
    method, x = method_with(), torch.randn(5, DIM)
    network = Network(nn.Identity(), method.head())
    scores = method.scores(
        network, x, {"prototypes": torch.zeros(CLASSES, DIM), "known": torch.zeros(4).bool()}, {}
    )
    assert torch.equal(scores.argmax(1), network.head(x).argmax(1))


def test_among_its_own_classes_a_client_never_predicts_a_class_it_lacks(tiny, monkeypatch):
    """Here clients first take part when only other clients' classes have prototypes."""
    called = {}
    monkeypatch.setattr(
        "cafedcl.engine.reference.count_correct",
        lambda predictions, *_: called.update(predictions) or {},
    )
    federation = tiny("fedproto", federation__participation=1.0)
    classes = [
        set(row.nonzero().flatten().tolist()) for row in federation.task.clients.shards.counts
    ]
    assert len(set.union(*classes)) == 10
    replies = list(federation.train(down_of(federation), [0]))
    federation.state = aggregated(
        federation.method, federation.state, [reply.up for reply in replies]
    )
    for client in range(1, 5):
        called.clear()
        list(federation.train(down_of(federation), [client]))
        assert set(called["held"].tolist()) <= classes[client]


def test_models_never_travel(tiny):
    federation = tiny("fedproto")
    record = federation.step()
    assert not any(name.startswith("model/") for name in federation.state)
    assert record.traffic["up_floats"] == 3 * 2 * federation.method.dim
    assert record.traffic["down_floats"] == 3 * 10 * federation.method.dim
    assert record.server is None
