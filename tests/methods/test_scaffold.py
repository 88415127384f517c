import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Reply, Up
from cafedcl.core.tensors import under
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.methods.base import NoOptions
from cafedcl.methods.fedavg import FedAvg
from cafedcl.methods.scaffold import Scaffold
from cafedcl.models import Network
from cafedcl.testing.case import aggregated


class Listening(ReferenceEngine):
    """Keeps every round's jobs and replies."""

    def __init__(self, task):
        super().__init__(task)
        self.rounds = []

    def train(self, jobs):
        jobs = list(jobs)
        results = [self.attempt(job) for job in jobs]
        assert all(isinstance(result, Reply) for result in results)
        self.rounds.append([(job, result) for job, result in zip(jobs, results, strict=True)])
        yield from results


def listening(tiny, name="scaffold", **settings):
    federation = tiny(name, **settings)
    federation.engine = Listening(federation.task)
    return federation


def array(tensor):
    return tensor.double().numpy()


class Linear:
    """A linear network with random control variates, in float64."""

    def __init__(self, visit_with, own):
        rng = np.random.default_rng(0)
        self.network = Network(nn.Linear(4, 3), nn.Linear(3, 2)).double()
        names = dict(self.network.named_parameters())
        self.c, self.own = (
            {n: rng.normal(size=p.shape) for n, p in names.items()} for _ in range(2)
        )
        anchors = {f"control/{n}": torch.from_numpy(v) for n, v in self.c.items()}
        memory = {f"control/{n}": torch.from_numpy(v) for n, v in self.own.items()} if own else {}
        self.visit = visit_with([1.0, 1.0], anchors=anchors, memory=memory)
        x, y = torch.from_numpy(rng.normal(size=(5, 4))), torch.tensor([0, 1, 1, 0, 1])
        self.batch = Batch(x, y, torch.ones(5).double())
        self.method = Scaffold(NoOptions(), 2, 3, clients=7)

    def gradients(self, term):
        terms = self.method.loss(self.network, self.batch, self.visit)
        self.network.zero_grad()
        (sum(terms.values()) if term == "all" else terms[term]).backward()
        return {name: p.grad.numpy().copy() for name, p in self.network.named_parameters()}


@pytest.mark.parametrize("own", [True, False])
def test_the_correction_adds_the_servers_variate_less_the_clients_to_the_gradient(visit_with, own):
    scene = Linear(visit_with, own)
    plain = FedAvg(NoOptions(), 2, 3).loss(scene.network, scene.batch, scene.visit)["ce"]
    names = [name for name, _ in scene.network.named_parameters()]
    slopes = dict(
        zip(names, torch.autograd.grad(plain, list(scene.network.parameters())), strict=True)
    )
    control, whole = scene.gradients("control"), scene.gradients("all")
    for name in names:
        drift = scene.c[name] - scene.own[name] if own else scene.c[name]
        np.testing.assert_allclose(control[name], drift, atol=1e-12)
        np.testing.assert_allclose(whole[name], slopes[name].numpy() + drift, atol=1e-12)


def test_in_the_first_round_clients_train_as_in_fedavg(tiny):
    ours, plain = (listening(tiny, name, train__epochs=2) for name in ("scaffold", "fedavg"))
    for federation in (ours, plain):
        federation.step()
    for (_, one), (_, other) in zip(ours.engine.rounds[0], plain.engine.rounds[0], strict=True):
        assert one.up.losses["control"] == 0
        assert one.up.model.keys() == other.up.model.keys() == ours.task.initial.keys()
        for name, value in other.up.model.items():
            assert torch.equal(one.up.model[name], value)


@pytest.mark.parametrize("twice", [False, True])
def test_control_variates_follow_from_the_weights_that_went_down_and_came_up(tiny, twice):
    """Option II: c_k⁺ = c_k − c + (θ^t − θ_k)/Σ lr, and c ← c + (1/N) Σ (c_k⁺ − c_k)."""
    decay = {"train__lr_decay": 0.5, "train__lr_decay_in_round": twice}
    federation = listening(
        tiny, federation__rounds=3, train__epochs=2, train__iterations=3, **decay
    )
    names = [name for name, _ in federation.task.network.named_parameters()]
    c = dict.fromkeys(names, 0.0)
    own, again = {}, 0
    for t in range(3):
        federation.step()
        change = dict.fromkeys(names, 0.0)
        for job, reply in federation.engine.rounds[t]:
            k, samples = job.client, len(federation.task.clients.shards.train[job.client])
            steps = math.ceil(samples / math.ceil(samples / 3))
            rates = sum(steps * 0.1 * 0.5 ** (t + (epoch if twice else 0)) for epoch in range(2))
            again += k in own
            old = own.get(k, dict.fromkeys(names, 0.0))
            own[k] = {}
            for name in names:
                down, up = job.down.tensors[f"model/{name}"], reply.up.model[name]
                own[k][name] = old[name] - c[name] + (array(down) - array(up)) / rates
                change[name] += own[k][name] - old[name]
                np.testing.assert_allclose(reply.memory[f"control/{name}"], own[k][name], atol=2e-5)
                np.testing.assert_allclose(
                    reply.up.tensors[f"control/{name}"], own[k][name] - old[name], atol=2e-5
                )
        for name in names:
            c[name] = c[name] + change[name] / 5
            np.testing.assert_allclose(
                federation.state[f"anchors/control/{name}"], c[name], atol=2e-5
            )
            assert np.abs(c[name]).max() > 1e-3
    assert again > 0, "some client came back"


