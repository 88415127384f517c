import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.methods.fedproc import FedProc, FedProcOptions
from cafedcl.models import Network, build_encoder
from cafedcl.testing.case import aggregated

CLASSES, DIM, WIDTH = 4, 5, 3


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def nll(logits, y):
    return float(
        np.mean(
            [
                math.log(sum(math.exp(v - row[c]) for v in row))
                for row, c in zip(logits, y, strict=True)
            ]
        )
    )


class Scene:
    """A batch and centres of which the last is still zero, in float64."""

    def __init__(self, visit_with):
        rng = np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(6, DIM)), np.array([0, 0, 1, 2, 3, 2])
        self.centres = 0.4 * rng.normal(size=(CLASSES, WIDTH))
        self.centres[3] = 0
        self.visit_with = visit_with

    def method(self, **options):
        torch.manual_seed(0)
        method = FedProc(FedProcOptions(dim=WIDTH, **options), CLASSES, DIM)
        return method, Network(nn.Identity(), method.head()).double()

    def batch(self):
        return Batch(torch.from_numpy(self.x), torch.from_numpy(self.y), torch.ones(6).double())

    def terms(self, t, progress, **options):
        """Return the loss, what its two parts are by hand, and the network."""
        method, network = self.method(**options)
        anchors = {
            "prototypes": torch.from_numpy(self.centres),
            "known": torch.ones(CLASSES).bool(),
        }
        visit = self.visit_with(
            torch.ones(CLASSES).double(),
            anchors=anchors,
            round=t,
            progress=torch.tensor(progress, dtype=torch.float64),
        )
        terms = method.loss(network, self.batch(), visit)
        w = {name: p.detach().numpy() for name, p in network.head.named_parameters()}
        h = np.maximum(self.x @ w["project.0.weight"].T + w["project.0.bias"], 0)
        z = unit(h @ w["project.2.weight"].T + w["project.2.bias"])
        ce = nll(z @ w["classify.weight"].T + w["classify.bias"], self.y)
        directions = np.concatenate([unit(self.centres[:3]), np.zeros((1, WIDTH))])
        return terms, ce, nll(z @ directions.T / options.get("tau", 1.0), self.y), network, z


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with)


@pytest.mark.parametrize(("t", "share"), [(1, 0.01), (25, 0.25), (99, 0.99)])
def test_cross_entropy_takes_over_from_the_contrast_as_the_rounds_go_by(scene, t, share):
    terms, ce, gpc, _, _ = scene.terms(t, t / 100)
    expected = {"ce": share * ce, "gpc": (1 - share) * gpc}
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, abs=1e-12)


