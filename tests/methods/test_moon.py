import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Reply
from cafedcl.core.tensors import under
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.methods import checked
from cafedcl.methods.base import NoOptions
from cafedcl.methods.fedavg import FedAvg
from cafedcl.methods.moon import Moon, MoonOptions
from cafedcl.models import Network, build_encoder

CLASSES, INPUTS, DIM, WIDTH = 3, 6, 5, 4
OPTIONS = MoonOptions(mu=0.7, tau=0.3, dim=WIDTH)


def weights_of(seed):
    """Random weights of a linear encoder and MOON's head, as numpy arrays."""
    rng = np.random.default_rng(seed)
    shapes = {
        "encoder.weight": (DIM, INPUTS),
        "encoder.bias": (DIM,),
        "head.project.0.weight": (DIM, DIM),
        "head.project.0.bias": (DIM,),
        "head.project.2.weight": (WIDTH, DIM),
        "head.project.2.bias": (WIDTH,),
        "head.classify.weight": (CLASSES, WIDTH),
        "head.classify.bias": (CLASSES,),
    }
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def project(w, x):
    h = x @ w["encoder.weight"].T + w["encoder.bias"]
    h = np.maximum(h @ w["head.project.0.weight"].T + w["head.project.0.bias"], 0)
    return h @ w["head.project.2.weight"].T + w["head.project.2.bias"]


def cosine(a, b):
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def contrast(z, z_glob, z_prev, weight):
    """mean_i −log e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}), with
    weighted samples.
    """
    total = 0.0
    for i in range(len(z)):
        near = math.exp(cosine(z[i], z_glob[i]) / OPTIONS.tau)
        far = math.exp(cosine(z[i], z_prev[i]) / OPTIONS.tau)
        total -= weight[i] * math.log(near / (near + far)) / sum(weight)
    return total


def tensors(arrays, prefix=""):
    return {prefix + name: torch.from_numpy(value) for name, value in arrays.items()}


class Scene:
    """A client that has trained before, with a network of known weights in float64."""

    def __init__(self, visit_with, received, previous):
        rng = np.random.default_rng(9)
        self.now, self.received, self.previous = (
            weights_of(1),
            weights_of(received),
            weights_of(previous),
        )
        self.x, self.y, self.weight = (
            rng.normal(size=(4, INPUTS)),
            np.array([0, 2, 1, 2]),
            np.array([1, 1, 0.5, 0]),
        )
        self.method = Moon(OPTIONS, CLASSES, DIM)
        self.network = Network(nn.Linear(INPUTS, DIM), self.method.head()).double()
        self.network.load_state_dict(tensors(self.now))
        memory = tensors(self.previous, "previous/")
        self.visit = visit_with([1.0] * CLASSES, received=tensors(self.received), memory=memory)
        self.batch = Batch(*(torch.from_numpy(part) for part in (self.x, self.y, self.weight)))


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with, 2, 3)


def test_the_loss_is_cross_entropy_and_the_contrast_of_received_and_previous_projection(scene):
    z, z_glob, z_prev = (project(w, scene.x) for w in (scene.now, scene.received, scene.previous))
    logits = z @ scene.now["head.classify.weight"].T + scene.now["head.classify.bias"]
    ce = 0.0
    for row, c, w in zip(logits, scene.y, scene.weight, strict=True):
        ce += w * math.log(sum(math.exp(v - row[c]) for v in row)) / scene.weight.sum()
    terms = checked.loss(scene.method, scene.network, scene.batch, scene.visit)
    expected = {"ce": ce, "moon": 0.7 * contrast(z, z_glob, z_prev, scene.weight)}
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, abs=1e-10)


def test_the_gradient_in_z_is_that_of_finite_differences(scene):
    seen = []

    def keep(module, inputs, z):
        if z.requires_grad:
            z.retain_grad()
            seen.append(z)

    scene.network.part("project").register_forward_hook(keep)
    checked.loss(scene.method, scene.network, scene.batch, scene.visit)["moon"].backward()
    (z,) = seen
    values, z_glob, z_prev = (
        project(w, scene.x) for w in (scene.now, scene.received, scene.previous)
    )
    expected = np.zeros_like(values)
    for index in np.ndindex(values.shape):
        step = np.zeros_like(values)
        step[index] = 1e-5
        up, down = (contrast(values + s, z_glob, z_prev, scene.weight) for s in (step, -step))
        expected[index] = 0.7 * (up - down) / 2e-5
    np.testing.assert_allclose(z.grad, expected, atol=1e-8)
    assert np.abs(expected).max() > 0.01


def test_where_previous_and_received_model_agree_the_contrast_is_log_2_without_gradient(visit_with):
    scene = Scene(visit_with, 2, 2)
    term = checked.loss(scene.method, scene.network, scene.batch, scene.visit)["moon"]
    assert term.item() == pytest.approx(0.7 * math.log(2), abs=1e-12)
    term.backward()
    gradients = [p.grad for p in scene.network.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.abs().max() < 1e-12 for gradient in gradients)


