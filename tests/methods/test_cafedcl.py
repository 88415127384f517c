import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Down, Up
from cafedcl.core.errors import CafedclError
from cafedcl.methods import checked
from cafedcl.methods._readings import CAFedCLOptions
from cafedcl.methods.cafedcl import CAFedCL
from cafedcl.models import Network
from cafedcl.task.resolve import resolve
from cafedcl.testing.case import aggregated

CLASSES, DIM = 4, 5
NETWORK = Network(nn.Identity(), nn.Identity())


def unit(x):
    x = np.asarray(x, dtype=float)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def method_with(**options):
    return CAFedCL(CAFedCLOptions(**options), CLASSES, DIM)


class Scene:
    """A client with classes 0, 2 and 3 of four, a linear encoder and random unit anchors, in
    float64.
    """

    def __init__(self, visit_with, t=0, known=(True,) * CLASSES):
        rng = np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(7, 6)), np.array([0, 0, 2, 2, 2, 3, 0])
        self.p = unit(rng.normal(size=(CLASSES, DIM)))
        self.weight = rng.normal(size=(DIM, 6))
        self.visit_with, self.t, self.known = visit_with, t, known
        self.batch = Batch(
            torch.from_numpy(self.x), torch.from_numpy(self.y), torch.ones(7).double()
        )

    def network(self, method):
        torch.manual_seed(0)
        encoder = nn.Linear(6, DIM, bias=False).double()
        encoder.weight.data = torch.from_numpy(self.weight.copy())
        return Network(encoder, method.head().double())

    def visit(self, method, **parts):
        anchors = {"prototypes": torch.from_numpy(self.p), "known": torch.tensor(self.known)}
        counts = torch.tensor([3.0, 0.0, 3.0, 1.0]).double()
        visit = self.visit_with(counts, anchors=anchors, round=self.t, **parts)
        visit.scratch.update(method.scratch(visit.client))
        return visit

    def run(self, **options):
        """Return the terms of the loss and the encoder's gradient."""
        method = method_with(**options)
        network = self.network(method)
        terms = method.loss(network, self.batch, self.visit(method))
        sum(terms.values()).backward()
        return {name: term.item() for name, term in terms.items()}, network.encoder.weight.grad


@pytest.fixture
def scene(visit_with):
    return Scene(visit_with)


# Eq. 13: the objective


def test_the_objective_is_i2p_align_and_geometry(scene):
    raw = scene.x @ scene.weight.T
    z, y, p = unit(raw), scene.y, scene.p
    logits = np.exp(z @ p.T / 0.2)
    i2p = -np.mean(np.log(logits[range(7), y] / logits.sum(1)))
    q = {c: unit(z[y == c].mean(0)) for c in (0, 2, 3)}
    align = sum(np.sum((q[c] - p[c]) ** 2) for c in q)
    pairs = [
        (a, b) for a in range(CLASSES) for b in range(CLASSES) if a != b and (a in q or b in q)
    ]
    geo = np.mean([max(0, 1.5 - np.linalg.norm(q.get(a, p[a]) - q.get(b, p[b]))) for a, b in pairs])
    terms, _ = scene.run(tau=0.2, lam_align=0.3, align_warmup=0, lam_geo=0.7, margin=1.5)
    assert geo > 0
    assert terms == pytest.approx({"i2p": i2p, "align": 0.3 * align, "geo": 0.7 * geo}, abs=1e-12)


@pytest.mark.parametrize("features", ["literal", "projected"])
def test_distillation_holds_features_where_the_received_model_has_them(scene, features):
    options = {"features": features, "lam_align": 0.0, "lam_geo": 0.0, "lam_distill": 0.6}
    method = method_with(**options)
    network = scene.network(method)
    rng = np.random.default_rng(1)
    received = {
        name: rng.normal(size=tuple(value.shape)) for name, value in network.state_dict().items()
    }
    visit = scene.visit(
        method, received={name: torch.from_numpy(value) for name, value in received.items()}
    )
    terms = checked.loss(method, network, scene.batch, visit)
    z, before = scene.x @ scene.weight.T, scene.x @ received["encoder.weight"].T
    if features == "projected":
        layer = network.head["project"]
        z = z @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        before = before @ received["head.project.weight"].T + received["head.project.bias"]
    expected = 0.6 * np.mean(1 - np.sum(unit(z) * unit(before), axis=1))
    assert terms.keys() == {"i2p", "distill"}
    assert terms["distill"].item() == pytest.approx(expected, abs=1e-12)
    assert expected > 0.1


