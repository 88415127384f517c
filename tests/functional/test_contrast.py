import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.core.contract import Batch
from cafedcl.functional import contrast

CLASSES, DIM, TAU = 5, 4, 0.3
READINGS = ("batch", "sample", "literal")
NORMS = ("unit", "literal")


def unit(x):
    x = np.asarray(x, dtype=float)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture
def scene():
    """Raw features of three of five classes, and unit anchors, in float64."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(7, DIM)) * rng.uniform(0.5, 3, size=(7, 1))
    return raw, np.array([0, 0, 2, 2, 2, 3, 0]), unit(rng.normal(size=(CLASSES, DIM)))


def tensors(*arrays):
    return tuple(torch.from_numpy(np.array(array)) for array in arrays)


def batch_of(y, weight=None):
    y = torch.as_tensor(y)
    weight = torch.ones(len(y), dtype=torch.float64) if weight is None else torch.as_tensor(weight)
    return Batch(torch.empty(len(y), 0), y, weight)


def scratch():
    return contrast.start_sums(torch.zeros(CLASSES, dtype=torch.float64), DIM)


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# Eq. 4


def test_i2p_is_the_mean_negative_log_share_of_the_own_anchor(scene):
    raw, y, p = scene
    z, expected = unit(raw), 0.0
    for i in range(len(y)):
        shares = [math.exp(float(z[i] @ p[c]) / TAU) for c in range(CLASSES)]
        expected -= math.log(shares[y[i]] / sum(shares)) / len(y)
    zt, yt, pt = tensors(z, y, p)
    assert float(contrast.i2p_loss(zt, batch_of(yt), pt, None, TAU)) == pytest.approx(
        expected, abs=1e-12
    )


def test_i2p_is_cross_entropy_of_cosines_over_tau(scene):
    raw, y, p = tensors(*scene)
    z = contrast.unit(raw)
    ours = contrast.i2p_loss(z, batch_of(y), p, None, TAU)
    torch.testing.assert_close(ours, F.cross_entropy(z @ p.T / TAU, y), atol=1e-12, rtol=0)


def test_i2p_gradient_is_the_softmax_error_projected_off_the_feature(scene):
    raw, y, p = scene
    z, length = unit(raw), np.linalg.norm(raw, axis=1, keepdims=True)
    error = (softmax(z @ p.T / TAU) - np.eye(CLASSES)[y]) @ p / TAU / len(y)
    expected = (error - (error * z).sum(1, keepdims=True) * z) / length
    rt, yt, pt = tensors(raw, y, p)
    rt.requires_grad_()
    contrast.i2p_loss(contrast.unit(rt), batch_of(yt), pt, None, TAU).backward()
    np.testing.assert_allclose(rt.grad, expected, atol=1e-12)
    np.testing.assert_allclose((rt.grad.numpy() * raw).sum(1), 0, atol=1e-12)


@given(st.lists(st.floats(0.01, 100), min_size=7, max_size=7))
@settings(max_examples=25)
def test_i2p_does_not_see_the_length_of_a_feature(scales):
    rng = np.random.default_rng(0)
    raw, y, p = tensors(
        rng.normal(size=(7, DIM)),
        rng.integers(0, CLASSES, 7),
        unit(rng.normal(size=(CLASSES, DIM))),
    )
    plain = contrast.i2p_loss(contrast.unit(raw), batch_of(y), p, None, TAU)
    scaled = contrast.i2p_loss(
        contrast.unit(raw * torch.tensor(scales)[:, None]), batch_of(y), p, None, TAU
    )
    torch.testing.assert_close(scaled, plain, atol=1e-12, rtol=0)


def test_classes_without_an_anchor_are_neither_rivals_nor_samples(scene):
    raw, y, p = scene
    known = np.array([True, True, False, True, False])
    z, rows = unit(raw), np.flatnonzero(known[y])
    logits = z[rows] @ p[known].T / TAU
    place = {c: i for i, c in enumerate(np.flatnonzero(known))}
    expected = -np.mean(
        [math.log(s[place[c]]) for s, c in zip(softmax(logits), y[rows], strict=True)]
    )
    zt, yt, pt, kt = tensors(z, y, p, known)
    assert float(contrast.i2p_loss(zt, batch_of(yt), pt, kt, TAU)) == pytest.approx(
        expected, abs=1e-12
    )


def test_without_any_anchor_i2p_and_its_gradient_are_zero(scene):
    raw, y, p = tensors(*scene)
    raw.requires_grad_()
    known = torch.zeros(CLASSES, dtype=torch.bool)
    loss = contrast.i2p_loss(contrast.unit(raw), batch_of(y), p, known, TAU)
    loss.backward()
    assert loss.item() == 0
    assert not raw.grad.any()


# Eq. 1


@given(st.lists(st.integers(0, CLASSES - 1), max_size=12))
@settings(max_examples=40)
def test_class_means_are_means_per_class(labels):
    z = np.random.default_rng(1).normal(size=(len(labels), DIM))
    means, counts = contrast.class_means(
        torch.from_numpy(z), torch.tensor(labels, dtype=torch.int64), CLASSES
    )
    for c in range(CLASSES):
        members = [z[i] for i, label in enumerate(labels) if label == c]
        assert int(counts[c]) == len(members)
        np.testing.assert_allclose(
            means[c], np.mean(members, axis=0) if members else np.zeros(DIM), atol=1e-12
        )


# Eq. 14


def align(reading, norm, raw, batch, p, known, kept):
    """L_align as CAFedCL calls it: with the batch's unit prototypes at hand."""
    sums, counts = contrast.class_sums(contrast.unit(raw), batch.y, batch.weight, len(p))
    return contrast.align(
        reading, norm, raw, contrast.unit(sums), counts > 0, batch, p, known, kept
    )


