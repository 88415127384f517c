import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods.base import NoOptions
from cafedcl.methods.fedavg import FedAvg
from cafedcl.methods.fedlc import FedLC, FedLCOptions
from cafedcl.models import Network

CLASSES = 4
COUNTS = (16.0, 81.0, 1.0, 0.0)


class Scene:
    """Logits as inputs and an identity head, in float64."""

    def __init__(self, visit_with):
        rng = np.random.default_rng(0)
        self.logits, self.y = 2 * rng.normal(size=(6, CLASSES)), np.array([0, 0, 1, 2, 1, 0])
        self.weight = np.array([1.0, 1, 0.5, 1, 1, 0])
        self.network, self.visit_with = Network(nn.Identity(), nn.Identity()), visit_with

    def run(self, counts=COUNTS, method=None, **options):
        """Return the loss and its gradient in the logits."""
        method = method or FedLC(FedLCOptions(**options), CLASSES, CLASSES)
        x = torch.from_numpy(self.logits.copy()).requires_grad_()
        crowd = torch.full((CLASSES,), 500.0).double()
        visit = self.visit_with(torch.tensor(counts).double(), most=crowd, total=2 * crowd)
        batch = Batch(x, torch.from_numpy(self.y), torch.from_numpy(self.weight))
        (term,) = method.loss(self.network, batch, visit).values()
        term.backward()
        return term.item(), x.grad.numpy()

    def by_hand(self, margins, exclusive):
        """Return −log e^{z_y − m_y} / Σ e^{z_j − m_j}, the sum over j ≠ y if exclusive, and its
        gradient.
        """
        total, gradient = 0.0, np.zeros_like(self.logits)
        for i, c in enumerate(self.y):
            share, shifted = self.weight[i] / self.weight.sum(), self.logits[i] - margins
            among = [j for j in range(CLASSES) if j != c or not exclusive]
            below = sum(math.exp(shifted[j]) for j in among)
            total -= share * (shifted[c] - math.log(below))
            gradient[i, c] -= share
            for j in among:
                gradient[i, j] += share * math.exp(shifted[j]) / below
        return total, gradient


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with)


@pytest.mark.parametrize("softmax", ["inclusive", "literal"])
@pytest.mark.parametrize("tau", [0.02, 1.0])
def test_logits_are_lowered_by_the_margins_of_the_clients_own_counts(scene, softmax, tau):
    margins = tau * np.array([16**-0.25, 81**-0.25, 1, 100])
    np.testing.assert_allclose(margins / tau, [1 / 2, 1 / 3, 1, 100])
    loss, gradient = scene.run(tau=tau, softmax=softmax)
    expected, slope = scene.by_hand(margins, softmax == "literal")
    assert loss == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(gradient, slope, atol=1e-9)


def test_a_class_the_client_lacks_is_masked_out(scene):
    margins = np.array([16**-0.25, 81**-0.25, 1, np.inf])
    expected, _ = scene.by_hand(margins, False)
    loss, gradient = scene.run()
    assert loss == pytest.approx(expected, abs=1e-12)
    assert np.abs(gradient[:, 3]).max() < 1e-30
    _, plain = scene.run(method=FedAvg(NoOptions(), CLASSES, CLASSES))
    assert np.abs(plain[:, 3]).max() > 1e-3


@pytest.mark.parametrize("count", [1.0, 7.0, 1000.0])
def test_equal_counts_give_the_loss_and_gradient_of_fedavg(scene, count):
    loss, gradient = scene.run((count,) * CLASSES)
    plain, slope = scene.run(method=FedAvg(NoOptions(), CLASSES, CLASSES))
    assert loss == pytest.approx(plain, abs=1e-12)
    np.testing.assert_allclose(gradient, slope, atol=1e-12)


def test_without_tau_a_run_gives_the_weights_of_fedavg(tiny):
    plain, none, some = tiny("fedavg"), tiny("fedlc", method__tau=0.0), tiny("fedlc")
    for federation in (plain, none, some):
        federation.run()
    assert all(torch.equal(none.state[name], value) for name, value in plain.state.items())
    assert not all(torch.allclose(some.state[name], value) for name, value in plain.state.items())


def test_a_rare_class_asks_for_a_larger_margin(scene):
    """The rarer the target, the more its logit has to exceed the others."""
    scene.y = np.array([2] * 6)
    rare, common = (scene.run((16.0, 81.0, n, 5.0))[0] for n in (1.0, 500.0))
    assert rare > common + 0.1


def test_the_literal_loss_has_no_lower_bound_and_pushes_on_a_sure_target(scene):
    losses = []
    for height in (10.0, 100.0):
        scene.logits = np.eye(CLASSES)[scene.y] * height
        loss, gradient = scene.run((5.0,) * CLASSES, softmax="literal")
        losses.append(loss)
        np.testing.assert_allclose(
            gradient[range(6), scene.y], -scene.weight / scene.weight.sum(), atol=1e-12
        )
    assert losses[1] == pytest.approx(losses[0] - 90, abs=1e-9)
    assert losses[1] < -90


def test_every_client_is_calibrated_by_the_images_it_trains_on(tiny):
    federation = tiny("fedlc", federation__participation=1.0, federation__rounds=1)
    seen, loss, task = {}, federation.method.loss, federation.task

    def listen(model, batch, visit):
        terms = loss(model, batch, visit)
        with torch.no_grad():
            logits = model(batch.x).double().numpy()
        y = task.clients.data.train_y[task.clients.shards.train[visit.client.index]].numpy()
        n = np.maximum(np.bincount(y, minlength=10), 1e-8)
        shifted = logits - n**-0.25
        expected = np.log(np.exp(shifted).sum(1)) - shifted[range(len(shifted)), batch.y]
        seen.setdefault(visit.client.index, []).append((float(terms["ce"]), expected.mean()))
        return terms

    federation.method.loss = listen
    federation.step()
    assert seen.keys() == set(range(5))
    for pairs in seen.values():
        for ours, by_hand in pairs:
            assert ours == pytest.approx(by_hand, abs=1e-4)


def test_predictions_are_not_calibrated():
    method, network = FedLC(FedLCOptions(), CLASSES, CLASSES), Network(nn.Identity(), nn.Identity())
    x = torch.randn(5, CLASSES)
    assert torch.equal(method.scores(network, x, {}, {}), x)
    assert FedLCOptions() == FedLCOptions(tau=1.0, softmax="inclusive")
