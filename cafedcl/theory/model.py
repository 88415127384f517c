"""The model of Section 4.2 of the CAFedCL paper: the exact error of a global prototype, and which
bounds on it hold.

One class, K clients. A round is Eqs. 6 and 7 of the paper: p_k⁺ = (1−ρ) μ̃_k + ρ p_g + ξ_k and p_g⁺
= Σ_k α_k p_k⁺. With e = p_g − μ, b = Σ_k α_k (μ̃_k − μ) and ξ̄ = Σ_k α_k ξ_k this is e⁺ = (1−ρ) b +
ρ e + ξ̄. Throughout, E = E‖e‖² is the error, Δ = ‖b‖² the gap, s_k = σ_k²/n_k^eff the noise of a
client and V = Σ_k α_k² s_k the injected variance. Proofs are in docs/theory.md. Where a function
takes arrays, it works on all instances along their first axes at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cafedcl.core.errors import CafedclError

Array = NDArray[np.float64]
Values = Array | float
"""One number, or one per instance."""

BLOCK = 2**21
"""Numbers that the simulation draws at a time, so that its memory does not grow with the
repetitions.
"""
BETA = 0.5
"""The paper's β in conf^val = exp(−β u)."""
PARTS = (0.4, 0.3, 0.3)
"""The paper's (w1, w2, w3) of Eq. 9."""


@dataclass(frozen=True, eq=False)
class Model:
    """One class in the paper's model (Eqs. 6 and 7).

    The noise ξ_k is Gaussian, isotropic and independent over clients and rounds, with E‖ξ_k‖² =
    σ_k²/n_k: the largest that the paper allows, so that a bound that fails here fails for a case it
    claims.
    """

    rho: float
    """ρ, how strongly the old anchor attracts, in [0, 1)."""
    alpha: Array
    """α_k, the server's weights, (K,)."""
    centres: Array
    """μ̃_k, where the clients' prototypes would be without an anchor, (K, d)."""
    counts: Array
    """n_k^eff, (K,)."""
    sigma: Array
    """σ_k, (K,)."""
    truth: Array
    """μ, the true centre, (d,)."""
    start: Array
    """p_g before the first round, (d,)."""

    def __post_init__(self) -> None:
        if self.centres.ndim != 2:
            raise CafedclError(f"centres: has shape {self.centres.shape}; give one row per client")
        clients, dim = self.centres.shape
        for name, shape in {
            "alpha": clients,
            "counts": clients,
            "sigma": clients,
            "truth": dim,
            "start": dim,
        }.items():
            if getattr(self, name).shape != (shape,):
                raise CafedclError(
                    f"{name}: has shape {getattr(self, name).shape}; give {shape} numbers"
                )
        if not 0 <= self.rho < 1:
            raise CafedclError(
                f"rho: {self.rho} is not in [0, 1), where the anchor's pull contracts; give such a number"
            )
        if not (np.all(self.alpha >= 0) and abs(self.alpha.sum() - 1) < 1e-9):
            raise CafedclError("alpha: weights are at least 0 and sum to 1; see theory.normalised")
        if not np.all(self.counts > 0):
            raise CafedclError(
                "counts: every client needs more than 0 samples; leave out clients without the class"
            )
        if not np.all((self.sigma >= 0) & np.isfinite(self.sigma)):
            raise CafedclError("sigma: a standard deviation is a finite number of at least 0")

    @property
    def noise(self) -> Array:
        """s_k = σ_k²/n_k^eff."""
        return noise(self.counts, self.sigma)

    @property
    def shift(self) -> Array:
        """b = Σ_k α_k (μ̃_k − μ)."""
        return np.asarray(self.alpha @ (self.centres - self.truth))

    @property
    def gap(self) -> float:
        """Δ_bias = ‖b‖² (Proposition 1)."""
        return float(self.shift @ self.shift)

    @property
    def injected(self) -> float:
        """V = Σ_k α_k² s_k."""
        return float(injected_variance(self.alpha, self.noise))


def noise(counts: Array, sigma: Array) -> Array:
    """Return s_k = σ_k²/n_k^eff, what Lemma 1 allows a local prototype to be off."""
    return np.asarray(sigma**2 / counts)


def next_mean(mean: Array, shift: Array, rho: Values) -> Array:
    """Return E e⁺ = (1−ρ) b + ρ E e."""
    kept = np.asarray(rho)[..., None]
    return np.asarray((1 - kept) * shift + kept * mean)