def align_by_hand(reading, norm, raw, y, p):
    points, total = raw if norm == "literal" else unit(raw), 0.0
    for c in set(y.tolist()):
        members = points[y == c]
        if reading == "sample":
            total += np.mean([np.sum((point - p[c]) ** 2) for point in members])
        else:
            mean = members.mean(0)
            total += np.sum(((mean if norm == "literal" else unit(mean)) - p[c]) ** 2)
    return total


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reading", READINGS)
def test_align_sums_squared_distances_over_the_classes_present(scene, reading, norm):
    raw, y, p = scene
    rt, yt, pt = tensors(raw, y, p)
    ours = align(reading, norm, rt, batch_of(yt), pt, None, scratch())
    assert float(ours) == pytest.approx(align_by_hand(reading, norm, raw, y, p), abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reading", READINGS)
def test_align_leaves_out_classes_without_an_anchor(scene, reading, norm):
    raw, y, p = scene
    known = np.array([True, True, False, True, True])
    rows = known[y]
    rt, yt, pt, kt = tensors(raw, y, p, known)
    ours = align(reading, norm, rt, batch_of(yt), pt, kt, scratch())
    assert float(ours) == pytest.approx(
        align_by_hand(reading, norm, raw[rows], y[rows], p), abs=1e-12
    )


def test_align_of_unit_prototypes_is_two_minus_two_cosines(scene):
    raw, y, p = scene
    rt, yt, pt = tensors(raw, y, p)
    cosines = [float(unit(unit(raw)[y == c].mean(0)) @ p[c]) for c in (0, 2, 3)]
    ours = align("batch", "unit", rt, batch_of(yt), pt, None, scratch())
    assert float(ours) == pytest.approx(6 - 2 * sum(cosines), abs=1e-12)


def test_align_per_sample_is_the_batch_mean_plus_the_variance():
    """0.8 = 0.4 + 0.4."""
    a, b, c = 0.6, math.sqrt(0.24), math.sqrt(0.4)
    z = torch.tensor([[a, b, c], [a, b, -c]], dtype=torch.float64)
    p, y = torch.eye(3, dtype=torch.float64), torch.tensor([0, 0])
    per_sample = align("sample", "literal", z, batch_of(y), p, None, {})
    of_means = align("batch", "literal", z, batch_of(y), p, None, {})
    assert float(per_sample) == pytest.approx(0.8, abs=1e-12)
    assert float(of_means) == pytest.approx(0.4, abs=1e-12)


def test_align_per_sample_exceeds_the_batch_form_by_the_variance_within_classes(scene):
    raw, y, p = scene
    variance = sum(
        np.sum((raw[y == c] - raw[y == c].mean(0)) ** 2) / np.sum(y == c) for c in set(y.tolist())
    )
    rt, yt, pt = tensors(raw, y, p)
    forms = [
        float(align(reading, "literal", rt, batch_of(yt), pt, None, {})) for reading in READINGS[:2]
    ]
    assert forms[1] - forms[0] == pytest.approx(variance, abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_align_by_the_letter_is_over_all_that_the_epoch_has_seen(scene, norm):
    raw, y, p = scene
    rt, yt, pt = tensors(raw, y, p)
    kept = scratch()
    align("literal", norm, rt[:4], batch_of(yt[:4]), pt, None, kept)
    second = align("literal", norm, rt[4:], batch_of(yt[4:]), pt, None, kept)
    assert float(second) == pytest.approx(align_by_hand("literal", norm, raw, y, p), abs=1e-12)


def test_align_by_the_letter_moves_only_this_batch_share(scene):
    raw, y, p = scene
    kept = scratch()
    rt, yt, pt = tensors(raw, y, p)
    early, late = rt[:4].requires_grad_(), rt[4:].clone().requires_grad_()
    align("literal", "literal", early, batch_of(yt[:4]), pt, None, kept)
    align("literal", "literal", late, batch_of(yt[4:]), pt, None, kept).backward()
    expected = [2 * (raw[y == c].mean(0) - p[c]) / np.sum(y == c) for c in y[4:]]
    np.testing.assert_allclose(late.grad, expected, atol=1e-12)
    assert early.grad is None


# Eq. 15


def geometry_by_hand(reading, raw, y, p, margin, reduction, known):
    means = {c: unit(unit(raw)[y == c].mean(0)) for c in set(y.tolist())}
    penalties = []
    for c in range(CLASSES):
        for other in range(CLASSES):
            if c == other:
                continue
            if reading == "literal":
                use, a, b = known[c] and known[other], p[c], p[other]
            elif reading == "cross":
                use, a, b = c in means and known[other], means.get(c, p[c]), p[other]
            else:
                there = (c in means or known[c]) and (other in means or known[other])
                use, a, b = (
                    there and (c in means or other in means),
                    means.get(c, p[c]),
                    means.get(other, p[other]),
                )
            if use:
                penalties.append(max(0.0, margin - np.linalg.norm(a - b)))
    total = sum(penalties)
    return total / max(len(penalties), 1) if reduction == "mean" else total


def prototypes_of(raw, y):
    sums, counts = contrast.class_sums(contrast.unit(raw), y, torch.ones(len(y)).double(), CLASSES)
    return contrast.unit(sums), counts > 0


@pytest.mark.parametrize("known", [None, (True, True, False, True, False)])
@pytest.mark.parametrize("reduction", ["mean", "literal"])
@pytest.mark.parametrize("reading", ["literal", "batch", "cross"])
def test_geometry_penalises_pairs_nearer_than_the_margin(scene, reading, reduction, known):
    raw, y, p = scene
    rt, yt, pt = tensors(raw, y, p)
    q, present = prototypes_of(rt, yt)
    kt = None if known is None else torch.tensor(known)
    ours = contrast.geometry(reading, q, present, pt, kt, 1.6, reduction)
    expected = geometry_by_hand(reading, raw, y, p, 1.6, reduction, known or (True,) * CLASSES)
    assert expected > 0
    assert float(ours) == pytest.approx(expected, abs=1e-12)


def test_geometry_by_the_letter_is_a_constant_for_the_client(scene):
    raw, y, p = tensors(*scene)
    raw.requires_grad_()
    q, present = prototypes_of(raw, y)
    assert not contrast.geometry("literal", q, present, p, None, 1.6, "mean").requires_grad


def test_orthonormal_anchors_pay_nothing_at_margin_one(scene):
    _, y, _ = scene
    p = torch.eye(CLASSES, dtype=torch.float64)
    q, present = p.clone(), torch.zeros(CLASSES, dtype=torch.bool)
    present[torch.from_numpy(y)] = True
    for reading in ("literal", "batch", "cross"):
        assert float(contrast.geometry(reading, q, present, p, None, 1.0, "mean")) == 0


@pytest.mark.parametrize("reading", ["batch", "cross"])
def test_geometry_leaves_absent_classes_with_finite_gradients(scene, reading):
    raw, y, p = tensors(*scene)
    raw.requires_grad_()
    q, present = prototypes_of(raw, y)
    contrast.geometry(reading, q, present, p, None, 1.9, "mean").backward()
    assert raw.grad.isfinite().all()
    assert raw.grad.any()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reading", READINGS)
def test_align_leaves_absent_classes_with_finite_gradients(scene, reading, norm):
    raw, y, p = tensors(*scene)
    raw.requires_grad_()
    align(reading, norm, raw, batch_of(y), p, None, scratch()).backward()
    assert raw.grad.isfinite().all()
    assert raw.grad.any(1).all()


@pytest.mark.parametrize("term", [*READINGS, "cross", "geo batch", "i2p"])
def test_padding_changes_neither_a_term_nor_its_gradient(scene, term):
    raw, y, p = tensors(*scene)
    junk = torch.full((3, DIM), 7.0, dtype=torch.float64)
    results = []
    for rows, labels, weight in (
        (raw, y, [1.0] * 7),
        (torch.cat([raw, junk]), torch.cat([y, torch.tensor([1, 2, 4])]), [1.0] * 7 + [0.0] * 3),
    ):
        x, batch = (
            rows.clone().requires_grad_(),
            batch_of(labels, torch.tensor(weight, dtype=torch.float64)),
        )
        if term in READINGS:
            loss = align(term, "unit", x, batch, p, None, scratch())
        elif term == "i2p":
            loss = contrast.i2p_loss(contrast.unit(x), batch, p, None, TAU)
        else:
            sums, counts = contrast.class_sums(contrast.unit(x), batch.y, batch.weight, CLASSES)
            loss = contrast.geometry(
                term.split()[-1], contrast.unit(sums), counts > 0, p, None, 1.9, "mean"
            )
        loss.backward()
        results.append((loss, x.grad))
    (plain, gradient), (padded, padded_gradient) = results
    torch.testing.assert_close(padded, plain, atol=1e-12, rtol=0)
    torch.testing.assert_close(padded_gradient[:7], gradient, atol=1e-12, rtol=0)
    assert not padded_gradient[7:].any()


def test_a_batch_of_padding_costs_nothing():
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    assert float(contrast.cross_entropy(logits, torch.tensor([0, 1, 1]), torch.zeros(3))) == 0


# the server's geometry


def test_one_step_of_separation_follows_the_gradient_of_the_paper_sum():
    a, b = unit([1.0, 0.2, 0.0]), unit([1.0, -0.1, 0.3])
    push = 0.1 * 2 * (a - b) / np.linalg.norm(a - b)
    moved = contrast.separate(
        torch.from_numpy(np.stack([a, b])), torch.tensor([True, True]), 1.0, steps=1, rate=0.1
    )
    np.testing.assert_allclose(moved, np.stack([unit(a + push), unit(b - push)]), atol=1e-12)


def test_separation_parts_near_prototypes_and_touches_no_unknown_one(scene):
    p = unit(scene[2] + np.array([3.0, 0, 0, 0]))
    known = torch.tensor([True, True, True, False, True])
    before = torch.from_numpy(p)
    after = contrast.separate(before, known, 1.0)
    assert torch.pdist(after[known]).min() > torch.pdist(before[known]).min()
    assert torch.equal(after[3], before[3])
    torch.testing.assert_close(after[known].norm(dim=1), torch.ones(4).double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("classes", [5, 10, 43, 100])
@pytest.mark.parametrize(
    ("prior", "most"), [("margin", 0.5), ("orthogonal", 0.1), ("simplex", 0.1)]
)
def test_separation_is_stable_however_many_classes_crowd(classes, prior, most):
    made = torch.Generator().manual_seed(0)
    crowded = (
        torch.randn(classes, 64, generator=made).double()
        + 1.2 * torch.randn(1, 64, generator=made).double()
    )
    start = crowded / crowded.norm(dim=1, keepdim=True)
    moved = contrast.separate(start, torch.ones(classes, dtype=torch.bool), 1.0, prior)
    others = ~torch.eye(classes, dtype=torch.bool)
    before, after = ((p @ p.T)[others].mean() for p in (start, moved))
    assert before > 0.5
    assert after < most
    assert ((moved - start).norm(dim=1) < 1.5).all(), "no prototype is thrown to the other side"


def test_separation_leaves_prototypes_beyond_the_margin_where_they_are():
    p = torch.eye(4, dtype=torch.float64)
    assert torch.equal(contrast.separate(p, torch.ones(4, dtype=torch.bool), 1.0), p)


# anchors of round 0


@pytest.mark.parametrize(("classes", "dim"), [(1, 3), (3, 3), (10, 64)])
def test_orthonormal_anchors_are_orthonormal(classes, dim):
    p = contrast.orthonormal(classes, dim).double()
    torch.testing.assert_close(p @ p.T, torch.eye(classes).double(), atol=1e-6, rtol=0)


def test_more_classes_than_dimensions_get_distinct_unit_anchors():
    p = contrast.orthonormal(6, 3).double()
    torch.testing.assert_close(p.norm(dim=1), torch.ones(6).double(), atol=1e-6, rtol=0)
    assert len(torch.unique(p, dim=0)) == 6


@pytest.mark.parametrize(("classes", "distance"), [(10, 1.4907), (47, 1.4295), (100, 1.4213)])
def test_simplex_anchors_are_equally_far_apart(classes, distance):
    p = contrast.simplex(classes, 128).double()
    gaps = torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist")[
        ~torch.eye(classes, dtype=torch.bool)
    ]
    assert gaps.min().item() == pytest.approx(distance, abs=1e-4)
    assert gaps.max().item() == pytest.approx(distance, abs=1e-4)
    torch.testing.assert_close(p.norm(dim=1), torch.ones(classes).double(), atol=1e-5, rtol=0)


def test_a_label_of_no_class_is_not_counted():
    z, y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]), torch.tensor([0, 0, -1])
    sums, counts = contrast.class_sums(z, y, torch.ones(3), 2)
    assert sums.tolist() == [[4, 6], [0, 0]]
    assert counts.tolist() == [2, 0]