def test_distillation_of_features_before_the_relu_is_refused():
    with pytest.raises(CafedclError, match=r"lam_distill > 0: features = pre-relu"):
        resolve({"method": {"name": "cafedcl", "lam_distill": 0.3, "features": "pre-relu"}})


@pytest.mark.parametrize(("t", "share"), [(0, 0.25), (2, 0.75), (3, 1.0), (50, 1.0)])
def test_align_warms_up_linearly(visit_with, t, share):
    full, _ = Scene(visit_with).run(align_warmup=0)
    warm, _ = Scene(visit_with, t).run(align_warmup=4)
    assert warm["align"] == pytest.approx(share * full["align"], abs=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "literal"])
def test_geometry_by_the_letter_leaves_the_gradients_of_no_geometry(scene, reduction):
    letter, gradient = scene.run(geo="literal", margin=2.0, geo_reduction=reduction)
    without, same = scene.run(lam_geo=0.0)
    assert letter["geo"] > 0
    assert "geo" not in without
    assert torch.equal(gradient, same)


@pytest.mark.parametrize("reading", ["batch", "cross"])
def test_the_other_readings_of_geometry_move_the_encoder(scene, reading):
    _, gradient = scene.run(geo=reading, margin=2.0)
    _, without = scene.run(lam_geo=0.0)
    assert gradient.isfinite().all()
    assert not torch.allclose(gradient, without)


def test_geometry_on_the_server_costs_the_client_nothing(scene):
    terms, gradient = scene.run(geo="server")
    assert "geo" not in terms
    assert torch.equal(gradient, scene.run(lam_geo=0.0)[1])


def test_a_classifier_adds_plain_cross_entropy(scene):
    method = method_with(classifier="ce")
    network = scene.network(method)
    logits = network.part("classify")(network.encoder(scene.batch.x))
    terms, _ = scene.run(classifier="ce")
    assert terms["ce"] == pytest.approx(
        nn.functional.cross_entropy(logits, scene.batch.y).item(), abs=1e-12
    )


@pytest.mark.parametrize("geo", ["batch", "cross", "server", "literal"])
def test_before_any_anchor_is_known_the_loss_and_its_gradient_are_finite(visit_with, geo):
    terms, gradient = Scene(visit_with, known=(False,) * CLASSES).run(init="means", geo=geo)
    assert terms["i2p"] == 0
    assert terms["align"] == 0
    assert gradient.isfinite().all()


# Eqs. 1, 9 and 11: what goes up


def embedding(scene):
    """Training and validation features under either model, all different."""
    rng = np.random.default_rng(9)
    parts = {}
    for part, y in (("train", scene.y), ("validation", np.array([0, 2, 2]))):
        for weights in ("trained", "received"):
            parts[part, weights] = (
                torch.from_numpy(3 * rng.normal(size=(len(y), DIM))),
                torch.from_numpy(y),
            )
    return parts


