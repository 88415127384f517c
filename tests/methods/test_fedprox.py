import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods.fedprox import FedProx, FedProxOptions
from cafedcl.models import Network

ONE_STEP = {"train__iterations": 1, "federation__participation": 1.0, "federation__rounds": 1}


@pytest.fixture
def scene(visit_with):
    """A linear encoder and head that have moved away from what was received, in float64."""
    rng = np.random.default_rng(0)
    network = Network(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    now = {name: rng.normal(size=p.shape) for name, p in network.named_parameters()}
    then = {name: rng.normal(size=p.shape) for name, p in network.named_parameters()}
    network.load_state_dict({name: torch.from_numpy(value) for name, value in now.items()})
    visit = visit_with(
        [1.0, 1.0], received={name: torch.from_numpy(value) for name, value in then.items()}
    )
    x, y = rng.normal(size=(5, 4)), np.array([0, 1, 1, 0, 1])
    return (
        network,
        visit,
        Batch(torch.from_numpy(x), torch.from_numpy(y), torch.ones(5).double()),
        now,
        then,
    )


def test_the_proximal_term_is_half_mu_times_the_squared_distance_to_the_received_weights(scene):
    network, visit, batch, now, then = scene
    expected = 0.0
    for name in now:
        for a, b in zip(now[name].ravel(), then[name].ravel(), strict=True):
            expected += 0.3 / 2 * (a - b) ** 2
    logits = batch.x.numpy() @ now["encoder.weight"].T + now["encoder.bias"]
    logits = logits @ now["head.weight"].T + now["head.bias"]
    ce = np.mean(
        [
            math.log(sum(math.exp(v - row[c]) for v in row))
            for row, c in zip(logits, batch.y, strict=True)
        ]
    )
    terms = FedProx(FedProxOptions(mu=0.3), 2, 3).loss(network, batch, visit)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"ce": ce, "prox": expected}, abs=1e-10
    )


def test_the_gradient_of_the_proximal_term_is_mu_times_the_way_from_the_received_weights(scene):
    network, visit, batch, now, then = scene
    FedProx(FedProxOptions(mu=0.3), 2, 3).loss(network, batch, visit)["prox"].backward()
    for name, p in network.named_parameters():
        np.testing.assert_allclose(p.grad, 0.3 * (now[name] - then[name]), atol=1e-12)


def test_without_mu_the_weights_are_those_of_fedavg_bit_for_bit(tiny):
    fedavg, none, some = (
        tiny("fedavg"),
        tiny("fedprox", method__mu=0.0),
        tiny("fedprox", method__mu=1.0),
    )
    for federation in (fedavg, none, some):
        federation.run()
    assert none.state.keys() == fedavg.state.keys()
    assert all(torch.equal(none.state[name], value) for name, value in fedavg.state.items())
    assert not any(torch.equal(some.state[name], value) for name, value in fedavg.state.items())


def test_a_client_steps_along_the_cross_entropy_and_back_towards_where_it_began(tiny):
    federation = tiny(
        "fedprox",
        method__mu=2.0,
        train__epochs=4,
        federation__clients=1,
        split__classes=10,
        **ONE_STEP,
    )
    task = federation.task
    shard, start = (
        task.clients.shards.train[0],
        {name: value.double() for name, value in task.initial.items()},
    )
    x, y = (
        task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1),
        task.clients.data.train_y[shard],
    )
    weights = start
    for _ in range(4):
        weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        h = torch.relu(x @ weights["encoder.first.weight"].T + weights["encoder.first.bias"])
        h = torch.relu(h @ weights["encoder.second.weight"].T + weights["encoder.second.bias"])
        logits = h @ weights["head.weight"].T + weights["head.bias"]
        ce = (logits.logsumexp(1) - logits[range(len(y)), y]).mean()
        raw = torch.autograd.grad(ce, list(weights.values()))
        pulled = [
            g + 2.0 * (w.detach() - start[n])
            for (n, w), g in zip(weights.items(), raw, strict=True)
        ]
        assert math.sqrt(sum(float(g.square().sum()) for g in pulled)) < 10, "no clipping here"
        weights = {
            n: w.detach() - 0.1 * (g + 1e-3 * w.detach())
            for (n, w), g in zip(weights.items(), pulled, strict=True)
        }
    federation.step()
    for name, w in weights.items():
        torch.testing.assert_close(federation.state[f"model/{name}"].double(), w, atol=1e-6, rtol=0)


def test_a_stronger_pull_leaves_the_clients_nearer_to_the_received_model(tiny):
    def travelled(mu):
        federation = tiny("fedprox", method__mu=mu, train__epochs=5)
        federation.step()
        start = federation.task.initial
        return sum(
            float((federation.state[f"model/{n}"] - v).square().sum()) for n, v in start.items()
        )

    far, near, nearest = (travelled(mu) for mu in (0.0, 1.0, 5.0))
    assert far > 1.1 * near > 1.2 * nearest


def test_mu_is_a_hundredth_unless_told(tiny):
    assert FedProxOptions().mu == 0.01
    one, other = tiny("fedprox").step(), tiny("fedavg").step()
    assert one.traffic == other.traffic