@pytest.mark.parametrize("same", [False, True], ids=["two tables", "a table with itself"])
def test_compiled_distances_and_their_slopes_are_the_plain_ones(same):
    """To 1e-12; the slope is zero between a point and itself."""
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, DIM, dtype=torch.float64, generator=made) for n in (6, 6 if same else 4))
    weight = torch.randn(6, len(b), dtype=torch.float64, generator=made)
    found = []
    for function in (
        contrast.distances,
        torch.compile(contrast.distances, backend="eager", fullgraph=True),
    ):
        x = a.clone().requires_grad_()
        apart = function(x, x if same else b)
        (weight * apart).sum().backward()
        found.append((apart.detach(), x.grad))
    for plain, compiled in zip(*found, strict=True):
        assert plain.isfinite().all()
        torch.testing.assert_close(plain, compiled, atol=1e-12, rtol=1e-12)


@given(st.floats(0.01, 0.9), st.integers(0, 2**32 - 1))
def test_smoothed_labels_spread_their_share_over_all_classes(smoothing, seed):
    draws = np.random.default_rng(seed)
    logits = draws.normal(size=(6, 4)) * 3
    y = draws.integers(0, 4, 6)
    weight = draws.random(6)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    target = (1 - smoothing) * np.eye(4)[y] + smoothing / 4
    expected = -(target * log_p).sum(1) @ weight / weight.sum()
    given_ = (torch.from_numpy(part) for part in (logits, y, weight))
    assert float(contrast.cross_entropy(*given_, smoothing)) == pytest.approx(expected, rel=1e-9)


