import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.functional import confidence as conf

COUNTS = torch.tensor([8.0, 0.0, 2.0])
MOST, TOTAL = torch.tensor([10.0, 5.0, 2.0]), torch.tensor([20.0, 9.0, 4.0])
W = (0.4, 0.3, 0.3)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("max", [8 / 10, 0, 2 / 2]),
        ("sum", [8 / 20, 0, 2 / 4]),
        ("own", [8 / 10, 0, 2 / 10]),
        ("saturating", [8 / 14, 0, 2 / 8]),
    ],
)
def test_data_confidence_is_the_count_over_its_scale(rule, expected):
    assert conf.data_confidence(COUNTS, MOST, TOTAL, rule, 6.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["max", "sum", "own", "saturating"])
def test_data_confidence_of_a_class_nobody_has_is_zero(rule):
    nothing = torch.zeros(3)
    assert conf.data_confidence(nothing, nothing, nothing, rule, 1.0).tolist() == [0, 0, 0]


def test_synthetic_samples_count_for_gamma():
    assert conf.effective_counts(
        COUNTS, torch.tensor([5.0, 10.0, 0.0]), 0.6
    ).tolist() == pytest.approx([11, 6, 2])
    assert conf.effective_counts(COUNTS, None, 0.6).tolist() == COUNTS.tolist()


LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 0.4, 0.0], [0.0, 3.0, 1.0], [1.0, 1.5, -2.0]])
LABELS = [0, 0, 2, 0]


def uncertainty_by_hand(kind, row, y):
    shares = [math.exp(v) / sum(math.exp(u) for u in row) for v in row]
    return {
        "entropy": -sum(s * math.log(s) for s in shares) / math.log(3),
        "nll": -math.log(shares[y]),
        "doubt": 1 - shares[y],
        "error": float(max(range(3), key=lambda c: row[c]) != y),
    }[kind]


@pytest.mark.parametrize("kind", ["entropy", "nll", "doubt", "error"])
def test_uncertainty_is_a_mean_per_class_and_unseen_without_samples(kind):
    values = [
        uncertainty_by_hand(kind, row.tolist(), y) for row, y in zip(LOGITS, LABELS, strict=True)
    ]
    ours = conf.uncertainty(torch.from_numpy(LOGITS), torch.tensor(LABELS), 3, kind, 0.75)
    assert ours.tolist() == pytest.approx(
        [(values[0] + values[1] + values[3]) / 3, 0.75, values[2]], abs=1e-12
    )


@pytest.mark.parametrize("kind", ["entropy", "nll", "doubt", "error"])
def test_without_any_validation_sample_all_classes_are_unseen(kind):
    empty = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    assert conf.uncertainty(*empty, 3, kind, 1.0).tolist() == [1, 1, 1]


def test_entropy_is_one_for_a_uniform_guess_and_zero_for_a_sure_one():
    logits = torch.tensor([[0.0, 0.0, 0.0], [-1e9, -1e9, 0.0]])
    assert conf.uncertainty(
        logits, torch.tensor([0, 1]), 3, "entropy", 9.0
    ).tolist() == pytest.approx([1, 0, 9])


def test_entropy_does_not_see_a_confident_mistake_but_nll_does():
    wrong, y = torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([0])
    assert float(conf.uncertainty(wrong, y, 3, "entropy", 1.0)[0]) < 0.01
    assert float(conf.uncertainty(wrong, y, 3, "nll", 1.0)[0]) > 8


def test_validation_confidence_falls_exponentially_to_exp_minus_beta():
    ours = conf.validation_confidence(torch.tensor([0.0, 0.2, 1.0]), 0.5)
    assert ours.tolist() == pytest.approx([1, math.exp(-0.1), 0.60653], abs=1e-5)


DATA, VAL, QUALITY = torch.tensor([0.8, 0.1]), torch.tensor([0.9, 0.7]), torch.tensor([0.5, 0.2])
MADE = torch.tensor([0.0, 4.0])


def test_without_a_generator_the_other_weights_are_renormalised():
    ours = conf.confidence(DATA, VAL, W, None, None, "renormalise")
    assert ours.tolist() == pytest.approx([4 / 7 * 0.8 + 3 / 7 * 0.9, 4 / 7 * 0.1 + 3 / 7 * 0.7])


def test_with_a_generator_a_class_without_synthetic_samples_is_renormalised():
    ours = conf.confidence(DATA, VAL, W, QUALITY, MADE, "renormalise")
    assert ours.tolist() == pytest.approx(
        [4 / 7 * 0.8 + 3 / 7 * 0.9, 0.4 * 0.1 + 0.3 * 0.2 + 0.3 * 0.7]
    )


