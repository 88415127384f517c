import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.methods.fedtgp import FedTGP, FedTGPOptions, adaptive_margin, margin_logits
from cafedcl.models import Network

CLASSES, DIM = 5, 4
NAMES = ("table", "net/0.weight", "net/0.bias", "net/2.weight", "net/2.bias")


def method_with(**options):
    return FedTGP(FedTGPOptions(**options), CLASSES, DIM)


# the margin


def margin_by_hand(means, known, tau=100.0, literal=False):
    """min(max_c min_{c'≠c} ‖Q_c − Q_c'‖, τ); by the letter the plain maximum over pairs."""
    held = [c for c in range(len(means)) if known[c]]
    gaps = {(a, b): math.dist(means[a], means[b]) for a in held for b in held if a != b}
    if not gaps:
        return tau
    nearest = [min(gap for (a, _), gap in gaps.items() if a == c) for c in held]
    return min(max(gaps.values()) if literal else max(nearest), tau)


def margin(means, known, **options):
    return adaptive_margin(
        torch.from_numpy(means), torch.tensor(known), FedTGPOptions(**options)
    ).item()


@pytest.mark.parametrize("form", ["code", "literal"])
@pytest.mark.parametrize(
    "known", [[True] * 5, [True, False, True, True, False], [False, True, False, True, False]]
)
def test_the_margin_is_the_largest_nearest_neighbour_gap_or_by_the_letter_the_largest_gap(
    form, known
):
    means = np.random.default_rng(0).normal(size=(CLASSES, DIM))
    expected = margin_by_hand(means, known, literal=form == "literal")
    assert margin(means, known, margin=form) == pytest.approx(expected, abs=1e-9)


def test_the_two_forms_of_the_margin_differ():
    means = np.array([[0.0, 0], [1, 0], [10, 0], [14, 0]])
    assert margin(means, [True] * 4) == pytest.approx(4)
    assert margin(means, [True] * 4, margin="literal") == pytest.approx(14)


@pytest.mark.parametrize("form", ["code", "literal"])
def test_a_translation_leaves_the_margin_as_it_is(form):
    rng = np.random.default_rng(1)
    means, known = rng.normal(size=(CLASSES, DIM)), [True, True, False, True, True]
    moved = means + 30 * rng.normal(size=DIM)
    assert margin(moved, known, margin=form) == pytest.approx(
        margin(means, known, margin=form), abs=1e-9
    )


@pytest.mark.parametrize("form", ["code", "literal"])
def test_absent_classes_neither_raise_nor_lower_the_margin(form):
    means = np.random.default_rng(2).normal(size=(3, DIM))
    alone = margin(means, [True] * 3, margin=form)
    for filler in (0.0, 1e6):
        crowd = np.concatenate([means, np.full((2, DIM), filler)])
        assert margin(crowd, [True] * 3 + [False] * 2, margin=form) == pytest.approx(
            alone, abs=1e-12
        )


@pytest.mark.parametrize("form", ["code", "literal"])
def test_the_margin_is_at_most_tau_and_tau_with_a_single_class(form):
    means = 1e4 * np.random.default_rng(3).normal(size=(CLASSES, DIM))
    assert margin(means, [True] * 5, margin=form) == 100
    assert margin(means, [True] * 5, margin=form, tau=2.5) == 2.5
    assert margin(means / 1e4, [False, True, False, False, False], margin=form, tau=7.0) == 7


# the server


def forward(w):
    hidden = w["table"] @ w["net/0.weight"].T + w["net/0.bias"]
    return np.maximum(hidden, 0) @ w["net/2.weight"].T + w["net/2.bias"]


def server_loss(w, points, labels, delta):
    """Mean cross-entropy of −(‖P − P̂_c'‖ + δ·1[c' = c])."""
    made, total = forward(w), 0.0
    for p, c in zip(points, labels, strict=True):
        logits = [-(math.dist(p, made[k]) + delta * (k == c)) for k in range(len(made))]
        total += math.log(sum(math.exp(v - logits[c]) for v in logits)) / len(points)
    return total