def test_masked_classes_get_no_share_of_smoothed_labels():
    logits = torch.tensor([[1.0, 2.0, -1e9], [0.5, -1.0, -1e9]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    weight = torch.ones(2, dtype=torch.float64)
    masked = contrast.cross_entropy(logits, y, weight, 0.2)
    without = contrast.cross_entropy(logits[:, :2], y, weight, 0.2)
    assert float(masked) == pytest.approx(float(without), rel=1e-9)


def test_smoothed_labels_spread_their_share_over_the_given_classes_only():
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(5, 4))
    y = np.array([0, 2, 2, 0, 3])
    among = np.array([True, False, True, True])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    target = 0.7 * np.eye(4)[y] + 0.3 * among / 3
    expected = -(target * log_p).sum(1).mean()
    given_ = (torch.from_numpy(logits), torch.from_numpy(y), torch.ones(5).double())
    found = contrast.cross_entropy(*given_, 0.3, torch.from_numpy(among))
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_without_smoothing_the_smoothed_loss_is_the_plain_one():
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, generator=draws, dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1, 0])
    weight = torch.ones(5, dtype=torch.float64)
    plain = float(contrast.cross_entropy(logits, y, weight))
    assert float(contrast.cross_entropy(logits, y, weight, 1e-12)) == pytest.approx(plain, rel=1e-9)


