import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.methods.fednh import FedNH, FedNHOptions
from cafedcl.models import Network
from cafedcl.testing.case import aggregated

CLASSES, DIM = 4, 5


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def method_with(**options):
    return FedNH(FedNHOptions(**options), CLASSES, DIM)


class Scene:
    """Features as inputs, random unit prototypes and a scale of 7, in float64."""

    def __init__(self, visit_with):
        rng = np.random.default_rng(0)
        self.h, self.y, self.w = (
            rng.normal(size=(5, DIM)),
            np.array([0, 3, 1, 1, 0]),
            unit(rng.normal(size=(4, DIM))),
        )
        self.weight = np.array([1.0, 1, 1, 0.5, 0])
        self.method = method_with(scale=7.0)
        self.network = Network(nn.Identity(), self.method.head()).double()
        self.x = torch.from_numpy(self.h.copy()).requires_grad_()
        self.anchors = {
            "prototypes": torch.from_numpy(self.w).requires_grad_(),
            "known": torch.ones(CLASSES).bool(),
        }
        self.visit = visit_with([1.0] * CLASSES, anchors=self.anchors)
        self.batch = Batch(self.x, torch.from_numpy(self.y), torch.from_numpy(self.weight))

    def by_hand(self, h, scale):
        """Return the weighted cross-entropy of s·cos(h, w)."""
        total = 0.0
        for row, c, weight in zip(h, self.y, self.weight, strict=True):
            s = [scale * float(unit(row) @ w) for w in self.w]
            total += weight * math.log(sum(math.exp(v - s[c]) for v in s)) / self.weight.sum()
        return total


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with)


def test_the_loss_is_cross_entropy_of_scaled_cosines(scene):
    terms = scene.method.loss(scene.network, scene.batch, scene.visit)
    assert terms.keys() == {"ce"}
    assert terms["ce"].item() == pytest.approx(scene.by_hand(scene.h, 7.0), abs=1e-10)


def test_features_and_scale_have_the_gradients_of_finite_differences(scene):
    scene.method.loss(scene.network, scene.batch, scene.visit)["ce"].backward()
    expected = np.zeros_like(scene.h)
    for index in np.ndindex(scene.h.shape):
        step = np.zeros_like(scene.h)
        step[index] = 1e-6
        expected[index] = (
            scene.by_hand(scene.h + step, 7.0) - scene.by_hand(scene.h - step, 7.0)
        ) / 2e-6
    np.testing.assert_allclose(scene.x.grad, expected, atol=1e-7)
    slope = (scene.by_hand(scene.h, 7 + 1e-6) - scene.by_hand(scene.h, 7 - 1e-6)) / 2e-6
    (scale,) = scene.network.parameters()
    assert scale.grad.item() == pytest.approx(slope, abs=1e-7)
    assert abs(slope) > 1e-3


def test_the_scale_is_the_only_weight_of_the_head_and_prototypes_are_not_trained(tiny):
    federation = tiny("fednh", method__scale=3.0)
    assert {name for name in federation.task.initial if name.startswith("head")} == {"head.scale"}
    assert federation.task.initial["head.scale"].tolist() == [3.0]
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [0])
    assert reply.up.model["head.scale"].item() != 3.0


def test_the_first_prototypes_are_orthonormal():
    torch.manual_seed(0)
    start = (
        method_with()
        .start(Network(nn.Identity(), nn.Identity()))["anchors/prototypes"]
        .double()
        .numpy()
    )
    np.testing.assert_allclose(start @ start.T, np.eye(CLASSES), atol=1e-6)


def test_clients_send_the_direction_of_their_mean_unit_features_and_their_counts(visit_with):
    rng = np.random.default_rng(1)
    z, y = 3 * rng.normal(size=(6, DIM)), np.array([0, 0, 3, 3, 3, 2])
    embedded = torch.from_numpy(z), torch.from_numpy(y)
    visit = visit_with(torch.tensor([2.0, 0, 1, 3]), embed=lambda part, weights: embedded)
    summary, _ = method_with().summarize(Network(nn.Identity(), nn.Identity()), visit)
    assert summary["classes"].tolist() == [0, 2, 3]
    assert summary["counts"].tolist() == [2, 1, 3]
    expected = [unit(unit(z)[y == c].mean(0)) for c in (0, 2, 3)]
    np.testing.assert_allclose(summary["prototypes"], expected, atol=1e-12)


