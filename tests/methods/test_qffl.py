import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Up
from cafedcl.methods.qffl import QFFL, QFFLOptions
from cafedcl.models import Network
from cafedcl.testing.case import aggregated


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.5])
def test_the_step_is_q_fedavgs(q):
    rng = np.random.default_rng(0)
    theta, models, losses = rng.normal(size=4), rng.normal(size=(3, 4)), [0.5, 2.0, 1.1]
    lipschitz = 7.0
    ups = [
        Up(k, n, {"loss": torch.tensor(f)}, model={"w": torch.from_numpy(w)})
        for k, (n, f, w) in enumerate(zip((1, 999, 10), losses, models, strict=True))
    ]
    method = QFFL(QFFLOptions(q=q, lipschitz=lipschitz), 2, 4)
    after = aggregated(method, {"model/w": torch.from_numpy(theta)}, ups)["model/w"].numpy()
    above, below = np.zeros(4), 0.0
    for loss, model in zip(losses, models, strict=True):
        delta = lipschitz * (theta - model)
        above += loss**q * delta
        below += q * loss ** (q - 1) * (delta @ delta) + lipschitz * loss**q
    np.testing.assert_allclose(after, theta - above / below, atol=1e-6)
    if q == 0:
        np.testing.assert_allclose(after, models.mean(0), atol=1e-6)


def test_clients_send_the_received_models_loss_on_their_training_images(visit_with):
    rng = np.random.default_rng(1)
    h, w, b = rng.normal(size=(5, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
    y = np.array([0, 2, 0, 1, 2])
    received = {"head.weight": torch.from_numpy(w), "head.bias": torch.from_numpy(b)}
    embedded = torch.from_numpy(h), torch.from_numpy(y)
    visit = visit_with([2.0, 1, 2], received=received, embed=lambda *asked: (*embedded,))
    sent, _ = QFFL(QFFLOptions(), 3, 4).summarize(Network(nn.Identity(), nn.Linear(4, 3)), visit)
    s = h @ w.T + b
    assert sent.keys() == {"loss"}
    assert sent["loss"].item() == pytest.approx(
        np.mean(np.log(np.exp(s).sum(1)) - s[range(5), y]), abs=1e-9
    )


def test_a_client_without_any_loss_breaks_nothing():
    ups = [Up(k, 1, {"loss": torch.tensor(0.0)}, model={"w": torch.ones(2)}) for k in range(2)]
    after = aggregated(QFFL(QFFLOptions(), 2, 4), {"model/w": torch.zeros(2)}, ups)
    assert after["model/w"].isfinite().all()


def test_a_loss_whose_power_overflows_raises_nothing():
    up = Up(0, 1, {"loss": torch.tensor(3e38)}, model={"w": torch.ones(2)})
    after = aggregated(QFFL(QFFLOptions(q=50.0), 2, 4), {"model/w": torch.zeros(2)}, [up])
    assert not after["model/w"].isfinite().all()