def next_error(error: Values, mean: Array, shift: Array, rho: Values, injected: Values) -> Array:
    """Return the exact recursion E⁺ = ρ² E + (1−ρ)² Δ + 2ρ(1−ρ) ⟨b, E e⟩ + V."""
    gap = np.sum(shift * shift, -1)
    cross = np.sum(shift * mean, -1)
    return np.asarray(
        rho**2 * error + (1 - rho) ** 2 * gap + 2 * rho * (1 - rho) * cross + injected
    )


def printed_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Array:
    """Return the right-hand side of Proposition 1 as printed, Eq. 8 (eq:bias_rec): ρ² E + 2(1−ρ)² Δ
    + 2V.

    It is not a bound: it fails if and only if 2ρ(1−ρ) ⟨b, E e⟩ > (1−ρ)² Δ + V.
    """
    return np.asarray(rho**2 * error + 2 * (1 - rho) ** 2 * gap + 2 * injected)


def young_bound(error: Values, gap: Values, rho: Values, injected: Values, eta: Values) -> Array:
    """Return Young's form of the corrected Proposition 1, for any η > 0: (1+η) ρ² E + (1+1/η)
    (1−ρ)² Δ + V.
    """
    return np.asarray((1 + eta) * rho**2 * error + (1 + 1 / eta) * (1 - rho) ** 2 * gap + injected)


def corrected_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Array:
    """Return the corrected Proposition 1, ρ E + (1−ρ) Δ + V: Young's form with η = (1−ρ)/ρ, tight
    at e = b.
    """
    return np.asarray(rho * error + (1 - rho) * gap + injected)


def tightest_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Array:
    """Return the least of Young's forms over η, (ρ √E + (1−ρ) √Δ)² + V; no bound in E, Δ and V
    alone is smaller.
    """
    return np.asarray((rho * np.sqrt(error) + (1 - rho) * np.sqrt(gap)) ** 2 + injected)


def stationary_error(gap: Values, rho: Values, injected: Values) -> Array:
    """Return the fixed point of the exact recursion, Δ + V/(1−ρ²), which every start converges to."""
    return np.asarray(gap + injected / (1 - rho**2))


def persistent_error(gap: Values, rho: Values, injected: Values) -> Array:
    """Return the limit if the noise is drawn once and stays: e = b + ξ̄/(1−ρ), so Δ + V/(1−ρ)²,
    above all the others.

    Then p_g knows the noise, and neither the recursion nor any of the bounds applies.
    """
    return np.asarray(gap + injected / (1 - rho) ** 2)


def printed_limit(gap: Values, rho: Values, injected: Values) -> Array:
    """Return what Eq. 8 (eq:bias_rec) as printed converges to when it is iterated: 2(1−ρ)/(1+ρ) Δ +
    2V/(1−ρ²).
    """
    return np.asarray(2 * (1 - rho) / (1 + rho) * gap + 2 * injected / (1 - rho**2))


def corrected_limit(gap: Values, rho: Values, injected: Values) -> Array:
    """Return what the corrected Proposition 1 converges to when it is iterated: Δ + V/(1−ρ)."""
    return np.asarray(gap + injected / (1 - rho))


def holds(error: Values, bound: Values) -> NDArray[np.bool_]:
    """Return whether error ≤ bound, up to rounding in the last digits: the corrected bound is
    tight.
    """
    return np.asarray(error <= bound * (1 + 1e-12) + 1e-15)


@dataclass(frozen=True, eq=False)
class Course:
    """The exact error over the rounds, from round 0 (the start) on."""

    error: Array
    """E^t, (rounds + 1,)."""
    mean: Array
    """E e^t, (rounds + 1, d)."""