def gradient(w, points, labels, delta):
    """Backpropagation by hand."""
    hidden = w["table"] @ w["net/0.weight"].T + w["net/0.bias"]
    open_, made = np.maximum(hidden, 0), forward(w)
    away = points[:, None] - made[None]
    distance = np.sqrt((away**2).sum(-1))
    target = np.eye(len(made))[labels]
    odds = np.exp(-(distance + delta * target))
    slope = (odds / odds.sum(1, keepdims=True) - target) / len(points)
    d_made = (slope[..., None] * away / distance[..., None]).sum(0)
    d_hidden = (d_made @ w["net/2.weight"]) * (hidden > 0)
    return {
        "table": d_hidden @ w["net/0.weight"],
        "net/0.weight": d_hidden.T @ w["table"],
        "net/0.bias": d_hidden.sum(0),
        "net/2.weight": d_made.T @ open_,
        "net/2.bias": d_made.sum(0),
    }


def ups_of(seed):
    """Clients with classes {0, 2}, {2, 3} and {0}, of very unequal sizes."""
    rng, ups = np.random.default_rng(seed), []
    for k, (held, samples) in enumerate((([0, 2], 1000), ([2, 3], 2), ([0], 30))):
        p = torch.from_numpy(2 * rng.normal(size=(len(held), DIM)).astype(np.float32))
        ups.append(Up(k, samples, {"classes": torch.tensor(held), "prototypes": p}))
    return ups


def pairs_of(ups):
    points = np.concatenate([up.tensors["prototypes"].double().numpy() for up in ups])
    labels = np.concatenate([up.tensors["classes"].numpy() for up in ups])
    means = np.stack(
        [
            points[labels == c].mean(0) if (labels == c).any() else np.zeros(DIM)
            for c in range(CLASSES)
        ]
    )
    return points, labels, margin_by_hand(means, [c in labels for c in range(CLASSES)])


def start_of(method):
    """The server's state, with anchors of an earlier round that must not matter."""
    torch.manual_seed(0)
    state = method.start(Network(nn.Identity(), nn.Identity()))
    old = {
        "anchors/prototypes": 50 * torch.randn(CLASSES, DIM),
        "anchors/known": torch.ones(CLASSES).bool(),
    }
    return {**state, **old}


def arrays(state):
    return {name: state[f"server/{name}"].double().numpy() for name in NAMES}


def test_the_servers_logits_are_negative_distances_with_a_margin_on_the_target():
    rng = np.random.default_rng(4)
    points, made, labels = (
        rng.normal(size=(3, DIM)),
        rng.normal(size=(CLASSES, DIM)),
        np.array([1, 4, 1]),
    )
    ours = margin_logits(
        *(torch.from_numpy(part) for part in (points, labels, made)),
        torch.tensor(0.3, dtype=torch.float64),
    )
    for i in range(3):
        for c in range(CLASSES):
            assert ours[i, c].item() == pytest.approx(
                -math.dist(points[i], made[c]) - 0.3 * (c == labels[i]), abs=1e-9
            )


def test_logits_at_distance_zero_have_finite_gradients():
    made = torch.randn(CLASSES, DIM).requires_grad_()
    logits = margin_logits(made.detach()[:2].clone(), torch.tensor([0, 1]), made, torch.tensor(1.0))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert made.grad.isfinite().all()


def test_the_server_follows_the_gradient_of_its_loss_in_every_entry_of_the_table():
    method, ups = method_with(epochs=1, lr=1.0, batch=100), ups_of(0)
    state = start_of(method)
    before, after, (points, labels, delta) = (
        arrays(state),
        arrays(method.update(state, ups)),
        pairs_of(ups),
    )
    assert 0.1 < delta < 100
    for index in np.ndindex(CLASSES, DIM):
        step = np.zeros((CLASSES, DIM))
        step[index] = 1e-6
        up, down = (
            server_loss({**before, "table": before["table"] + s}, points, labels, delta)
            for s in (step, -step)
        )
        moved = before["table"][index] - after["table"][index]
        assert moved == pytest.approx((up - down) / 2e-6, abs=2e-6)
    unseen = np.abs(before["table"] - after["table"])[[1, 4]]
    assert unseen.max() > 1e-3, "classes nobody uploaded act as negatives"


