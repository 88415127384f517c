import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.methods.mp_fedcl import MPFedCL, MPFedCLOptions
from cafedcl.models import Network, build_encoder

CLASSES, DIM = 4, 3


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def method_with(**options):
    return MPFedCL(MPFedCLOptions(**options), CLASSES, DIM)


class Scene:
    """Features as inputs, a linear head and a pool with two, one, three and no entries per class,
    in float64.
    """

    def __init__(self, visit_with):
        rng = np.random.default_rng(0)
        self.h, self.y, self.weight = (
            rng.normal(size=(7, DIM)),
            np.array([0, 1, 3, 2, 2, 0, 1]),
            np.ones(7),
        )
        self.weight[5:] = 0.5, 0
        self.pool, self.labels = rng.normal(size=(6, DIM)), np.array([2, 0, 2, 1, 0, 2])
        self.visit_with = visit_with

    def terms(self, x=None, **options):
        method = method_with(**options)
        torch.manual_seed(0)
        network = Network(nn.Identity(), method.head()).double()
        anchors = {"pool": torch.from_numpy(self.pool), "labels": torch.from_numpy(self.labels)}
        batch = Batch(
            torch.from_numpy(self.h) if x is None else x,
            torch.from_numpy(self.y),
            torch.from_numpy(self.weight),
        )
        return method.loss(
            network, batch, self.visit_with([1.0] * CLASSES, anchors=anchors)
        ), network

    def by_hand(self, h, tau):
        """mean_i (−1/|Q_y|) Σ_{q∈Q_y} log e^{ẑ·q̂/τ} / Σ_{q'∈Q} e^{ẑ·q̂'/τ}, without samples whose
        Q_y is empty.
        """
        total = weight = 0.0
        for i, c in enumerate(self.y):
            mine = [j for j in range(len(self.pool)) if self.labels[j] == c]
            if not mine:
                continue
            s = [math.exp(float(unit(h[i]) @ unit(q)) / tau) for q in self.pool]
            total -= self.weight[i] * sum(math.log(s[j] / sum(s)) for j in mine) / len(mine)
            weight += self.weight[i]
        return total / weight


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with)


@pytest.mark.parametrize(("tau", "lam"), [(0.07, 1.0), (0.5, 0.3)])
def test_the_loss_is_cross_entropy_and_the_contrast_with_the_pool(scene, tau, lam):
    terms, network = scene.terms(tau=tau, lam=lam)
    w, b = (p.detach().numpy() for p in network.head.parameters())
    ce = 0.0
    for row, c, weight in zip(scene.h @ w.T + b, scene.y, scene.weight, strict=True):
        ce += weight * math.log(sum(math.exp(v - row[c]) for v in row)) / scene.weight.sum()
    expected = {"ce": ce, "pool": lam * scene.by_hand(scene.h, tau)}
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, abs=1e-9)


def test_the_gradient_of_the_contrast_is_that_of_finite_differences(scene):
    x = torch.from_numpy(scene.h.copy()).requires_grad_()
    scene.terms(x, tau=0.5)[0]["pool"].backward()
    expected = np.zeros_like(scene.h)
    for index in np.ndindex(scene.h.shape):
        step = np.zeros_like(scene.h)
        step[index] = 1e-6
        expected[index] = (
            scene.by_hand(scene.h + step, 0.5) - scene.by_hand(scene.h - step, 0.5)
        ) / 2e-6
    np.testing.assert_allclose(x.grad, expected, atol=1e-8)
    assert not x.grad[2].any(), "class 3 has no entry in the pool"


def test_samples_whose_class_has_no_entry_are_skipped(scene):
    before = scene.terms()[0]["pool"].item()
    scene.h[2] *= -3
    assert scene.terms()[0]["pool"].item() == before
    scene.y[:] = 3
    term = scene.terms(torch.from_numpy(scene.h).requires_grad_())[0]["pool"]
    assert term.item() == 0


def test_an_empty_pool_leaves_cross_entropy_alone(scene):
    scene.pool, scene.labels = np.zeros((0, DIM)), np.zeros(0, dtype=np.int64)
    assert scene.terms()[0].keys() == {"ce"}


def test_round_0_is_fedavg_and_round_1_is_not(tiny):
    pooled, plain = tiny("mp-fedcl"), tiny("fedavg")
    pooled.step()
    plain.step()
    assert all(torch.equal(pooled.state[name], value) for name, value in plain.state.items())
    assert pooled.history[0].loss.keys() == {"ce"}
    assert pooled.step().loss.keys() == {"ce", "pool"}
    plain.step()
    assert not all(torch.equal(pooled.state[name], value) for name, value in plain.state.items())


# what travels


def cost(points, centroids):
    return sum(min(float(((p - c) ** 2).sum()) for c in centroids) for p in points)


def best_cost(points, k):
    """The least cost over every way to part the points into at most k groups."""
    least = math.inf
    for groups in itertools.product(range(k), repeat=len(points)):
        if groups[0] == 0:
            centroids = [points[np.array(groups) == g].mean(0) for g in set(groups)]
            least = min(least, cost(points, centroids))
    return least