@pytest.mark.parametrize("judged", ["trained", "received"])
def test_the_summary_is_prototypes_and_clipped_confidences_of_the_classes_held(scene, judged):
    parts = embedding(scene)
    z, y = (t.numpy() for t in parts["train", "trained"])
    v, vy = (t.numpy() for t in parts["validation", judged])
    prototypes = [unit(z)[y == c].mean(0) for c in (0, 2, 3)]
    shares = np.exp(unit(v) @ scene.p.T / 0.1)
    shares /= shares.sum(1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(1) / math.log(CLASSES)
    u = np.array([entropy[vy == 0].mean(), entropy[vy == 2].mean(), 0.9])
    data = np.array([3 / 6, 3 / 3, 1 / 50])
    expected = np.clip(4 / 7 * data + 3 / 7 * np.exp(-0.5 * u), 0.3, 0.8)
    method = method_with(judged=judged, unvalidated=0.9, clip=(0.3, 0.8))
    most = torch.tensor([6.0, 1.0, 3.0, 50.0]).double()
    visit = scene.visit(method, embed=lambda part, weights: parts[part, weights], most=most)
    summary, notes = method.summarize(scene.network(method), visit)
    assert summary["classes"].tolist() == [0, 2, 3]
    np.testing.assert_allclose(summary["prototypes"], prototypes, atol=1e-12)
    np.testing.assert_allclose(summary["confidence"], expected, atol=1e-12)
    assert expected.max() == 0.8
    np.testing.assert_allclose(notes["confidence_data"][[0, 2, 3]], data, atol=1e-12)
    np.testing.assert_allclose(notes["uncertainty"][[0, 2, 3]], u, atol=1e-12)


def test_a_prototype_of_synthetic_images_too_counts_each_of_them_gamma(scene):
    rng = np.random.default_rng(5)
    real, made = rng.normal(size=(6, DIM)), rng.normal(size=(5, DIM))
    y, claimed = np.array([0, 0, 0, 2, 2, 3]), np.array([0, 0, 2, 2, 2])
    parts = {
        ("train", "trained"): (torch.from_numpy(real), torch.from_numpy(y)),
        ("synthetic", "trained"): (torch.from_numpy(made), torch.from_numpy(claimed)),
    }
    for gamma in (0.0, 0.6, 1.0):
        method = method_with(prototype_of="augmented", gamma=gamma)
        ours = method.prototypes(
            scene.visit(method, embed=lambda part, weights: parts[part, weights])
        )
        for c in (0, 2, 3):
            sums = unit(real)[y == c].sum(0) + gamma * unit(made)[claimed == c].sum(0)
            np.testing.assert_allclose(
                ours[c], sums / ((y == c).sum() + gamma * (claimed == c).sum()), atol=1e-12
            )


@pytest.mark.parametrize("reading", ["mean-of-units", "unit", "literal"])
def test_a_prototype_is_the_mean_of_units_the_unit_mean_or_the_raw_mean(scene, reading):
    parts = embedding(scene)
    z, y = (t.numpy() for t in parts["train", "trained"])
    expected = {
        "mean-of-units": [unit(z)[y == c].mean(0) for c in (0, 2, 3)],
        "unit": [unit(unit(z)[y == c].mean(0)) for c in (0, 2, 3)],
        "literal": [z[y == c].mean(0) for c in (0, 2, 3)],
    }[reading]
    method = method_with(prototype=reading)
    ours = method.prototypes(scene.visit(method, embed=lambda part, weights: parts[part, weights]))
    np.testing.assert_allclose(ours[[0, 2, 3]], expected, atol=1e-12)
    assert not ours[1].any()


def test_synthetic_samples_raise_the_count_and_their_quality_the_confidence(scene):
    parts = embedding(scene)
    made = torch.tensor([10.0, 0.0, 0.0, 5.0]).double()
    signals = {"synthetic": made, "quality": torch.tensor([0.9, 0.0, 0.0, 0.4]).double()}
    results = {}
    for missing in ("renormalise", "literal"):
        method = method_with(missing=missing, clip=(0.0, 1.0), gamma=0.6)
        most = torch.full((CLASSES,), 12.0).double()
        visit = scene.visit(
            method, embed=lambda part, weights: parts[part, weights], signals=signals, most=most
        )
        summary, notes = method.summarize(scene.network(method), visit)
        assert notes["confidence_data"].tolist() == pytest.approx([9 / 12, 0, 3 / 12, 4 / 12])
        assert notes["confidence_gen"].tolist() == pytest.approx([0.9, 0, 0, 0.4])
        results[missing], val = summary["confidence"].tolist(), notes["confidence_val"].tolist()
    both = {0: 0.4 * 9 / 12 + 0.3 * 0.9 + 0.3 * val[0], 3: 0.4 * 4 / 12 + 0.3 * 0.4 + 0.3 * val[3]}
    assert results["renormalise"] == pytest.approx(
        [both[0], 4 / 7 * 3 / 12 + 3 / 7 * val[2], both[3]]
    )
    assert results["literal"] == pytest.approx([both[0], 0.4 * 3 / 12 + 0.3 * val[2], both[3]])


def test_by_the_letter_absent_classes_are_sent_as_zeros(scene):
    parts, method = embedding(scene), method_with(absent="literal")
    visit = scene.visit(method, embed=lambda part, weights: parts[part, weights])
    summary, _ = method.summarize(scene.network(method), visit)
    assert summary["classes"].tolist() == [0, 1, 2, 3]
    assert not summary["prototypes"][1].any()


# Eqs. 10 and 12: the server


def ups_with(trust, counts=None, seed=0):
    """Clients' replies for a (clients, classes) table of confidences, zero if a class is absent."""
    rng, ups = np.random.default_rng(seed), []
    for k, row in enumerate(np.asarray(trust, dtype=np.float32)):
        classes = np.flatnonzero(row)
        prototypes = (0.5 * unit(rng.normal(size=(len(classes), DIM)))).astype(np.float32)
        tensors = {"classes": classes, "prototypes": prototypes, "confidence": row[classes]}
        weights = {"w": torch.from_numpy(rng.normal(size=3).astype(np.float32))}
        ups.append(
            Up(k, 10 + k, {name: torch.from_numpy(v) for name, v in tensors.items()}, model=weights)
        )
    return ups


TRUST = np.array([[0.2, 0.9, 0.0, 0.0], [0.6, 0.0, 0.0, 0.5], [0.4, 0.0, 0.0, 0.0]])


def state_of(method):
    torch.manual_seed(0)
    return {"model/w": torch.zeros(3), **method.start(NETWORK)}


def means_by_hand(trust, ups):
    total = np.zeros((CLASSES, DIM))
    for row, up in zip(trust, ups, strict=True):
        for c, p in zip(
            up.tensors["classes"].tolist(), up.tensors["prototypes"].double().numpy(), strict=True
        ):
            total[c] += row[c] / trust[:, c].sum() * p
    return total


def test_anchors_are_confidence_weighted_means_made_unit_and_unseen_ones_are_kept():
    method, ups = method_with(), ups_with(TRUST)
    state = state_of(method)
    after = aggregated(method, state, ups)
    expected = unit(means_by_hand(TRUST, ups)[[0, 1, 3]])
    np.testing.assert_allclose(after["anchors/prototypes"][[0, 1, 3]], expected, atol=1e-6)
    assert torch.equal(after["anchors/prototypes"][2], state["anchors/prototypes"][2])
    average = [
        np.sum(TRUST[:, c] ** 2) / TRUST[:, c].sum() if c != 2 else 0 for c in range(CLASSES)
    ]
    np.testing.assert_allclose(after["server/confidence"], average, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "conf_k"),
    [
        ({}, TRUST.sum(1) / CLASSES),
        ({"conf_over": "present"}, TRUST.sum(1) / [2, 2, 1]),
        ({"encoder_weight": "alpha"}, [0.2 / 1.2 + 1.0, 0.6 / 1.2 + 1.0, 0.4 / 1.2]),
        ({"weights": "uniform"}, [1, 1, 1]),
    ],
)
def test_encoders_are_averaged_by_client_confidence(options, conf_k):
    uniform = options.get("weights") == "uniform"
    ups = ups_with((TRUST > 0).astype(float) if uniform else TRUST)
    expected = np.average([up.model["w"].numpy() for up in ups], axis=0, weights=conf_k)
    method = method_with(**options)
    np.testing.assert_allclose(
        aggregated(method, state_of(method), ups)["model/w"], expected, atol=1e-6
    )