def test_one_epoch_on_one_batch_is_one_step_of_plain_sgd():
    method, ups = method_with(epochs=1, lr=0.3, batch=5), ups_of(1)
    state = start_of(method)
    w = arrays(state)
    slopes = gradient(w, *pairs_of(ups))
    assert all(np.abs(slope).max() > 1e-3 for slope in slopes.values())
    after = method.update(state, ups)
    for name in NAMES:
        np.testing.assert_allclose(after[f"server/{name}"], w[name] - 0.3 * slopes[name], atol=1e-5)


def test_the_network_persists_over_epochs_and_rounds_and_its_optimiser_keeps_nothing():
    method = method_with(epochs=3, lr=0.2, batch=5)
    state = start_of(method)
    w = arrays(state)
    for seed in (2, 3):
        ups = ups_of(seed)
        state = {**state, **method.update(state, ups)}
        for _ in range(3):
            w = {name: w[name] - 0.2 * slope for name, slope in gradient(w, *pairs_of(ups)).items()}
        for name in NAMES:
            np.testing.assert_allclose(state[f"server/{name}"], w[name], atol=2e-5)


def test_every_batch_is_a_step():
    """Three equal uploads of one class in batches of two: steps on two, then on one, which are all
    the same.
    """
    method = method_with(epochs=2, lr=0.2, batch=2, tau=3.0)
    rows = torch.randn(1, DIM, generator=torch.Generator().manual_seed(5))
    ups = [Up(k, 10, {"classes": torch.tensor([1]), "prototypes": rows}) for k in range(3)]
    state = start_of(method)
    w = arrays(state)
    points, labels, _ = pairs_of(ups)
    for _ in range(4):
        w = {
            name: w[name] - 0.2 * slope
            for name, slope in gradient(w, points[:1], labels[:1], 3.0).items()
        }
    after = method.update(state, ups)
    for name in NAMES:
        np.testing.assert_allclose(after[f"server/{name}"], w[name], atol=2e-5)


@pytest.mark.parametrize("batch", [1, 2, 3, 10])
def test_a_round_of_the_server_is_torchs_own_sgd_over_the_pairs_in_drawn_order(batch):
    method, ups = method_with(epochs=20, lr=0.1, batch=batch), ups_of(4)
    state = start_of(method)
    w = {name: state[f"server/{name}"].clone().requires_grad_() for name in NAMES}
    points, labels, delta = (torch.as_tensor(part) for part in pairs_of(ups))
    torch.manual_seed(9)
    after = method.update(state, ups)
    torch.manual_seed(9)
    method.server()
    sgd = torch.optim.SGD(w.values(), 0.1)
    for _ in range(20):
        for rows in torch.randperm(5).split(batch):
            hidden = nn.functional.linear(w["table"], w["net/0.weight"], w["net/0.bias"]).relu()
            made = nn.functional.linear(hidden, w["net/2.weight"], w["net/2.bias"])
            away = (points[rows].float()[:, None] - made).norm(dim=-1)
            target = torch.eye(CLASSES)[labels[rows]]
            loss = nn.functional.cross_entropy(-(away + delta * target), labels[rows])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    for name in NAMES:
        np.testing.assert_allclose(after[f"server/{name}"], w[name].detach(), atol=1e-5)


