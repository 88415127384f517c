import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Up
from cafedcl.methods.base import NoOptions
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models import Network
from cafedcl.testing.case import aggregated


def test_the_loss_is_the_weighted_mean_cross_entropy(visit_with):
    rng = np.random.default_rng(0)
    x, y, weight = (
        rng.normal(size=(5, 3)),
        np.array([0, 1, 1, 2, 0]),
        np.array([1.0, 1.0, 0.5, 1.0, 0.0]),
    )
    method = FedAvg(NoOptions(), 3, 3)
    network = Network(nn.Identity(), method.head()).double()
    w, b = (p.detach().numpy() for p in network.head.parameters())
    expected = 0.0
    for i in range(5):
        e = [math.exp(v) for v in w @ x[i] + b]
        expected -= weight[i] * math.log(e[y[i]] / sum(e)) / weight.sum()
    batch = Batch(*(torch.from_numpy(part) for part in (x, y, weight)))
    terms = method.loss(network, batch, visit_with([1.0, 1.0, 1.0]))
    assert terms.keys() == {"ce"}
    assert terms["ce"].item() == pytest.approx(expected, abs=1e-12)


def test_models_are_averaged_by_their_samples():
    rng = np.random.default_rng(1)
    arrays, samples = rng.normal(size=(3, 2, 2)), [30, 10, 60]
    ups = [
        Up(k, n, {}, model={"w": torch.from_numpy(a)})
        for k, (n, a) in enumerate(zip(samples, arrays, strict=True))
    ]
    state = aggregated(FedAvg(NoOptions(), 3, 2), {"model/w": torch.zeros(2, 2).double()}, ups)
    np.testing.assert_allclose(
        state["model/w"], np.tensordot(np.array(samples) / 100, arrays, 1), atol=1e-15
    )


def test_a_round_is_plain_sgd_on_each_client_and_a_mean_by_samples(tiny):
    federation = tiny(
        "fedavg",
        train__iterations=1,
        train__epochs=3,
        federation__participation=1.0,
        federation__rounds=1,
    )
    task, trained, sizes = federation.task, [], []
    for shard in task.clients.shards.train:
        weights = {name: value.double().requires_grad_() for name, value in task.initial.items()}
        x, y = (
            task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1),
            task.clients.data.train_y[shard],
        )
        for _ in range(3):
            h = torch.relu(x @ weights["encoder.first.weight"].T + weights["encoder.first.bias"])
            h = torch.relu(h @ weights["encoder.second.weight"].T + weights["encoder.second.bias"])
            logits = h @ weights["head.weight"].T + weights["head.bias"]
            loss = -logits.log_softmax(1)[range(len(y)), y].mean()
            gradients = torch.autograd.grad(loss, list(weights.values()))
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
            scale = min(1.0, 10.0 / (norm + 1e-6))
            weights = {
                name: (w - 0.1 * (scale * g + 1e-3 * w)).detach().requires_grad_()
                for (name, w), g in zip(weights.items(), gradients, strict=True)
            }
        trained.append(weights)
        sizes.append(len(shard))
    record = federation.step()
    assert record.status == "ok"
    for name in task.initial:
        expected = sum(n * weights[name] for n, weights in zip(sizes, trained, strict=True)) / sum(
            sizes
        )
        torch.testing.assert_close(
            federation.state[f"model/{name}"].double(), expected.detach(), atol=1e-6, rtol=0
        )


def test_the_head_predicts_and_its_softmax_is_what_people_see():
    method = FedAvg(NoOptions(), 3, 2)
    network, x = Network(nn.Identity(), method.head()), torch.randn(4, 2)
    scores = method.scores(network, x, {}, {})
    assert torch.equal(scores, network.head(x))
    torch.testing.assert_close(method.similarity(scores).sum(1), torch.ones(4))