def test_a_later_visit_steps_along_the_corrected_gradient(tiny):
    settings = {
        "train__iterations": 1,
        "federation__participation": 1.0,
        "federation__clients": 3,
        "split__classes": 4,
    }
    federation = listening(tiny, train__epochs=3, **settings)
    federation.run()
    job, reply = federation.engine.rounds[1][1]
    task, shard = federation.task, federation.task.clients.shards.train[1]
    x, y = (
        task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1),
        task.clients.data.train_y[shard],
    )
    weights = {name: value.double() for name, value in under("model/", job.down.tensors).items()}
    c, own = under("anchors/control/", job.down.tensors), under("control/", job.memory)
    drift = {name: c[name].double() - own[name].double() for name in weights}
    assert max(float(value.abs().max()) for value in drift.values()) > 0.01
    for _ in range(3):
        weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        h = torch.relu(x @ weights["encoder.first.weight"].T + weights["encoder.first.bias"])
        h = torch.relu(h @ weights["encoder.second.weight"].T + weights["encoder.second.bias"])
        logits = h @ weights["head.weight"].T + weights["head.bias"]
        ce = (logits.logsumexp(1) - logits[range(len(y)), y]).mean()
        raw = torch.autograd.grad(ce, list(weights.values()))
        bent = {name: g + drift[name] for name, g in zip(weights, raw, strict=True)}
        assert math.sqrt(sum(float(g.square().sum()) for g in bent.values())) < 10, (
            "no clipping here"
        )
        weights = {
            n: w.detach() - 0.1 * 0.998 * (bent[n] + 1e-3 * w.detach()) for n, w in weights.items()
        }
    for name, w in weights.items():
        torch.testing.assert_close(reply.up.model[name].double(), w, atol=1e-6, rtol=0)


def test_models_are_averaged_uniformly_and_variates_over_all_clients():
    rng = np.random.default_rng(1)
    models, changes = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 3, 2))
    ups = [
        Up(
            k,
            n,
            {"control/w": torch.from_numpy(changes[k])},
            model={"w": torch.from_numpy(models[k])},
        )
        for k, n in enumerate((1, 999))
    ]
    start = rng.normal(size=(3, 2))
    state = {"model/w": torch.zeros(3, 2).double(), "anchors/control/w": torch.from_numpy(start)}
    after = aggregated(Scaffold(NoOptions(), 2, 2, clients=8), state, ups)
    np.testing.assert_allclose(after["model/w"], models.mean(0), atol=1e-12)
    np.testing.assert_allclose(after["anchors/control/w"], start + changes.sum(0) / 8, atol=1e-12)


def test_variates_start_at_zero_and_double_the_traffic(tiny):
    federation = tiny("scaffold")
    control = under("anchors/control/", federation.state)
    assert {name: value.shape for name, value in control.items()} == {
        name: p.shape for name, p in federation.task.network.named_parameters()
    }
    assert not any(value.any() for value in control.values())
    record = federation.step()
    weights = sum(value.numel() for value in federation.task.initial.values())
    assert record.traffic["up_floats"] == record.traffic["down_floats"] == 3 * 2 * weights


def test_with_everyone_there_the_servers_variate_is_the_mean_of_the_clients(tiny):
    federation = tiny("scaffold", federation__participation=1.0)
    federation.run()
    for name, value in under("anchors/control/", federation.state).items():
        own = [array(memory[f"control/{name}"]) for memory in federation.memories.values()]
        np.testing.assert_allclose(value, np.mean(own, 0), atol=1e-5)


def test_with_momentum_a_variate_is_still_the_mean_gradient(tiny):
    """With a tiny step the gradient stays the same, whatever the momentum."""
    quiet = {"train__lr": 1e-5, "train__weight_decay": 0.0, "train__clip": 0.0}
    found = []
    for momentum in (0.0, 0.8):
        federation = listening(tiny, train__momentum=momentum, **quiet)
        federation.step()
        replies = [reply for _, reply in federation.engine.rounds[0]]
        found.append([torch.cat([v.flatten() for v in r.memory.values()]) for r in replies])
    for plain, with_momentum in zip(*found, strict=True):
        assert torch.nn.functional.cosine_similarity(plain, with_momentum, dim=0) > 0.99
        assert 0.95 < with_momentum.norm() / plain.norm() < 1.05