def test_the_letter_takes_the_generator_signal_as_it_is():
    ours = conf.confidence(DATA, VAL, W, torch.tensor([0.0, 0.2]), MADE, "literal")
    assert ours.tolist() == pytest.approx(
        [0.4 * 0.8 + 0.3 * 0.9, 0.4 * 0.1 + 0.3 * 0.2 + 0.3 * 0.7]
    )


def test_only_a_generator_weight_leaves_no_confidence_without_a_generator():
    assert conf.confidence(DATA, VAL, (0.0, 1.0, 0.0), None, None, "renormalise").tolist() == [0, 0]


def test_the_letter_trusts_few_samples_and_a_generator_more_than_many_real_ones():
    """Client 0: 5 real, 10 made, u = 0.6. Client 1: 20 real, none made, u = 0.2. Client 2: 30 real,
    u = 0.2.
    """
    made, quality = torch.tensor([10.0, 0.0, 0.0]), torch.tensor([0.9, 0.0, 0.0])
    n_eff = conf.effective_counts(torch.tensor([5.0, 20.0, 30.0]), made, 0.6)
    data = conf.data_confidence(n_eff, n_eff.max(), n_eff.sum(), "max", 1.0)
    val = conf.validation_confidence(torch.tensor([0.6, 0.2, 0.2]), 0.5)
    literal = conf.confidence(data, val, W, quality, made, "literal")
    ours = conf.confidence(data, val, W, quality, made, "renormalise")
    assert literal[0] > literal[1]
    assert ours[0] < ours[1] < ours[2]


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.tuples(*[st.floats(0.01, 1)] * 3))
@settings(max_examples=60)
def test_confidence_lies_between_its_parts(values, weights):
    w = [weight / sum(weights) for weight in weights]
    data, val, quality = (torch.tensor([v], dtype=torch.float64) for v in values[:3])
    off = float(conf.confidence(data, val, w, None, None, "renormalise"))
    on = float(conf.confidence(data, val, w, quality, torch.tensor([1.0]), "renormalise"))
    assert min(values[0], values[1]) - 1e-9 <= off <= max(values[0], values[1]) + 1e-9
    assert min(values[:3]) - 1e-9 <= on <= max(values[:3]) + 1e-9


def test_inverse_variance_is_the_count_over_the_unbiased_variance():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(6, 3)) + np.array([1.0, 0.0, 0.0])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    variance = np.sum((z - z.mean(0)) ** 2) / (len(z) - 1)
    assert 1e-3 < variance < 1
    ours = conf.inverse_variance(torch.tensor([6.0]).double(), torch.from_numpy(z.mean(0))[None])
    assert float(ours) == pytest.approx(6 / variance, rel=1e-12)


def test_inverse_variance_takes_one_sample_for_the_largest_variance_and_bounds_the_smallest():
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.1, 0.0], [0.0, 0.0]])
    assert conf.inverse_variance(torch.tensor([1.0, 5.0, 5.0, 0.0]), p).tolist() == pytest.approx(
        [1, 5000, 5, 0]
    )


def test_client_confidence_is_over_all_classes_or_over_those_present():
    held = torch.tensor([[True, False, True, False], [True, True, True, True], [False] * 4])
    values = torch.tensor([[0.2, 9.0, 0.4, 9.0], [0.1, 0.2, 0.3, 0.4], [9.0] * 4])
    assert conf.client_confidence(values, held, "literal").tolist() == pytest.approx(
        [0.15, 0.25, 0]
    )
    assert conf.client_confidence(values, held, "present").tolist() == pytest.approx([0.3, 0.25, 0])


def test_trust_follows_its_rule():
    c, n, p = (
        torch.tensor([0.3, 0.6]),
        torch.tensor([1.0, 4.0]),
        torch.tensor([[1.0, 0.0], [0.0, 0.8]]),
    )
    n_eff = n + 6
    assert conf.trust("confidence", c, n_eff, n, p).tolist() == c.tolist()
    assert conf.trust("uniform", c, n_eff, n, p).tolist() == [1, 1]
    assert conf.trust("counts", c, n_eff, n, p).tolist() == [7, 10]
    assert conf.trust("inverse-variance", c, n_eff, n, p).tolist() == pytest.approx(
        [1, 4 / (4 / 3 * 0.36)]
    ), "a prototype is the mean of real images only"