def test_counts_as_weights_are_the_count_weighted_means_of_fedavg():
    counts = np.array([[5.0, 1, 0, 0], [20, 0, 0, 2], [1, 9, 0, 0]])
    method, ups = method_with(weights="counts"), ups_with(counts)
    after = aggregated(method, state_of(method), ups)
    expected = np.average([up.model["w"].numpy() for up in ups], axis=0, weights=counts.sum(1))
    np.testing.assert_allclose(after["model/w"], expected, atol=1e-6)
    np.testing.assert_allclose(
        after["anchors/prototypes"][[0, 1, 3]],
        unit(means_by_hand(counts, ups)[[0, 1, 3]]),
        atol=1e-6,
    )


def test_equal_confidences_average_the_holders_alike():
    held = np.array([[0.5, 0.5, 0, 0], [0.5, 0, 0, 0.5], [0.5, 0.5, 0, 0]])
    method, ups = method_with(), ups_with(held)
    after = aggregated(method, state_of(method), ups)
    first = np.mean([up.tensors["prototypes"][0].numpy() for up in ups], axis=0)
    np.testing.assert_allclose(after["anchors/prototypes"][0], unit(first), atol=1e-6)
    both = np.mean([ups[k].tensors["prototypes"][1].numpy() for k in (0, 2)], axis=0)
    np.testing.assert_allclose(after["anchors/prototypes"][1], unit(both), atol=1e-6)


