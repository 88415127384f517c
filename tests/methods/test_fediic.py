import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Up
from cafedcl.methods.fediic import FedIIC, FedIICOptions
from cafedcl.models import Network

COUNTS = np.array([6.0, 0, 2])


def test_a_harder_class_has_a_larger_margin_and_an_absent_one_none(visit_with):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), np.array([0, 2, 0, 0])
    difficulty = np.array([0.5, 1.0, 4.0])
    visit = visit_with(COUNTS, anchors={"difficulty": torch.from_numpy(difficulty)})
    batch = Batch(*map(torch.from_numpy, (x, y, np.array([1.0, 1, 1, 0]))))
    method = FedIIC(FedIICOptions(), 3, 3)
    loss = method.loss(Network(nn.Identity(), nn.Identity()), batch, visit)["ce"].item()
    margins = np.log(COUNTS[[0, 2]] / 8 / (difficulty[[0, 2]] ** 0.25 + 1e-5))
    s = x[:, [0, 2]] + margins
    target = np.array([0, 1, 0])
    expected = np.mean([np.log(np.exp(s[i]).sum()) - s[i, target[i]] for i in range(3)])
    assert loss == pytest.approx(expected, abs=1e-9)


def test_clients_send_the_received_models_mean_loss_of_each_class(visit_with):
    rng = np.random.default_rng(1)
    h, w, b = rng.normal(size=(5, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
    y = np.array([0, 2, 0, -1, 2])  # −1 is padding
    asked = []

    def embed(part, weights):
        asked.append((part, weights))
        return torch.from_numpy(h), torch.from_numpy(y)

    received = {"head.weight": torch.from_numpy(w), "head.bias": torch.from_numpy(b)}
    visit = visit_with(np.array([2.0, 0, 2]), received=received, embed=embed)
    method = FedIIC(FedIICOptions(), 3, 4)
    sent, _ = method.summarize(Network(nn.Identity(), nn.Linear(4, 3)), visit)
    s = h @ w.T + b
    each = np.log(np.exp(s).sum(1)) - s[range(5), y]
    assert asked == [("train", "received")]
    assert sent["classes"].tolist() == [0, 2]
    assert sent["counts"].tolist() == [2, 2]
    np.testing.assert_allclose(sent["losses"], [each[[0, 2]].mean(), each[[1, 4]].mean()])


def test_the_server_pools_losses_by_images_and_a_class_nobody_has_keeps_its_own():
    method = FedIIC(FedIICOptions(), 3, 4)
    sent = [([0, 2], [2.0, 1.0], [3.0, 1.0]), ([0], [4.0], [1.0])]
    ups = [
        Up(
            k,
            4,
            {"classes": torch.tensor(c), "losses": torch.tensor(v), "counts": torch.tensor(n)},
        )
        for k, (c, v, n) in enumerate(sent)
    ]
    state = {"anchors/difficulty": torch.full((3,), 7.0)}
    assert method.update(state, ups)["anchors/difficulty"].tolist() == [2.5, 7.0, 1.0]


def test_difficulties_reach_clients_in_the_round_after(tiny):
    federation = tiny("fediic", federation__participation=1.0)
    assert federation.down().tensors["anchors/difficulty"].tolist() == [1.0] * 10
    federation.step()
    measured = federation.down().tensors["anchors/difficulty"]
    # An untrained model has a loss of about log 10 on the classes that somebody has.
    assert measured[measured != 1].mean().item() == pytest.approx(np.log(10), abs=0.3)