def test_the_head_is_two_linear_layers_to_256_and_a_classifier_on_them():
    project, classify = Moon(MoonOptions(), 10, 64).head().children()
    first, middle, last = project
    assert isinstance(middle, nn.ReLU)
    assert [tuple(layer.weight.shape) for layer in (first, last, classify)] == [
        (64, 64),
        (256, 64),
        (10, 256),
    ]
    assert all(layer.bias is not None for layer in (first, last, classify))


def test_the_classifier_sees_z_as_it_is(scene):
    z = project(scene.now, scene.x)
    logits = z @ scene.now["head.classify.weight"].T + scene.now["head.classify.bias"]
    assert np.abs(np.linalg.norm(z, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(
        scene.method.scores(scene.network, scene.batch.x, {}, {}).detach(), logits, atol=1e-12
    )
    np.testing.assert_allclose(
        scene.method.embed(scene.network, scene.batch.x).detach(), z, atol=1e-12
    )


def test_a_first_visit_has_no_contrast(scene, visit_with):
    visit = visit_with([1.0] * CLASSES, received=tensors(scene.received))
    assert checked.loss(scene.method, scene.network, scene.batch, visit).keys() == {"ce"}


def test_round_0_is_fedavg_on_the_same_network(tiny):
    moon, plain = tiny("moon", federation__rounds=2), tiny("moon", federation__rounds=2)
    plain.method = FedAvg(NoOptions(), 10, plain.method.dim)
    plain.task = replace(plain.task, method=plain.method)
    plain.engine = ReferenceEngine(plain.task)
    for federation in (moon, plain):
        federation.step()
    assert all(torch.equal(moon.state[name], value) for name, value in plain.state.items())
    assert moon.history[0].loss == plain.history[0].loss
    for federation in (moon, plain):
        federation.step()
    assert not all(torch.equal(moon.state[name], value) for name, value in plain.state.items())


class Listening(ReferenceEngine):
    """Keeps every round's jobs and replies."""

    def __init__(self, task):
        super().__init__(task)
        self.jobs, self.replies = [], []

    def train(self, jobs):
        jobs = list(jobs)
        self.jobs.append({job.client: job for job in jobs})
        results = [self.attempt(job) for job in jobs]
        assert all(isinstance(result, Reply) for result in results)
        self.replies.append({result.up.client: result for result in results})
        yield from results


def listening(tiny, **settings):
    federation = tiny("moon", **settings)
    federation.engine = Listening(federation.task)
    return federation


def test_the_previous_model_is_what_the_client_trained_last_however_long_ago(tiny):
    federation = listening(tiny, federation__rounds=5, federation__participation=0.4)
    federation.run()
    last, gaps = {}, 0
    for t, (jobs, replies) in enumerate(
        zip(federation.engine.jobs, federation.engine.replies, strict=True)
    ):
        for client, job in jobs.items():
            previous = under("previous/", job.memory)
            if client not in last:
                assert previous == {}
                continue
            then, trained = last[client]
            gaps += t - then > 1
            assert previous.keys() == trained.keys()
            assert all(torch.equal(previous[name], trained[name]) for name in trained)
            sent = under("model/", job.down.tensors)
            assert not all(torch.equal(previous[name], sent[name]) for name in sent)
        last |= {client: (t, reply.up.model) for client, reply in replies.items()}
    assert gaps > 0


def test_the_previous_model_never_travels(tiny):
    federation = listening(tiny)
    record = federation.run()[-1]
    for reply in federation.engine.replies[-1].values():
        assert not any("previous" in name for name in (*reply.up.model, *reply.up.tensors))
        assert reply.memory.keys() == {f"previous/{name}" for name in federation.task.initial}
    weights = sum(value.numel() for value in federation.task.initial.values())
    assert weights == 64 * 50 + 50 + 50 * 16 + 16 + 16 * 16 + 16 + 256 * 16 + 256 + 256 * 10 + 10
    assert record.traffic["up_floats"] == record.traffic["down_floats"] == 3 * weights


@pytest.mark.parametrize("name", ["moon", "fedproc"])
def test_models_are_averaged_by_their_samples(tiny, name):
    federation = tiny(name)
    record = federation.step()
    sizes = federation.task.clients.shards.counts[record.participants].sum(1).double().numpy()
    again = tiny(name)
    again.engine = Listening(again.task)
    again.step()
    replies = again.engine.replies[0].values()
    assert len(set(sizes)) > 1
    for entry, value in federation.state.items():
        if entry.startswith("model/"):
            weight = entry.removeprefix("model/")
            expected = np.average(
                [reply.up.model[weight].double().numpy() for reply in replies], 0, sizes
            )
            np.testing.assert_allclose(value, expected, atol=1e-6)


def test_resnet18_with_the_head_has_the_published_number_of_weights():
    encoder, head = build_encoder("resnet18", (3, 32, 32), 1.0), Moon(MoonOptions(), 10, 512).head()
    number = sum(p.numel() for p in Network(encoder, head).parameters())
    assert number == 11_168_832 + 512**2 + 512 + 256 * 512 + 256 + 256 * 10 + 10 == 11_565_386


def test_the_weight_is_1_and_5_for_cifar10(tiny):
    assert MoonOptions() == MoonOptions(mu=1.0, tau=0.5, dim=256)
    assert tiny("moon:cifar10").method.options == MoonOptions(mu=5.0, tau=0.5, dim=256)