def test_the_printed_epsilon_shrinks_the_encoder():
    method, plain, ups = method_with(epsilon=0.25), method_with(), ups_with(TRUST)
    total = TRUST.sum() / CLASSES
    shrunk, mean = (aggregated(m, state_of(m), ups)["model/w"] for m in (method, plain))
    torch.testing.assert_close(shrunk, mean * total / (total + 0.25), atol=1e-6, rtol=1e-6)


def test_momentum_keeps_a_share_of_the_old_anchor():
    method, ups = method_with(momentum=0.7), ups_with(TRUST)
    state = state_of(method)
    fresh = unit(means_by_hand(TRUST, ups)[[0, 1, 3]])
    expected = unit(0.3 * fresh + 0.7 * state["anchors/prototypes"][[0, 1, 3]].numpy())
    after = aggregated(method, state, ups)
    np.testing.assert_allclose(after["anchors/prototypes"][[0, 1, 3]], expected, atol=1e-6)
    assert torch.equal(after["anchors/prototypes"][2], state["anchors/prototypes"][2])


def test_fixed_anchors_stay_as_they_began():
    method = method_with(anchors="fixed")
    state = state_of(method)
    after = aggregated(method, state, ups_with(TRUST))
    assert torch.equal(after["anchors/prototypes"], state["anchors/prototypes"])
    assert not torch.equal(after["model/w"], state["model/w"])


def test_the_letter_forgets_the_anchor_of_a_class_nobody_reported():
    method = method_with(unseen="literal")
    after = aggregated(method, state_of(method), ups_with(TRUST))
    assert not after["anchors/prototypes"][2].any()


def test_geometry_on_the_server_parts_the_anchors_of_the_round():
    crowd = ups_with(TRUST)
    ups = [
        dataclasses.replace(
            up,
            tensors=up.tensors
            | {"prototypes": up.tensors["prototypes"] * 0.2 + torch.eye(DIM)[0] * 0.5},
        )
        for up in crowd
    ]
    near, far = (
        aggregated(method, state_of(method), ups)["anchors/prototypes"]
        for method in (method_with(), method_with(geo="server"))
    )
    assert torch.pdist(far[[0, 1, 3]]).min() > torch.pdist(near[[0, 1, 3]]).min() + 0.1
    assert torch.equal(far[2], near[2])
    off = method_with(geo="server", lam_geo=0.0)
    assert torch.equal(aggregated(off, state_of(off), ups)["anchors/prototypes"], near)


def test_initial_anchors_are_orthonormal_simplex_or_unknown():
    for init, cosine in (("orthonormal", 0.0), ("simplex", -1 / (CLASSES - 1))):
        start = method_with(init=init).start(NETWORK)
        gram = start["anchors/prototypes"].double() @ start["anchors/prototypes"].double().T
        np.testing.assert_allclose(gram[~torch.eye(CLASSES).bool()], cosine, atol=1e-6)
        assert start["anchors/known"].all()
    start = method_with(init="means").start(NETWORK)
    assert not start["anchors/known"].any()


# prediction


def test_the_nearest_known_anchor_by_cosine_is_predicted(scene):
    method = method_with(tau=0.2)
    anchors = {
        "prototypes": torch.from_numpy(scene.p),
        "known": torch.tensor([True, False, True, True]),
    }
    scores = method.scores(scene.network(method), scene.batch.x, anchors, {}).detach()
    cosines = unit(scene.x @ scene.weight.T) @ scene.p.T
    np.testing.assert_allclose(
        method.similarity(scores)[:, [0, 2, 3]], cosines[:, [0, 2, 3]], atol=1e-12
    )
    cosines[:, 1] = -np.inf
    assert scores.argmax(1).tolist() == cosines.argmax(1).tolist()