def test_the_features_are_of_the_trained_model(tiny):
    federation = tiny("fednh")
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [1])
    task, shard = federation.task, federation.task.clients.shards.train[1]
    w = {name: value.double().numpy() for name, value in reply.up.model.items()}
    h = task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1).numpy()
    for layer in ("encoder.first", "encoder.second"):
        h = np.maximum(h @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0)
    y, up = task.clients.data.train_y[shard].numpy(), reply.up.tensors
    for p, c in zip(up["prototypes"].double().numpy(), up["classes"].tolist(), strict=True):
        np.testing.assert_allclose(p, unit(unit(h)[y == c].mean(0)), atol=1e-5)


def ups_of(rng):
    """Clients with classes {0, 2}, {0} and {0, 1}, of unequal sizes; class 3 is nobody's."""
    held, counts, ups = ([0, 2], [0], [0, 1]), ([5.0, 1.0], [9.0], [20.0, 4.0]), []
    for k in range(3):
        p = unit(rng.normal(size=(len(held[k]), DIM))).astype(np.float32)
        model = {"head.scale": torch.tensor([10.0 * k]), "w": torch.from_numpy(rng.normal(size=3))}
        tensors = {"classes": torch.tensor(held[k]), "prototypes": torch.from_numpy(p)}
        ups.append(
            Up(k, int(sum(counts[k])), {**tensors, "counts": torch.tensor(counts[k])}, model=model)
        )
    return ups


@pytest.mark.parametrize("rho", [0.9, 0.25, 0.0, 1.0])
def test_the_server_smooths_the_normalised_count_weighted_mean(rho):
    method, rng = method_with(smoothing=rho), np.random.default_rng(2)
    old, ups = unit(rng.normal(size=(CLASSES, DIM))).astype(np.float32), ups_of(rng)
    known = torch.ones(CLASSES).bool()
    after = method.update(
        {"anchors/prototypes": torch.from_numpy(old), "anchors/known": known}, ups
    )
    p = [up.tensors["prototypes"].double().numpy() for up in ups]
    means = {0: unit(5 * p[0][0] + 9 * p[1][0] + 20 * p[2][0]), 1: p[2][1], 2: p[0][1], 3: old[3]}
    expected = [unit(rho * old[c] + (1 - rho) * means[c]) for c in range(CLASSES)]
    np.testing.assert_allclose(after["anchors/prototypes"], expected, atol=1e-6)
    np.testing.assert_allclose(after["anchors/prototypes"][3], old[3], atol=1e-6)


def test_over_many_rounds_a_class_nobody_has_keeps_its_direction(tiny):
    federation = tiny("fednh", federation__rounds=4, federation__drop=["0:0", "1:0", "2:0", "3:0"])
    start = federation.state["anchors/prototypes"].clone()
    federation.run()
    seen = torch.zeros(10).bool()
    for record in federation.history:
        there = [k for k in record.participants if k not in record.dropped]
        seen |= federation.task.clients.shards.counts[there].sum(0) > 0
    after = federation.state["anchors/prototypes"]
    assert 0 < int(seen.sum()) < 10
    torch.testing.assert_close(after[~seen], start[~seen], atol=1e-6, rtol=0)
    assert not torch.isclose(after[seen], start[seen], atol=1e-4).all(1).any()
    torch.testing.assert_close(after.norm(dim=1), torch.ones(10), atol=1e-5, rtol=0)


def test_models_and_scales_are_averaged_uniformly():
    rng = np.random.default_rng(3)
    method, ups = method_with(), ups_of(rng)
    start = method.start(Network(nn.Identity(), nn.Identity()))
    state = {"model/head.scale": torch.ones(1), "model/w": torch.zeros(3).double(), **start}
    after = aggregated(method, state, ups)
    assert after["model/head.scale"].item() == pytest.approx(10.0)
    np.testing.assert_allclose(
        after["model/w"], np.mean([up.model["w"].numpy() for up in ups], 0), atol=1e-12
    )


def test_the_nearest_prototype_by_cosine_is_predicted(scene):
    scores = scene.method.scores(scene.network, scene.x, scene.anchors, {}).detach()
    np.testing.assert_allclose(scores, 7 * unit(scene.h) @ scene.w.T, atol=1e-12)


def test_what_travels_is_the_model_prototypes_and_counts(tiny):
    federation = tiny("fednh")
    record = federation.step()
    weights = 64 * 50 + 50 + 50 * 16 + 16 + 1
    assert record.traffic["up_floats"] == 3 * (weights + 2 * 16 + 2)
    assert record.traffic["down_floats"] == 3 * (weights + 10 * 16)
    assert FedNHOptions() == FedNHOptions(smoothing=0.9, scale=20.0)