def test_the_order_of_the_pairs_is_drawn_at_random():
    method, ups = method_with(epochs=1, lr=0.2, batch=1), ups_of(0)
    results = []
    for seed in (1, 1, 2):
        state = start_of(method)
        torch.manual_seed(seed)
        results.append(method.update(state, ups)["server/table"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_prototypes_for_all_classes_are_the_networks_output():
    method = method_with(epochs=4)
    after = method.update(start_of(method), ups_of(0))
    np.testing.assert_allclose(after["anchors/prototypes"], forward(arrays(after)), atol=1e-5)
    assert after["anchors/known"].all()
    assert not any(value.requires_grad for value in after.values())


def test_a_hundred_epochs_lower_the_servers_loss():
    method, ups = method_with(epochs=100, lr=0.1, batch=2), ups_of(0)
    state = start_of(method)
    before, after = (
        server_loss(arrays(when), *pairs_of(ups)) for when in (state, method.update(state, ups))
    )
    assert after < 0.8 * before


# the client


def test_the_client_minimises_cross_entropy_and_ten_times_the_mse(visit_with):
    rng = np.random.default_rng(6)
    h, y, p = (
        rng.normal(size=(6, DIM)),
        np.array([0, 0, 1, 2, 2, 4]),
        rng.normal(size=(CLASSES, DIM)),
    )
    method = method_with()
    network = Network(nn.Identity(), method.head()).double()
    anchors = {"prototypes": torch.from_numpy(p), "known": torch.ones(CLASSES).bool()}
    visit = visit_with(torch.ones(CLASSES).double(), anchors=anchors)
    visit.scratch.update(method.scratch(visit.client))
    x = torch.from_numpy(h).requires_grad_()
    terms = method.loss(network, Batch(x, torch.from_numpy(y), torch.ones(6).double()), visit)
    assert terms["proto"].item() == pytest.approx(10 * np.mean((h - p[y]) ** 2), abs=1e-12)
    (slope,) = torch.autograd.grad(terms["proto"], x)
    np.testing.assert_allclose(slope, 10 * 2 * (h - p[y]) / (6 * DIM), atol=1e-12)


def test_the_first_round_is_cross_entropy_alone_and_the_second_is_not(tiny):
    first, second = tiny("fedtgp", federation__participation=1.0).run()
    assert first.loss["proto"] == 0
    assert second.loss["proto"] > 1e-3


def test_uploads_are_exact_means_of_a_separate_pass_over_the_trained_model(tiny):
    federation = tiny("fedtgp", train__epochs=2)
    (reply,) = federation.train(Down(0, federation.method.broadcast(federation.state)), [2])
    task, shard = federation.task, federation.task.clients.shards.train[2]
    w = {name: value.double().numpy() for name, value in reply.memory.items()}
    h = task.clients.data.images(task.clients.data.train_x[shard]).double().flatten(1).numpy()
    for layer in ("encoder.first", "encoder.second"):
        h = np.maximum(h @ w[f"model/{layer}.weight"].T + w[f"model/{layer}.bias"], 0)
    y, up = task.clients.data.train_y[shard].numpy(), reply.up.tensors
    assert up.keys() == {"classes", "prototypes"}
    assert not reply.up.model
    assert up["classes"].tolist() == sorted(set(y.tolist()))
    for p, c in zip(up["prototypes"], up["classes"].tolist(), strict=True):
        np.testing.assert_allclose(p, h[y == c].mean(0), atol=1e-5)


def test_the_servers_network_never_travels_but_persists(tiny):
    federation = tiny("fedtgp")
    before = {name: value for name, value in federation.state.items() if name.startswith("server/")}
    assert before.keys() == {f"server/{name}" for name in NAMES}
    assert before["server/table"].shape == (10, 16)
    record = federation.step()
    assert federation.method.broadcast(federation.state).keys() == {
        "anchors/prototypes",
        "anchors/known",
    }
    assert record.traffic["up_floats"] == 3 * 2 * 16
    assert record.traffic["down_floats"] == 3 * 10 * 16
    middle = dict(federation.state)
    assert not any(torch.equal(middle[name], value) for name, value in before.items())
    federation.step()
    assert not any(torch.equal(federation.state[name], middle[name]) for name in before)


def test_the_nearest_trained_prototype_is_predicted_among_all_classes():
    rng = np.random.default_rng(7)
    method, x, p = method_with(), rng.normal(size=(30, DIM)), rng.normal(size=(CLASSES, DIM))
    anchors = {"prototypes": torch.from_numpy(p), "known": torch.ones(CLASSES).bool()}
    scores = method.scores(
        Network(nn.Identity(), method.head().double()), torch.from_numpy(x), anchors, {}
    )
    assert scores.argmax(1).tolist() == [
        int(np.argmin([math.dist(row, q) for q in p])) for row in x
    ]


def test_the_defaults_are_those_of_the_authors_code():
    expected = {"lam": 10.0, "prototypes": "literal", "tau": 100.0, "margin": "code"}
    assert FedTGPOptions() == FedTGPOptions(**expected, epochs=100, lr=0.01, batch=10)