def test_own_prototypes_replace_the_anchors_of_the_classes_held(scene):
    parts, method = embedding(scene), method_with(inference="own")
    visit = scene.visit(method, embed=lambda part, weights: parts[part, weights])
    memory = method.remember(scene.network(method), visit)
    z, y = (t.numpy() for t in parts["train", "trained"])
    p = np.stack([unit(unit(z)[y == c].mean(0)) if c != 1 else scene.p[1] for c in range(CLASSES)])
    scores = method.scores(scene.network(method), scene.batch.x, visit.anchors, memory).detach()
    np.testing.assert_allclose(scores * 0.1, unit(scene.x @ scene.weight.T) @ p.T, atol=1e-12)
    assert method_with().remember(scene.network(method), visit) == {}


class Fitting:
    """Two clients, of which each sends moments of random unit features, and the server's state."""

    def __init__(self, visit_with, clients=2, rare_gain=0.0):
        rng = np.random.default_rng(4)
        self.ridge = 0.2
        self.rare_gain = rare_gain
        options = CAFedCLOptions(
            inference="fitted", ridge=self.ridge, rare_gain=rare_gain, anchors="fixed"
        )
        self.method = CAFedCL(options, CLASSES, DIM, clients)
        self.state = self.method.start(NETWORK)
        self.z = [unit(rng.normal(size=(number, DIM))) for number in (6, 9)]
        self.y = [np.array([0, 0, 1, 1, 1, 1]), np.array([0, 2, 2, 2, 2, 2, 2, 2, 2])]
        self.total = np.array([3.0, 4, 8, 0])
        self.ups = [self.up(visit_with, k) for k in range(2)]

    def up(self, visit_with, k):
        part = torch.from_numpy(self.z[k]), torch.from_numpy(self.y[k])
        counts = np.bincount(self.y[k], minlength=CLASSES)
        visit = visit_with(
            torch.from_numpy(counts).double(),
            images=torch.from_numpy(self.total),
            anchors=self.anchors(),
            embed=lambda *_: part,
        )
        return Up(k, len(part[1]), self.method.summarize(NETWORK, visit)[0])

    def anchors(self):
        prototypes = self.state["anchors/prototypes"].double()
        return {"prototypes": prototypes, "known": torch.ones(CLASSES, dtype=torch.bool)}

    def expected(self, clients, weights):
        """Least squares by images whose class weighs 1 in all, and anchors. The rarest class has
        three images; its target is 1.
        """
        rows, wanted = [], []
        for k, weight in zip(clients, weights, strict=True):
            for z, y in zip(self.z[k], self.y[k], strict=True):
                root = np.sqrt(weight / self.total[y])
                rows.append(root * z)
                target = (3 / self.total[y]) ** self.rare_gain
                wanted.append(root * target * np.eye(CLASSES)[y])
        rows += list(np.sqrt(self.ridge) * np.eye(DIM))
        wanted += list(np.sqrt(self.ridge) * self.state["anchors/prototypes"].numpy().T)
        return np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0].T


@pytest.mark.parametrize("rare_gain", [0.0, 0.5])
def test_the_fitted_classifier_is_balanced_least_squares_around_the_anchors(visit_with, rare_gain):
    scene = Fitting(visit_with, rare_gain=rare_gain)
    new = scene.method.update(scene.state, scene.ups)
    np.testing.assert_allclose(new["anchors/classifier"], scene.expected((0, 1), (1, 1)), atol=1e-5)


def test_what_few_clients_sent_fades_as_fast_as_all_would_be_asked_once(visit_with):
    """With one of four clients in a round, what was sent before counts three quarters."""
    scene = Fitting(visit_with, clients=4)
    state = scene.state | scene.method.update(scene.state, scene.ups[:1])
    new = scene.method.update(state, scene.ups[1:])
    np.testing.assert_allclose(
        new["anchors/classifier"], scene.expected((0, 1), (0.75, 1)), atol=1e-5
    )