def test_a_client_sends_as_many_centroids_per_class_as_it_has_samples_at_most_k(visit_with):
    rng = np.random.default_rng(2)
    y = np.array([0, 1, 1, 3, 3, 3, 3, 3])
    z = torch.from_numpy(rng.normal(size=(8, DIM)).astype(np.float32))
    visit = visit_with([1.0, 2.0, 0.0, 5.0], embed=lambda part, weights: (z, torch.from_numpy(y)))
    summary, notes = method_with(k=3).summarize(Network(nn.Identity(), nn.Identity()), visit)
    assert summary["classes"].tolist() == [0, 1, 1, 3, 3, 3]
    assert notes == {}
    np.testing.assert_allclose(summary["prototypes"][0], z[0], atol=1e-6)
    np.testing.assert_allclose(
        sorted(summary["prototypes"][1:3].tolist()), sorted(z[1:3].tolist()), atol=1e-6
    )
    ours = cost(z[3:].double().numpy(), summary["prototypes"][3:].double().numpy())
    assert ours == pytest.approx(best_cost(z[3:].double().numpy(), 3), rel=1e-4)


def test_centroids_are_of_the_trained_models_features(tiny):
    federation = tiny("mp-fedcl", method__k=1)
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [2])
    task, shard = federation.task, federation.task.clients.shards.train[2]
    w = {name: value.double().numpy() for name, value in reply.up.model.items()}
    h = task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1).numpy()
    for layer in ("encoder.first", "encoder.second"):
        h = np.maximum(h @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0)
    y, up = task.clients.data.train_y[shard].numpy(), reply.up.tensors
    assert up["classes"].tolist() == sorted(set(y.tolist()))
    for p, c in zip(up["prototypes"].double().numpy(), up["classes"].tolist(), strict=True):
        np.testing.assert_allclose(p, h[y == c].mean(0), atol=1e-4)


def test_the_pool_is_everything_received_and_old_entries_of_classes_nobody_sent():
    method, rng = method_with(), np.random.default_rng(3)

    def up(client, classes):
        rows = torch.from_numpy(rng.normal(size=(len(classes), DIM)).astype(np.float32))
        return Up(client, 10, {"classes": torch.tensor(classes), "prototypes": rows})

    def entries(state):
        rows = zip(state["anchors/labels"].tolist(), state["anchors/pool"].tolist(), strict=True)
        return sorted((label, tuple(row)) for label, row in rows)

    def sent(*ups):
        return [
            (c, tuple(row))
            for up in ups
            for c, row in zip(
                up.tensors["classes"].tolist(), up.tensors["prototypes"].tolist(), strict=True
            )
        ]

    state = method.start(Network(nn.Identity(), nn.Identity()))
    assert state["anchors/pool"].shape == (0, DIM)
    first = up(0, [0, 0, 2]), up(1, [2, 2, 3])
    state = method.update(state, list(first))
    assert entries(state) == sorted(sent(*first))
    second = (up(0, [0, 1]),)
    state = method.update(state, list(second))
    kept = [entry for entry in sent(*first) if entry[0] in (2, 3)]
    assert entries(state) == sorted(kept + sent(*second))
    assert len(kept) == 4


def test_what_travels_is_the_model_and_the_centroids(tiny):
    federation = tiny("mp-fedcl", method__k=2)
    weights = sum(value.numel() for value in federation.task.initial.values())
    one, two = federation.run()
    counts = federation.task.clients.shards.counts
    rows = [int(counts[record.participants].clamp(max=2).sum()) for record in (one, two)]
    assert one.traffic["up_floats"] == 3 * weights + 16 * rows[0]
    assert two.traffic["up_floats"] == 3 * weights + 16 * rows[1]
    assert one.traffic["down_floats"] == 3 * weights
    assert two.traffic["down_floats"] == 3 * (weights + 16 * rows[0])


def test_for_resnet18_ten_classes_and_two_centroids_the_numbers_sent_are_the_published_ones():
    method = MPFedCL(MPFedCLOptions(k=2), 10, 512)
    network = Network(build_encoder("resnet18", (3, 32, 32), 1.0), method.head())
    weights = sum(p.numel() for p in network.parameters())
    row = sum(math.prod(field.shape) for field in method.fields(network).values())
    assert weights + 2 * 10 * row == 11_184_202
    assert weights + 20 * 2 * 10 * row == 11_378_762


# prediction


def test_by_the_pool_the_class_of_the_most_similar_entry_is_predicted(scene):
    method = method_with(inference="pool")
    network = Network(nn.Identity(), method.head()).double()
    anchors = {"pool": torch.from_numpy(scene.pool), "labels": torch.from_numpy(scene.labels)}
    scores = method.scores(network, torch.from_numpy(scene.h), anchors, {}).numpy()
    for row, h in zip(scores, scene.h, strict=True):
        similar = [float(unit(h) @ unit(q)) for q in scene.pool]
        for c in range(3):
            assert row[c] == pytest.approx(
                max(s for s, label in zip(similar, scene.labels, strict=True) if label == c)
            )
        assert row.argmax() == scene.labels[int(np.argmax(similar))]
        assert row[3] < -1


def test_the_classifier_predicts_by_default_and_while_the_pool_is_empty(scene):
    x = torch.from_numpy(scene.h)
    anchors = {"pool": torch.from_numpy(scene.pool), "labels": torch.from_numpy(scene.labels)}
    empty = {"pool": torch.zeros(0, DIM), "labels": torch.zeros(0, dtype=torch.int64)}
    for method, known in ((method_with(), anchors), (method_with(inference="pool"), empty)):
        network = Network(nn.Identity(), method.head()).double()
        assert torch.equal(method.scores(network, x, known, {}), network.head(x))


def test_pool_inference_runs_and_changes_the_score(tiny):
    heads, pools = tiny("mp-fedcl"), tiny("mp-fedcl", method__inference="pool")
    for federation in (heads, pools):
        federation.run()
    assert all(torch.equal(pools.state[name], value) for name, value in heads.state.items())
    assert pools.history[-1].server["accuracy"] > heads.history[-1].server["accuracy"]