# distillation


def test_distillation_is_a_weighted_mean_of_one_minus_cosines():
    rng = np.random.default_rng(1)
    z, received, weight = (
        unit(rng.normal(size=(6, 3))),
        unit(rng.normal(size=(6, 3))),
        rng.random(6),
    )
    found = contrast.distillation(*map(torch.from_numpy, (z, received, weight)))
    expected = sum(w * (1 - one @ two) for w, one, two in zip(weight, z, received, strict=True))
    assert found.item() == pytest.approx(expected / weight.sum(), rel=1e-12)


@pytest.mark.parametrize("orthonormal", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_distillation_bounds_how_far_an_image_moves(orthonormal, seed):
    """docs/theory.md, "What distillation bounds", at the end of a descent on the unit sphere."""
    rng = np.random.default_rng(seed)
    lam, tau, label = rng.uniform(1, 5), rng.uniform(0.1, 1), 2
    anchors = unit(rng.normal(size=(5, 8)))
    if orthonormal:
        anchors = np.linalg.qr(anchors.T)[0].T
    prior, received = rng.normal(size=5), unit(rng.normal(size=8))
    z = received
    for _ in range(20_000):
        logits = anchors @ z / tau + prior
        p = np.exp(logits - logits.max())
        p /= p.sum()
        pull = (anchors[label] - p @ anchors) / tau
        step = pull + lam * received
        step -= (step @ z) * z
        z = unit(z + 0.005 * step)
    assert np.linalg.norm(step) < 1e-9, "a stationary point"
    sine = np.sqrt(1 - (z @ received) ** 2)
    assert sine == pytest.approx(np.linalg.norm(pull - (pull @ z) * z) / lam, rel=1e-6)
    most = math.sqrt(2) if orthonormal else 2
    assert 0 < sine <= most * (1 - p[label]) / (lam * tau)


def test_an_image_of_which_the_client_is_sure_stays_within_nine_degrees():
    bound = math.sqrt(2) * (1 - 0.9) / (3 * 0.3)
    assert math.degrees(math.asin(bound)) == pytest.approx(9.0, abs=0.05)