def test_the_server_predicts_by_the_fitted_classifier_and_clients_by_the_anchors(scene):
    method = method_with(inference="fitted")
    network = scene.network(method)
    visit = scene.visit(method)
    anchors = visit.anchors | {"classifier": 2 * visit.anchors["prototypes"].flip(0)}
    memory = method.remember(network, visit)
    cosines = unit(scene.x @ scene.weight.T) @ scene.p.T
    for kept, expected in (({}, 2 * cosines[:, ::-1]), (memory, cosines)):
        scores = method.scores(network, scene.batch.x, anchors, kept).detach()
        np.testing.assert_allclose(scores * 0.1, expected, atol=1e-12)


def test_the_head_predicts_if_asked(scene):
    method = method_with(inference="head", classifier="ce")
    network = scene.network(method)
    scores = method.scores(network, scene.batch.x, scene.visit(method).anchors, {})
    assert torch.equal(scores, network.part("classify")(network.encoder(scene.batch.x)))
    torch.testing.assert_close(method.similarity(scores).sum(1), torch.ones(7).double())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inference": "head"}, "there is no head"),
        ({"w": [0.4, 0.3, 0.4]}, "must sum to 1"),
        ({"clip": [0.9, 0.1]}, "the first number must not be the larger one"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(CafedclError, match=words):
        resolve({"method": {"name": "cafedcl", **options}})


def test_a_simplex_needs_as_many_features_as_classes():
    with pytest.raises(CafedclError, match="9 classes need at least 9 features"):
        CAFedCL(CAFedCLOptions(init="simplex"), 9, DIM)


# whole rounds


def test_from_counts_alone_the_anchors_are_the_count_weighted_means(tiny):
    federation = tiny(
        method__w=[1.0, 0.0, 0.0], method__clip=[0.0, 1.0], federation__clients=4, split__classes=4
    )
    ups = [
        reply.up
        for reply in federation.train(
            Down(0, federation.method.broadcast(federation.state)), [0, 2, 3]
        )
    ]
    after = aggregated(federation.method, federation.state, ups)
    counts = federation.task.clients.shards.counts.double().numpy()
    sums, totals = np.zeros((10, federation.method.dim)), np.zeros(10)
    for up in ups:
        for c, p in zip(
            up.tensors["classes"].tolist(), up.tensors["prototypes"].double().numpy(), strict=True
        ):
            sums[c] += counts[up.client, c] * p
            totals[c] += counts[up.client, c]
    seen = totals > 0
    np.testing.assert_allclose(after["anchors/prototypes"][seen], unit(sums[seen]), atol=1e-5)


def test_with_fixed_anchors_one_client_trains_a_cosine_softmax(tiny):
    """λ_align = λ_geo = 0: the same weights as a training loop written out here, in float64."""
    federation = tiny(
        method__lam_align=0.0,
        method__lam_geo=0.0,
        method__anchors="fixed",
        federation__clients=1,
        split__classes=10,
        train__iterations=1,
        train__epochs=3,
        train__momentum=0.5,
    )
    task = federation.task
    p = federation.state["anchors/prototypes"].double()
    x, y = (
        task.clients.data.images(task.clients.data.train_x[task.clients.shards.train[0]]).double(),
        task.clients.data.train_y[task.clients.shards.train[0]],
    )
    weights = {name: value.double().requires_grad_() for name, value in task.initial.items()}
    for t in range(2):
        velocity = {}
        for _ in range(3):
            h = torch.relu(
                x.flatten(1) @ weights["encoder.first.weight"].T + weights["encoder.first.bias"]
            )
            h = torch.relu(h @ weights["encoder.second.weight"].T + weights["encoder.second.bias"])
            logits = (h / h.square().sum(1, keepdim=True).sqrt()) @ p.T / 0.1
            loss = -(logits - logits.logsumexp(1, keepdim=True))[range(len(y)), y].mean()
            gradients = torch.autograd.grad(loss, list(weights.values()))
            scale = min(
                1.0, 10 / (math.sqrt(sum(float(g.square().sum()) for g in gradients)) + 1e-6)
            )
            for (name, w), g in zip(weights.items(), gradients, strict=True):
                step = scale * g + 1e-3 * w.detach()
                velocity[name] = step + (0.5 * velocity[name] if name in velocity else 0)
            weights = {
                name: (w.detach() - 0.1 * 0.998**t * velocity[name]).requires_grad_()
                for name, w in weights.items()
            }
    federation.run()
    moved = 0.0
    for name, w in weights.items():
        torch.testing.assert_close(
            federation.state[f"model/{name}"].double(), w.detach(), atol=1e-5, rtol=0
        )
        moved = max(moved, float((w.detach() - task.initial[name]).abs().max()))
    assert moved > 0.01
    assert torch.equal(federation.state["anchors/prototypes"].double(), p)


def test_a_class_nobody_reported_keeps_its_anchor_through_a_round(tiny):
    federation = tiny()
    before = federation.state["anchors/prototypes"].clone()
    record = federation.step()
    seen = federation.task.clients.shards.counts[record.participants].sum(0) > 0
    assert 0 < int(seen.sum()) < 10
    after = federation.state["anchors/prototypes"]
    assert torch.equal(after[~seen], before[~seen])
    assert not torch.isclose(after[seen], before[seen]).all(1).any()
    torch.testing.assert_close(after.norm(dim=1), torch.ones(10), atol=1e-5, rtol=0)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_calibrated_logits_follow_the_client_s_labels(scene, strength):
    terms, _ = scene.run(calibrate=strength)
    z = unit(scene.x @ scene.weight.T)
    held = [0, 2, 3]
    logits = z @ scene.p[held].T / 0.1 + strength * np.log(np.array([3, 3, 1]) / 7)
    own = logits[np.arange(7), [held.index(c) for c in scene.y]]
    assert terms["i2p"] == pytest.approx(np.mean(np.log(np.exp(logits).sum(1)) - own), rel=1e-6)


def test_with_smoothing_the_prior_covers_classes_that_the_client_lacks(scene):
    terms, _ = scene.run(calibrate=0.5, smoothing=1.0)
    counts = np.bincount(scene.y, minlength=len(scene.p))
    share = (counts + 1) / (counts + 1).sum()
    logits = unit(scene.x @ scene.weight.T) @ scene.p.T / 0.1 + 0.5 * np.log(share)
    own = logits[np.arange(7), scene.y]
    assert terms["i2p"] == pytest.approx(np.mean(np.log(np.exp(logits).sum(1)) - own), rel=1e-6)
    alone, _ = scene.run(smoothing=1.0)
    assert alone == scene.run()[0], "without calibrate there is no prior"


def test_only_a_client_s_own_model_knows_its_labels(scene):
    method = method_with(calibrate=1.0)
    network, visit = scene.network(method), scene.visit(method)
    kept = method.remember(network, visit)
    server = method.scores(network, scene.batch.x, visit.anchors, {}).detach().numpy()
    own = method.scores(network, scene.batch.x, visit.anchors, kept).detach().numpy()
    assert server == pytest.approx(unit(scene.x @ scene.weight.T) @ scene.p.T / 0.1, rel=1e-6)
    held = [0, 2, 3]
    assert own[:, held] - server[:, held] == pytest.approx(
        np.tile(np.log(np.array([3, 3, 1]) / 7), (7, 1)), rel=1e-6
    )
    assert set(own.argmax(1)) <= set(held)
    assert method_with().remember(network, visit) == {}


@pytest.mark.parametrize(("calibrate", "smoothing"), [(0.0, 0.0), (0.5, 1.0)])
def test_a_client_s_own_model_may_be_kept_to_the_classes_it_has(scene, calibrate, smoothing):
    options = {"calibrate": calibrate, "smoothing": smoothing}
    every, held = method_with(**options), method_with(**options, own_classes="held")
    network, visit = scene.network(held), scene.visit(held)

    def scores(method, memory):
        return method.scores(network, scene.batch.x, visit.anchors, memory).detach()

    own = scores(held, held.remember(network, visit))
    classes = sorted(set(scene.y))
    assert len(classes) < len(scene.p)
    usual = scores(every, every.remember(network, visit))
    assert torch.equal(own[:, classes], usual[:, classes]), "held classes are scored as ever"
    others = [c for c in range(len(scene.p)) if c not in classes]
    assert own[:, others].max() < own[:, classes].min() - 1e6
    assert torch.equal(scores(held, {}), scores(every, {})), "the server's model predicts all"