def course(model: Model, rounds: int) -> Course:
    """Return E^t and E e^t for all rounds by the exact recursion; a start that is known has E =
    ‖e‖².
    """
    means = [model.start - model.truth]
    errors = [means[0] @ means[0]]
    for _ in range(rounds):
        errors.append(next_error(errors[-1], means[-1], model.shift, model.rho, model.injected))
        means.append(next_mean(means[-1], model.shift, model.rho))
    return Course(np.array(errors), np.array(means))


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a simulation says of E^t, from round 0 on."""

    mean: Array
    """The mean of ‖e^t‖² over the repetitions, (rounds + 1,)."""
    deviation: Array
    """The standard error of that mean, (rounds + 1,)."""


def simulate(model: Model, rounds: int, repetitions: int, rng: np.random.Generator) -> Estimate:
    """Play the model, client by client as Eqs. 6 and 7 have it, many times, and return the mean
    squared error.
    """
    if repetitions < 2:
        raise CafedclError(f"repetitions: {repetitions} have no standard error; give at least 2")
    clients, dim = model.centres.shape
    scale = np.sqrt(model.noise / dim)[:, None]
    squares = np.empty((rounds + 1, repetitions))
    block = max(1, BLOCK // (clients * dim))
    for first in range(0, repetitions, block):
        number = min(block, repetitions - first)
        anchor = np.tile(model.start, (number, 1))
        for t in range(rounds + 1):
            if t:
                xi = scale * rng.standard_normal((number, clients, dim))
                local = (1 - model.rho) * model.centres + model.rho * anchor[:, None] + xi
                anchor = np.einsum("k,rkd->rd", model.alpha, local)
            squares[t, first : first + number] = np.sum((anchor - model.truth) ** 2, 1)
    return Estimate(squares.mean(1), squares.std(1, ddof=1) / np.sqrt(repetitions))


def normalised(trust: Array) -> Array:
    """Return α_k = trust_k/Σ trust, along the last axis."""
    return np.asarray(trust / trust.sum(-1, keepdims=True))


def uniform_weights(clients: int) -> Array:
    """Return α_k = 1/K."""
    return np.full(clients, 1 / clients)


def count_weights(counts: Array) -> Array:
    """Return α_k = n_k/Σn, Eq. 2 (eq:global_agg)."""
    return normalised(counts)


def confidence_weights(
    counts: Array, u: Array, beta: float = BETA, parts: Sequence[float] = PARTS
) -> Array:
    """Return α_k ∝ conf_k, Eq. 9 (eq:conf_def) without a generator, from the predictive
    uncertainties u_k.

    conf^data is n_k over the largest count, conf^val = exp(−β u_k), as in
    :mod:`cafedcl.functional.confidence`.
    """
    import torch

    from cafedcl.functional.confidence import confidence, data_confidence, validation_confidence

    n_eff = torch.tensor(counts, dtype=torch.float64)
    data = data_confidence(n_eff, n_eff.max(), n_eff.sum(), "max", 0.0)
    val = validation_confidence(torch.tensor(u, dtype=torch.float64), beta)
    return normalised(np.asarray(confidence(data, val, parts, None, None, "renormalise")))


def largest_weight_ratio(beta: float = BETA, parts: Sequence[float] = PARTS) -> float:
    """Return (w1 + w3)/(w3 e^−β): the confidences of two clients never differ by more, whatever n
    and u ∈ [0, 1].
    """
    return float((parts[0] + parts[2]) / (parts[2] * np.exp(-beta)))


def inverse_variance_weights(counts: Array, variance: Array) -> Array:
    """Return α_k ∝ n_k/σ_k², from variances that may be estimates; with the true ones this is the
    optimum.
    """
    return normalised(counts / variance)


def estimated_variances(
    counts: Array, sigma: Array, dim: int, times: int, rng: np.random.Generator
) -> Array:
    """Return unbiased estimates σ̂_k² from the clients' own n_k Gaussian samples, drawn (times, K).

    σ̂² = σ² χ²/f with f = d(n−1) degrees of freedom. One sample tells nothing of its variance: such
    a client gets the estimate pooled over the others, and if all have one sample, all get the same.
    """
    freedom = dim * np.maximum(counts - 1, 0)
    known = freedom > 0
    if not known.any():
        return np.ones((times, len(counts)))
    drawn = np.zeros((times, len(counts)))
    drawn[:, known] = (
        sigma[known] ** 2
        * rng.chisquare(freedom[known], (times, int(known.sum())))
        / freedom[known]
    )
    pooled = drawn @ freedom / freedom.sum()
    return np.where(known, drawn, pooled[:, None])


def injected_variance(alpha: Array, noise: Array) -> Array:
    """Return V(α) = Σ_k α_k² s_k, the variance injection of Proposition 1 for noise uncorrelated
    over clients.
    """
    return np.asarray(np.sum(alpha**2 * noise, -1))


def correlated_variance(alpha: Array, noise: Array, correlation: float) -> Array:
    """Return E‖ξ̄‖² if the noise of any two clients has this correlation: (1−r) V + r (Σ_k α_k
    √s_k)².
    """
    together = np.sum(alpha * np.sqrt(noise), -1) ** 2
    return np.asarray((1 - correlation) * injected_variance(alpha, noise) + correlation * together)


def least_variance(noise: Array) -> float:
    """Return V* = 1/Σ_k(1/s_k), the least V(α) over all weights that sum to 1; σ²/Σn^eff if all σ
    are equal.
    """
    return float(1 / np.sum(1 / noise))


def optimal_weights(noise: Array) -> Array:
    """Return α*_k ∝ 1/s_k = n_k^eff/σ_k², the weights of V*."""
    return normalised(1 / noise)


def excess_variance(alpha: Array, noise: Array) -> Array:
    """Return Σ_k (α_k − α*_k)² s_k, which is V(α) − V*."""
    return injected_variance(alpha - optimal_weights(noise), noise)


def effective_clients(alpha: Array) -> Array:
    """Return 1/Σ_k α_k²: how many equally weighted clients have the same sum of squared weights."""
    return np.asarray(1 / np.sum(alpha**2, -1))


@dataclass(frozen=True, eq=False)
class Weighing:
    """A way to weight the clients, and what it costs."""

    name: str
    alpha: Array
    """α_k, (K,); the mean where they are estimated."""
    injected: float
    """V(α), expected where α is estimated."""
    ratio: float
    """V(α)/V*."""
    squares: float
    """Σ_k α_k²."""


def weighings(
    counts: Array, sigma: Array, u: Array, dim: int, times: int, rng: np.random.Generator
) -> dict[str, Weighing]:
    """Return all ways to weight the clients: uniform, counts, confidence, inverse-variance (σ̂²)
    and optimal (σ²).

    For Gaussian samples σ̂² is independent of the mean, so that V(α) averaged over σ̂² is what
    estimated weights inject.
    """
    s = noise(counts, sigma)
    ways = {
        "uniform": uniform_weights(len(counts)),
        "counts": count_weights(counts),
        "confidence": confidence_weights(counts, u),
        "inverse-variance": inverse_variance_weights(
            counts, estimated_variances(counts, sigma, dim, times, rng)
        ),
        "optimal": optimal_weights(s),
    }
    least = least_variance(s)
    found = {}
    for name, alpha in ways.items():
        drawn = np.atleast_2d(alpha)
        injected = float(injected_variance(drawn, s).mean())
        squares = float(np.sum(drawn**2, -1).mean())
        found[name] = Weighing(name, drawn.mean(0), injected, injected / least, squares)
    return found


def lemma_bound(n: float, m: float, gamma: float, variance: float) -> float:
    """Return the right-hand side of Lemma 1 (lem:local_uncertainty), σ²/n^eff with n^eff = n + γ m."""
    return variance / (n + gamma * m)


def prototype_error(
    n: float,
    m: float,
    weight: float,
    variance: float,
    synthetic_variance: float,
    bias_square: float = 0.0,
) -> float:
    """Return E‖p_w − μ‖² of p_w = (Σ f_i + w Σ f̃_j)/(n + w m), with m independent synthetic
    samples.

    (n σ² + w² m σ_s²)/(n + w m)² + (w m/(n + w m))² ‖b‖², where they have mean μ + b and variance
    σ_s².
    """
    total = n + weight * m
    spread = (n * variance + weight**2 * m * synthetic_variance) / total**2
    return spread + (weight * m / total) ** 2 * bias_square


def lemma_holds(
    gamma: float, m: float, variance: float, synthetic_variance: float, bias_square: float = 0.0
) -> bool:
    """Return whether Lemma 1 holds for p_w with w = γ > 0 and m > 0: if and only if σ_s² + m ‖b‖² ≤
    σ²/γ.
    """
    return synthetic_variance + m * bias_square <= variance / gamma


def memorised_error(n: float, m: float, weight: float, variance: float) -> float:
    """Return E‖p_w − μ‖² if each synthetic sample repeats one of the n real ones at random: never
    below σ²/n.
    """
    total = n + weight * m
    return variance / n + weight**2 * m / total**2 * variance * (n - 1) / n
