"""Statements of docs/theory.md, which names these tests.

Expected values are computed here, independently of experiments/theory*.py.
"""

import math

import numpy as np
import pytest
import theory as of
import theory_weights as weighting
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.functional import robust

MANY = 20_000
EXAMPLE = np.array([100.0, 10.0, 1.0])
SHAPES = [(0, 0.0, 3, 2), (1, 0.5, 1, 1), (2, 0.7, 5, 3), (3, 0.95, 4, 16), (4, 0.3, 40, 2)]
SIZE = st.integers(1, 100)


def random_model(seed, rho, clients, dim):
    """A random model, with its b and V computed by hand."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 30, clients).astype(float)
    sigma = rng.uniform(0.2, 2, clients)
    alpha = rng.dirichlet(np.ones(clients))
    centres, truth, start = (rng.normal(size=shape) for shape in ((clients, dim), dim, dim))
    model = of.Model(rho, alpha, centres, counts, sigma, truth, start)
    return model, alpha @ centres - truth, (alpha**2 * sigma**2 / counts).sum()


def instances(number=MANY, dim=3, clients=4, seed=1):
    """ρ ~ U(0, 1), α ~ Dirichlet(1, …, 1), μ = 0, μ̃_k and e standard normal."""
    rng = np.random.default_rng(seed)
    rho = rng.random(number)
    alpha = rng.dirichlet(np.ones(clients), number)
    b = (alpha[:, :, None] * rng.normal(size=(number, clients, dim))).sum(1)
    return rng, rho, b, rng.normal(size=(number, dim))


def square(vectors):
    return (vectors**2).sum(-1)


@pytest.mark.parametrize(("seed", "rho", "clients", "dim"), SHAPES)
def test_the_recursion_is_what_a_simulation_shows(seed, rho, clients, dim, monkeypatch):
    monkeypatch.setattr(of, "BLOCK", 50_000)
    model, _, _ = random_model(seed, rho, clients, dim)
    exact = of.course(model, 12).error
    seen = of.simulate(model, 12, 8001, np.random.default_rng(seed))
    assert seen.mean[0] == pytest.approx(exact[0])
    assert seen.deviation[0] < 1e-12
    assert np.all(np.abs(seen.mean - exact)[1:] < 5 * seen.deviation[1:])


def test_the_recursion_is_what_sample_means_do():
    """Every client draws its samples and averages them: Lemma 1 without synthetic samples, then
    Eqs. 6 and 7.
    """
    rng = np.random.default_rng(5)
    rho = 0.6
    times = 20_000
    counts = (5, 2, 1)
    sigma = (0.5, 1.0, 2.0)
    alpha = (0.5, 0.3, 0.2)
    centres = np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])
    anchor = np.zeros((times, 2))
    lists = (np.array(values, float) for values in (counts, sigma, (0.2, 0.1), (0, 0)))
    exact = of.course(of.Model(rho, np.array(alpha), centres, *lists), 4).error
    for t in range(1, 5):
        fresh = np.zeros_like(anchor)
        for k in range(3):
            samples = centres[k] + sigma[k] / math.sqrt(2) * rng.normal(size=(times, counts[k], 2))
            attracted = (1 - rho) * centres[k] + rho * anchor
            fresh += alpha[k] * (attracted + samples.mean(1) - centres[k])
        anchor = fresh
        errors = square(anchor - [0.2, 0.1])
        assert abs(errors.mean() - exact[t]) < 5 * errors.std() / math.sqrt(times)


@given(
    st.integers(0, 10**6),
    st.floats(0, 0.99),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_the_recursion_has_a_closed_form(seed, rho, clients, dim, rounds):
    """e^t has mean (1 − ρ^t) b + ρ^t e⁰ and variance V (1 − ρ^2t)/(1 − ρ²)."""
    model, b, v = random_model(seed, rho, clients, dim)
    mean = (1 - rho**rounds) * b + rho**rounds * (model.start - model.truth)
    found = of.course(model, rounds)
    assert found.mean[-1] == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert found.error[-1] == pytest.approx(
        square(mean) + v * (1 - rho ** (2 * rounds)) / (1 - rho**2), rel=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_every_start_converges_to_the_stationary_error(seed):
    model, b, v = random_model(seed, 0.9, 4, 3)
    end = b @ b + v / (1 - 0.81)
    assert of.course(model, 400).error[-1] == pytest.approx(end, rel=1e-12)
    assert of.stationary_error(model.gap, model.rho, model.injected) == pytest.approx(
        end, rel=1e-12
    )


def test_the_printed_bound_fails_on_the_counterexample():
    """d = 1, K = 1, μ = 0, μ̃ = 1, ρ = ½, p_g = 1: without noise, and at rest with V = 0.01."""
    one = np.ones(1)
    model = of.Model(0.5, one, np.ones((1, 1)), one, np.zeros(1), np.zeros(1), one)
    assert of.course(model, 1).error.tolist() == [1, 1]
    assert float(of.printed_bound(1.0, 1.0, 0.5, 0.0)) == 0.25 * 1 + 2 * 0.25 * 1 == 0.75
    assert float(of.corrected_bound(1.0, 1.0, 0.5, 0.0)) == 1
    assert not of.holds(1.0, 0.75)
    rest = 1 + 0.01 / 0.75
    assert float(of.stationary_error(1.0, 0.5, 0.01)) == pytest.approx(rest)
    assert float(of.printed_bound(rest, 1.0, 0.5, 0.01)) == pytest.approx(
        0.25 * rest + 2 * 0.25 + 2 * 0.01
    )
    assert (round(rest, 6), round(0.25 * rest + 0.52, 6)) == (1.013333, 0.773333)


def test_the_printed_bound_fails_in_27_and_67_percent_of_random_instances():
    _, rho, b, e = instances()
    for error, share in ((e, 0.27), (b, 2 / 3)):
        true = square((1 - rho)[:, None] * b + rho[:, None] * error)
        fails = true > rho**2 * square(error) + 2 * (1 - rho) ** 2 * square(b)
        assert fails.mean() == pytest.approx(share, abs=0.015)
        ours = of.next_error(square(error), error, b, rho, 0.0)
        assert ours == pytest.approx(true, rel=1e-9)
        assert np.array_equal(
            ~of.holds(ours, of.printed_bound(square(error), square(b), rho, 0.0)), fails
        )
    along = np.maximum((b * e).sum(1) / square(b), 0)  # Eq. 8 fails for ρ > 1/(1 + 2 along)
    assert (2 * along / (1 + 2 * along)).mean() == pytest.approx(0.27, abs=0.015)


def test_the_printed_bound_fails_exactly_if_the_cross_term_is_large():
    rng, rho, b, mean = instances()
    v = rng.exponential(0.3, MANY)
    spread = rng.exponential(1, MANY)
    true = of.next_error(square(mean) + spread, mean, b, rho, v)
    fails = ~of.holds(true, of.printed_bound(square(mean) + spread, square(b), rho, v))
    assert np.array_equal(
        fails, 2 * rho * (1 - rho) * (b * mean).sum(1) > (1 - rho) ** 2 * square(b) + v
    )
    assert 0.05 < fails.mean() < 0.27


def test_at_its_own_fixed_point_the_printed_bound_fails_for_all_rho_above_a_third():
    rho = np.linspace(0.001, 0.999, 997)
    ratio = of.printed_bound(1.0, 1.0, rho, 0.0)
    assert ratio == pytest.approx(3 * rho**2 - 4 * rho + 2)
    assert np.array_equal(ratio < 1, rho > 1 / 3)
    assert ratio.min() == pytest.approx(2 / 3, abs=1e-5)
    assert rho[ratio.argmin()] == pytest.approx(2 / 3, abs=1e-3)


@given(st.floats(0, 0.99), st.floats(0, 10), st.floats(0, 10))
def test_at_rest_the_printed_bound_holds_only_if_the_noise_hides_the_bias(rho, gap, v):
    """If and only if V ≥ (1 − ρ)(3ρ − 1) Δ, for one step and for the iterated bound; always from V
    = Δ/3 on.
    """
    needed = (1 - rho) * (3 * rho - 1) * gap
    assert needed <= gap / 3 + 1e-12
    if abs(v - needed) > 1e-9 * (1 + gap + v):
        rest = gap + v / (1 - rho**2)
        assert bool(of.holds(rest, of.printed_bound(rest, gap, rho, v))) == (v > needed)
        assert bool(of.holds(rest, of.printed_limit(gap, rho, v))) == (v > needed)


def test_iterated_the_printed_bound_would_prove_that_reuse_removes_bias():
    for rho in (0.0, 0.3, 0.9, 0.999):
        value = 5.0
        for _ in range(40_000):
            value = rho**2 * value + 2 * (1 - rho) ** 2 * 1.0 + 2 * 0.1
        assert of.printed_limit(1.0, rho, 0.1) == pytest.approx(value)
    assert of.printed_limit(1.0, 0.999, 0.0) < 0.0011
    assert of.stationary_error(1.0, 0.999, 0.0) == 1


def test_the_printed_form_holds_without_doubling_if_the_bias_does_not_point_at_the_error():
    rng, rho, b, mean = instances()
    apart = (b * mean).sum(1) <= 0
    v = rng.exponential(0.3, MANY)
    error = square(mean) + rng.exponential(1, MANY)
    single = rho**2 * error + (1 - rho) ** 2 * square(b) + v
    assert of.holds(of.next_error(error, mean, b, rho, v), single)[apart].all()
    assert of.holds(single, of.printed_bound(error, square(b), rho, v)).all()


@pytest.mark.parametrize("dim", [1, 3, 20])
def test_the_corrected_bounds_never_fail(dim):
    rng, rho, b, mean = instances(dim=dim)
    v = rng.exponential(0.1, MANY) * (rng.random(MANY) < 0.5)
    eta = rng.lognormal(0, 2, MANY)
    for centre in (mean, b, 3 * b, -b):
        for spread in (0.0, rng.exponential(1, MANY)):
            error = square(centre) + spread
            true = square((1 - rho)[:, None] * b + rho[:, None] * centre) + rho**2 * spread + v
            tightest = of.tightest_bound(error, square(b), rho, v)
            assert of.holds(true, of.corrected_bound(error, square(b), rho, v)).all()
            assert of.holds(true, of.young_bound(error, square(b), rho, v, eta)).all()
            assert of.holds(true, tightest).all()
            assert of.holds(tightest, of.young_bound(error, square(b), rho, v, eta)).all()
            assert of.holds(tightest, of.corrected_bound(error, square(b), rho, v)).all()


def test_the_corrected_bounds_are_tight():
    _, rho, b, _ = instances(200)
    gap = square(b)
    v = 0.3
    at_b = of.next_error(gap, b, b, rho, v)
    assert of.corrected_bound(gap, gap, rho, v) == pytest.approx(at_b)
    assert of.young_bound(gap, gap, rho, v, (1 - rho) / rho) == pytest.approx(at_b)
    along = of.next_error(4 * gap, 2 * b, b, rho, v)
    assert of.tightest_bound(4 * gap, gap, rho, v) == pytest.approx(along)
    assert of.young_bound(4 * gap, gap, rho, v, (1 - rho) / (2 * rho)) == pytest.approx(along)


@given(st.floats(0, 0.99), st.floats(0, 10), st.floats(0, 10))
def test_the_corrected_bound_has_a_limit_above_the_stationary_error(rho, gap, v):
    limit = float(of.corrected_limit(gap, rho, v))
    assert limit == pytest.approx(gap + v / (1 - rho))
    assert float(of.corrected_bound(limit, gap, rho, v)) == pytest.approx(limit)
    assert of.holds(of.stationary_error(gap, rho, v), limit)


@given(
    st.lists(st.tuples(st.floats(0.5, 1000), st.floats(0.05, 5)), min_size=1, max_size=8),
    st.integers(0, 10**6),
)
def test_no_weights_beat_the_optimal_ones_and_the_excess_is_a_sum_of_squares(pairs, seed):
    counts, sigma = np.array(pairs).T
    s = [sd**2 / n for n, sd in pairs]
    best = 1 / sum(1 / value for value in s)
    assert weighting.least_variance(of.noise(counts, sigma)) == pytest.approx(best)
    star = [best / value for value in s]
    assert weighting.optimal_weights(np.array(s)) == pytest.approx(star)
    alpha = np.random.default_rng(seed).dirichlet(np.ones(len(s)))
    v = sum(a**2 * value for a, value in zip(alpha, s, strict=True))
    excess = sum((a - o) ** 2 * value for a, o, value in zip(alpha, star, s, strict=True))
    assert of.injected_variance(alpha, np.array(s)) == pytest.approx(v)
    assert weighting.excess_variance(alpha, np.array(s)) == pytest.approx(excess)
    assert v - best == pytest.approx(excess, abs=1e-9 * v)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.floats(0.1, 5))
def test_counts_are_optimal_if_all_sigmas_are_equal(counts, sigma):
    n = np.array(counts, float)
    s = of.noise(n, np.full(len(n), sigma))
    assert weighting.count_weights(n) == pytest.approx(weighting.optimal_weights(s))
    assert of.injected_variance(weighting.count_weights(n), s) == pytest.approx(
        sigma**2 / sum(counts)
    )


def mixture_by_hand(counts, u):
    conf = [
        4 / 7 * n / max(counts) + 3 / 7 * math.exp(-0.5 * value)
        for n, value in zip(counts, u, strict=True)
    ]
    return [value / sum(conf) for value in conf]


def test_on_100_10_1_the_mixture_injects_six_times_the_optimum():
    ways = weighting.weightings(
        EXAMPLE, np.ones(3), np.full(3, 0.2), 8, 2000, np.random.default_rng(0)
    )
    by_hand = {"uniform": [1 / 3] * 3, "counts": [100 / 111, 10 / 111, 1 / 111]}
    by_hand["confidence"] = mixture_by_hand((100, 10, 1), (0.2, 0.2, 0.2))
    golden = {
        "uniform": (0.123333, 0.333),
        "counts": (0.009009, 0.820),
        "confidence": (0.056890, 0.394),
    }
    for name, alpha in by_hand.items():
        v = alpha[0] ** 2 / 100 + alpha[1] ** 2 / 10 + alpha[2] ** 2
        assert ways[name].alpha == pytest.approx(alpha)
        assert ways[name].injected == pytest.approx(v)
        assert ways[name].ratio == pytest.approx(111 * v)
        assert (round(v, 6), round(sum(a * a for a in alpha), 3)) == golden[name]
        assert ways[name].squares == pytest.approx(golden[name][1], abs=5e-4)
    assert ways["optimal"].alpha == pytest.approx(by_hand["counts"])
    assert 1 < ways["inverse-variance"].ratio < 1.02


@pytest.mark.parametrize(("u", "expected"), [(0.0, 0.060275), (0.5, 0.051857), (1.0, 0.043776)])
def test_the_mixture_stays_far_from_the_optimum_whatever_the_common_u(u, expected):
    alpha = mixture_by_hand((100, 10, 1), (u, u, u))
    assert alpha[0] ** 2 / 100 + alpha[1] ** 2 / 10 + alpha[2] ** 2 == pytest.approx(
        expected, abs=1e-6
    )
    assert weighting.confidence_weights(EXAMPLE, np.full(3, u)) == pytest.approx(alpha)


def test_uniform_weights_have_the_smallest_squares_and_most_effective_clients():
    alpha = np.random.default_rng(0).dirichlet(np.ones(5), 10_000)
    assert weighting.effective_clients(np.full(5, 0.2)) == pytest.approx(5)
    assert weighting.effective_clients(alpha).max() < 5
    assert weighting.effective_clients(np.array([1.0, 0, 0])) == 1


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1)), min_size=2, max_size=10))
def test_the_mixture_never_weighs_a_client_four_times_another(pairs):
    counts, u = np.array(pairs, float).T
    alpha = weighting.confidence_weights(counts, u)
    limit = 0.7 / (0.3 * math.exp(-0.5))
    assert weighting.largest_weight_ratio() == pytest.approx(limit)
    assert alpha.max() / alpha.min() <= limit * (1 + 1e-9)


def test_with_equal_counts_the_mixture_can_tell_clients_apart_by_a_fifth_at_most():
    alpha = weighting.confidence_weights(np.full(2, 50.0), np.array([0.0, 1.0]))
    assert alpha[0] / alpha[1] == pytest.approx(1 / (4 / 7 + 3 / 7 * math.exp(-0.5)))


@pytest.mark.parametrize(
    ("u", "better", "expected"), [((0, 0, 1), True, 0.005944), ((1, 1, 0), False, 0.007591)]
)
def test_confidence_beats_counts_only_if_u_tracks_sigma(u, better, expected):
    n = np.full(3, 100.0)
    sigma = np.array([1.0, 1.0, 2.0])
    a = mixture_by_hand((100, 100, 100), u)
    v = (a[0] ** 2 + a[1] ** 2 + 4 * a[2] ** 2) / 100
    assert v == pytest.approx(expected, abs=1e-6)
    assert of.injected_variance(
        weighting.confidence_weights(n, np.array(u, float)), of.noise(n, sigma)
    ) == pytest.approx(v)
    counts = of.injected_variance(weighting.count_weights(n), of.noise(n, sigma))
    assert counts == pytest.approx((1 + 1 + 4) / 9 / 100)
    assert (v < counts) == better


def test_confidence_beats_counts_if_u_tracks_the_bias():
    n = np.full(2, 10.0)
    centres = np.array([[0.0], [1.0]])
    both = weighting.count_weights(n), weighting.confidence_weights(n, np.array([0.0, 1.0]))
    gaps = [
        of.Model(0.5, alpha, centres, n, np.ones(2), np.zeros(1), np.zeros(1)).gap for alpha in both
    ]
    assert gaps == pytest.approx([0.25, mixture_by_hand((10, 10), (0, 1))[1] ** 2])
    assert gaps[1] < 0.21


def test_variances_are_estimated_without_bias_and_pooled_for_a_client_with_one_sample():
    counts = np.array([5.0, 2.0, 1.0])
    sigma = np.array([1.0, 2.0, 9.0])
    drawn = weighting.estimated_variances(counts, sigma, 3, 40_000, np.random.default_rng(0))
    assert np.all(np.abs(drawn.mean(0) - [1, 4, (4 * 1 + 1 * 4) / 5]) < 5 * drawn.std(0) / 200)
    rng = np.random.default_rng(1)
    samples = 2 / math.sqrt(3) * rng.normal(size=(40_000, 2, 3))
    assert drawn[:, 1].std() == pytest.approx(samples.var(1, ddof=1).sum(1).std(), rel=0.03)
    assert (
        weighting.estimated_variances(np.ones(2), np.array([1.0, 5.0]), 3, 4, rng).tolist()
        == [[1, 1]] * 4
    )


def mean_error(real, synthetic, weight):
    """E‖p_w − 0‖² by hand, with its standard error, from samples of shape (times, n or m, 1)."""
    total = real.shape[1] + weight * synthetic.shape[1]
    squares = square((real.sum(1) + weight * synthetic.sum(1)) / total)
    return squares.mean(), squares.std() / math.sqrt(len(squares))


@pytest.mark.parametrize(
    ("weight", "bias", "spread"), [(0, 0, 1), (0.6, 0, 1.2), (0.6, 0.7, 0.5), (1, 0.3, 1.3)]
)
def test_lemma_1_the_error_with_synthetic_samples_is_exact(weight, bias, spread):
    rng = np.random.default_rng(7)
    real = rng.normal(size=(60_000, 4, 1))
    synthetic = bias + spread * rng.normal(size=(60_000, 6, 1))
    seen, error = mean_error(real, synthetic, weight)
    assert abs(weighting.prototype_error(4, 6, weight, 1.0, spread**2, bias**2) - seen) < 5 * error


@given(SIZE, SIZE, st.floats(0.01, 1), st.floats(0.01, 10))
def test_lemma_1_is_false_for_prototypes_of_real_samples(n, m, gamma, variance):
    """Case (i): w = 0."""
    error = weighting.prototype_error(n, m, 0.0, variance, 1.0)
    assert error == pytest.approx(variance / n)
    assert (
        error
        > weighting.lemma_bound(n, m, gamma, variance)
        == pytest.approx(variance / (n + gamma * m))
    )


@given(SIZE, SIZE, st.floats(0.01, 1), st.floats(0.01, 10), st.floats(0, 20), st.floats(0, 1))
def test_lemma_1_holds_exactly_if_variance_and_bias_of_the_synthetic_samples_are_small(
    n, m, gamma, var, made, bias
):
    """Cases (ii) and (iv): w = γ; if and only if σ_s² + m ‖b‖² ≤ σ²/γ."""
    slack = var / gamma - made - m * bias
    error = weighting.prototype_error(n, m, gamma, var, made, bias)
    bound = weighting.lemma_bound(n, m, gamma, var)
    if abs(slack) > 1e-6 * var / gamma:
        assert (error <= bound) == weighting.lemma_holds(gamma, m, var, made, bias) == (slack > 0)
    unbiased = weighting.prototype_error(n, m, gamma, var, made)
    assert error - unbiased == pytest.approx((gamma * m / (n + gamma * m)) ** 2 * bias, abs=1e-9)


@given(SIZE, SIZE, st.floats(0.01, 0.99), st.floats(0.01, 10))
def test_lemma_1_is_false_for_full_weights_if_gamma_is_the_variance_ratio(n, m, gamma, var):
    """Case (iii): w = 1 and σ_s² = σ²/γ; by Cauchy–Schwarz (n + m/γ)(n + γ m) > (n + m)²."""
    error = weighting.prototype_error(n, m, 1.0, var, var / gamma)
    assert error == pytest.approx(var * (n + m / gamma) / (n + m) ** 2)
    assert error > weighting.lemma_bound(n, m, gamma, var)


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_lemma_1_is_false_for_a_generator_that_memorises(weight):
    """Case (v): synthetic samples that repeat real ones."""
    rng = np.random.default_rng(8)
    real = rng.normal(size=(60_000, 4, 1))
    chosen = np.take_along_axis(real, rng.integers(0, 4, (60_000, 12, 1)), 1)
    seen, error = mean_error(real, chosen, weight)
    assert abs(weighting.memorised_error(4, 12, weight, 1.0) - seen) < 5 * error
    assert (
        weighting.memorised_error(4, 12, weight, 1.0)
        > 1 / 4
        > weighting.lemma_bound(4, 12, weight, 1.0)
    )
    copies, _ = mean_error(real, np.tile(real, (1, 3, 1)), weight)
    assert copies == pytest.approx(square(real.mean(1)).mean())


def test_correlated_noise_injects_more():
    alpha = np.array([0.5, 0.3, 0.2])
    s = np.array([0.1, 0.4, 0.9])
    rng = np.random.default_rng(9)
    common = rng.normal(size=(100_000, 1))
    own = rng.normal(size=(100_000, 3))
    for r in (0.0, 0.4, 1.0):
        squares = (
            (alpha * np.sqrt(s) * (math.sqrt(r) * common + math.sqrt(1 - r) * own)).sum(1)
        ) ** 2
        expected = float(of.correlated_variance(alpha, s, r))
        assert abs(squares.mean() - expected) < 5 * squares.std() / math.sqrt(100_000)
        assert expected >= of.injected_variance(alpha, s) - 1e-12
    assert of.correlated_variance(alpha, s, 1.0) == pytest.approx((alpha @ np.sqrt(s)) ** 2)


@pytest.mark.parametrize(("x", "gap", "ends"), [(1.0, 0.25, 0.0), (0.5, 0.0, 0.25)])
def test_normalised_prototypes_leave_the_model(x, gap, ends):
    """All centres at (½, 0) and μ = (x, 0): the model settles at Δ, below or above where a unit
    prototype does.
    """
    centre = np.array([0.5, 0.0])
    anchor = np.array([0.0, 1.0])
    model = of.Model(
        0.5, np.ones(1), centre[None], np.ones(1), np.zeros(1), np.array([x, 0.0]), anchor
    )
    for _ in range(60):
        anchor = 0.5 * centre + 0.5 * anchor
        anchor = anchor / np.linalg.norm(anchor)
    assert of.course(model, 60).error[-1] == pytest.approx(gap)
    assert square(anchor - model.truth) == pytest.approx(ends)


def test_noise_that_persists_ends_above_all_bounds():
    rng = np.random.default_rng(11)
    rho = 0.6
    alpha = np.array([0.7, 0.3])
    s = np.array([0.2, 0.5])
    xi = (alpha * np.sqrt(s) * rng.normal(size=(100_000, 2))).sum(1)
    e = np.zeros(100_000)
    for _ in range(60):
        e = (1 - rho) * 2 + rho * e + xi
    v = 0.49 * 0.2 + 0.09 * 0.5
    expected = 4 + v / 0.16
    assert abs((e**2).mean() - expected) < 5 * (e**2).std() / math.sqrt(100_000)
    assert of.persistent_error(4.0, rho, v) == pytest.approx(expected)
    assert expected > of.corrected_limit(4.0, rho, v)


@pytest.mark.parametrize("skewed", [True, False])
def test_weights_from_the_same_samples_bias_the_mean_of_skewed_embeddings(skewed):
    rng = np.random.default_rng(10)
    samples = rng.exponential(1, (40_000, 3, 6)) - 1 if skewed else rng.normal(size=(40_000, 3, 6))
    alpha = weighting.inverse_variance_weights(np.full(3, 6.0), samples.var(2, ddof=1))
    means = (alpha * samples.mean(2)).sum(1)
    off = abs(means.mean()) / (means.std() / 200)
    assert off > 20 if skewed else off < 5


def mean_with_liars(honest, weights, liars, claims):
    """The honest weighted mean, and that of all."""
    mean = np.average(honest, axis=0, weights=weights)
    both = np.vstack([honest, liars])
    return mean, np.average(both, axis=0, weights=[*weights, *claims])


@given(st.integers(0, 10_000))
def test_cross_checked_liars_move_a_mean_by_no_more_than_the_bound(seed):
    random = np.random.default_rng(seed)
    honest = np.eye(1, 4)[0] + random.uniform(0.05, 0.5) * random.normal(size=(6, 4))
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)
    liars = random.normal(size=(2, 4))
    liars *= random.uniform(size=(2, 1)) / np.linalg.norm(liars, axis=1, keepdims=True)
    weights = random.uniform(0.1, 1, 6)
    most = random.uniform(0.1, 1, 2)
    everyone = torch.from_numpy(np.vstack([honest, liars]))
    high = torch.from_numpy(np.concatenate([np.ones(6), most]))
    claims = robust.cross_checked(high, torch.zeros(8).double(), high, everyone).numpy()[6:]
    # The honest clients' own weights are what they are; only the liars' claims matter here.
    mean, moved = mean_with_liars(honest, weights, liars, claims)
    middle = robust.geometric_median(everyone).numpy()
    reference = middle / np.linalg.norm(middle)
    bound = (2 / 3) ** 1.5 * most.sum() / weights.sum()
    bound += most.sum() / (weights.sum() + most.sum()) * np.linalg.norm(reference - mean)
    assert np.linalg.norm(moved - mean) <= bound + 1e-9


def test_without_the_check_a_liar_moves_the_mean_by_two_shares():
    honest = np.tile([1.0, 0.0], (4, 1))
    liar = np.array([[-1.0, 0.0]])
    mean, moved = mean_with_liars(honest, np.ones(4), liar, [1.0])
    assert np.linalg.norm(moved - mean) == pytest.approx(2 / 5)
    everyone = torch.from_numpy(np.vstack([honest, liar]))
    ones = torch.ones(5).double()
    assert float(robust.cross_checked(ones, 0 * ones, ones, everyone)[4]) == 0


@given(st.integers(0, 10_000))
def test_a_minority_cannot_carry_the_geometric_median_away(seed):
    random = np.random.default_rng(seed)
    honest = random.normal(size=(5, 3))
    centre = honest.mean(0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    liars = 10 ** random.uniform(0, 5) * random.normal(size=(2, 3))
    median = robust.geometric_median(torch.from_numpy(np.vstack([honest, liars]))).numpy()
    assert np.linalg.norm(median - centre) <= 2 * 5 * radius / (7 - 2 * 2) + 1e-6