def test_round_0_is_cross_entropy_alone(scene):
    terms, ce, _, network, _ = scene.terms(0, 0.0)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {"ce": ce, "gpc": 0}, abs=1e-12
    )
    whole = torch.autograd.grad(sum(terms.values()), list(network.parameters()))
    terms, *_, network, _ = scene.terms(0, 0.0)
    alone = torch.autograd.grad(terms["ce"], list(network.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(whole, alone, strict=True))
    assert any(gradient.any() for gradient in alone)


def test_a_run_weighs_cross_entropy_by_the_share_of_rounds_done(tiny):
    federation = tiny("fedproc", federation__rounds=4)
    seen, loss = [], federation.method.loss

    def listen(model, batch, visit):
        terms = loss(model, batch, visit)
        z = federation.method.embed(model, batch.x)
        ce = nn.functional.cross_entropy(model.part("classify")(z), batch.y)
        seen.append((int(visit.round), float(terms["ce"] / ce)))
        return terms

    federation.method.loss = listen
    federation.run()
    shares = {0: 1.0, 1: 0.25, 2: 0.5, 3: 0.75}
    assert {t for t, _ in seen} == shares.keys()
    assert all(share == pytest.approx(shares[t], rel=1e-5) for t, share in seen)


def test_a_centre_that_is_still_zero_takes_part_in_the_softmax(scene):
    _, _, gpc, _, z = scene.terms(1, 0.0)
    without = nll(z @ unit(scene.centres[:3]).T, np.minimum(scene.y, 2))
    terms, *_ = scene.terms(1, 0.0)
    assert terms["gpc"].item() == pytest.approx(gpc, abs=1e-12)
    assert abs(gpc - without) > 0.1


def test_a_zero_centre_leaves_finite_gradients(scene):
    terms, *_, network, _ = scene.terms(1, 0.3)
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


def test_the_temperature_is_an_addition_of_ours_and_off_by_default(scene):
    terms, _, gpc, _, _ = scene.terms(1, 0.0, tau=0.2)
    assert terms["gpc"].item() == pytest.approx(gpc, abs=1e-12)
    assert FedProcOptions() == FedProcOptions(dim=256, tau=1.0)


def test_z_is_a_unit_vector_before_the_classifier(scene):
    method, network = scene.method()
    *_, z = scene.terms(1, 0.0)
    np.testing.assert_allclose(method.embed(network, scene.batch().x).detach(), z, atol=1e-12)
    w, b = (p.detach().numpy() for p in network.part("classify").parameters())
    scores = method.scores(network, scene.batch().x, {}, {})
    np.testing.assert_allclose(scores.detach(), z @ w.T + b, atol=1e-12)


@pytest.mark.parametrize(("classes", "least"), [(10, 1.461), (100, 3.622)])
def test_at_its_own_one_of_orthogonal_centres_the_contrast_stays_at_its_published_floor(
    visit_with, classes, least
):
    method = FedProc(FedProcOptions(dim=classes), classes, classes)
    network = Network(nn.Identity(), method.head()).double()
    method.embed = lambda model, x: x
    anchors = {"prototypes": 0.3 * torch.eye(classes).double(), "known": torch.ones(classes).bool()}
    visit = visit_with(torch.ones(classes).double(), anchors=anchors, round=1)
    batch = Batch(torch.eye(classes).double(), torch.arange(classes), torch.ones(classes).double())
    gpc = method.loss(network, batch, visit)["gpc"].item()
    assert gpc == pytest.approx(math.log(1 + (classes - 1) * math.exp(-1)), abs=1e-9)
    assert gpc == pytest.approx(least, abs=5e-4)


def ups_of(rng):
    """Three clients with classes {0, 2}, {2} and {0, 1}; class 3 is nobody's."""
    held, counts = ([0, 2], [2], [0, 1]), ([5.0, 1.0], [9.0], [20.0, 4.0])
    ups = []
    for k in range(3):
        p = rng.normal(size=(len(held[k]), WIDTH)).astype(np.float32)
        tensors = {"classes": torch.tensor(held[k]), "prototypes": torch.from_numpy(p)}
        ups.append(Up(k, int(sum(counts[k])), {**tensors, "counts": torch.tensor(counts[k])}))
    return ups


def test_centres_are_means_by_counts_and_a_class_nobody_reported_keeps_its_own():
    method, rng = FedProc(FedProcOptions(dim=WIDTH), CLASSES, DIM), np.random.default_rng(1)
    state = method.start(Network(nn.Identity(), nn.Identity()))
    assert state["anchors/prototypes"].shape == (CLASSES, WIDTH)
    assert not state["anchors/prototypes"].any()
    first = method.update(state, ups_of(rng))
    assert not first["anchors/prototypes"][3].any(), (
        "a class nobody has ever reported stays at zero"
    )
    state = {**first, "anchors/prototypes": first["anchors/prototypes"].clone()}
    state["anchors/prototypes"][3] = torch.tensor([0.1, 0.2, 0.3])
    ups = ups_of(rng)
    after = method.update(state, ups)["anchors/prototypes"]
    p = [up.tensors["prototypes"].double().numpy() for up in ups]
    np.testing.assert_allclose(after[0], (5 * p[0][0] + 20 * p[2][0]) / 25, atol=1e-6)
    np.testing.assert_allclose(after[1], p[2][1], atol=1e-6)
    np.testing.assert_allclose(after[2], (1 * p[0][1] + 9 * p[1][0]) / 10, atol=1e-6)
    assert torch.equal(after[3], state["anchors/prototypes"][3])


def test_clients_send_the_mean_unit_z_of_their_trained_model_and_their_counts(tiny):
    federation = tiny("fedproc")
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [2])
    w = {name: value.double().numpy() for name, value in reply.up.model.items()}
    task, shard = federation.task, federation.task.clients.shards.train[2]
    h = task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1).numpy()
    for layer in ("encoder.first", "encoder.second", "head.project.0", "head.project.2"):
        h = h @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        h = h if layer == "head.project.2" else np.maximum(h, 0)
    z, y, up = unit(h), task.clients.data.train_y[shard].numpy(), reply.up.tensors
    assert up["classes"].tolist() == sorted(set(y.tolist()))
    assert up["counts"].tolist() == [int((y == c).sum()) for c in up["classes"].tolist()]
    for p, c in zip(up["prototypes"], up["classes"].tolist(), strict=True):
        np.testing.assert_allclose(p, z[y == c].mean(0), atol=1e-5)


def test_centres_over_a_round_are_the_means_over_all_participants_images(tiny):
    federation = tiny(
        "fedproc", federation__clients=4, split__classes=4, federation__participation=1.0
    )
    down = Down(0, federation.method.broadcast(federation.state))
    sums, totals = np.zeros((10, 256)), np.zeros(10)
    ups = []
    for client in range(4):
        (reply,) = federation.train(down, [client])
        task, shard = federation.task, federation.task.clients.shards.train[client]
        with torch.no_grad():
            h = task.network.encoder(task.clients.data.images(task.clients.data.train_x[shard]))
            z = unit(task.network.part("project")(h).double().numpy())
        np.add.at(sums, task.clients.data.train_y[shard].numpy(), z)
        np.add.at(totals, task.clients.data.train_y[shard].numpy(), 1)
        ups.append(reply.up)
    after = aggregated(federation.method, federation.state, ups)["anchors/prototypes"]
    np.testing.assert_allclose(after, sums / totals[:, None], atol=1e-5)


def test_what_travels_is_the_model_256_numbers_per_class_and_the_counts(tiny):
    federation = tiny("fedproc")
    record = federation.step()
    weights = sum(value.numel() for value in federation.task.initial.values())
    assert record.traffic["up_floats"] == 3 * (weights + 256 * 2 + 2)
    assert record.traffic["down_floats"] == 3 * (weights + 256 * 10)


def test_for_resnet18_and_ten_classes_a_client_sends_the_published_number_of_floats():
    method = FedProc(FedProcOptions(), 10, 512)
    network = Network(build_encoder("resnet18", (3, 32, 32), 1.0), method.head())
    per_class = sum(math.prod(field.shape) for field in method.fields(network).values())
    assert sum(p.numel() for p in network.parameters()) + 10 * per_class == 11_567_956
