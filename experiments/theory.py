"""The model of Section 4.2 of the CAFedCL paper: the exact error of a global prototype, and bounds.

One class, K clients. A round is Eqs. 6 and 7 of the paper: p_k⁺ = (1−ρ) μ̃_k + ρ p_g + ξ_k and
p_g⁺ = Σ_k α_k p_k⁺. With e = p_g − μ, b = Σ_k α_k (μ̃_k − μ) and ξ̄ = Σ_k α_k ξ_k this is
e⁺ = (1−ρ) b + ρ e + ξ̄. Throughout, E = E‖e‖² is the error, Δ = ‖b‖² the gap, s_k = σ_k²/n_k^eff
the noise of a client and V = Σ_k α_k² s_k the injected variance. Proofs are in docs/theory.md. A
function that takes arrays handles all instances along their first axes at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cafedcl.core.errors import CafedclError

Floats = NDArray[np.float64]
Values = Floats | float
"""One number, or one per instance."""

BLOCK = 2**21
"""Random numbers that the simulation draws at once, which limits its memory."""


@dataclass(frozen=True, eq=False)
class Model:
    """One class in the paper's model (Eqs. 6 and 7).

    The noise ξ_k is Gaussian, isotropic and independent over clients and rounds, with
    E‖ξ_k‖² = σ_k²/n_k. This is the largest noise that the paper allows, so a bound that fails here
    fails in a case that it claims to cover.
    """

    rho: float
    """ρ, how strongly the old anchor attracts, in [0, 1)."""
    alpha: Floats
    """α_k, the server's weights, (K,)."""
    centres: Floats
    """μ̃_k, the clients' prototypes without an anchor, (K, d)."""
    counts: Floats
    """n_k^eff, (K,)."""
    sigma: Floats
    """σ_k, (K,)."""
    truth: Floats
    """μ, the true centre, (d,)."""
    start: Floats
    """p_g before the first round, (d,)."""

    def __post_init__(self) -> None:
        if self.centres.ndim != 2:
            raise CafedclError(f"centres: has shape {self.centres.shape}; give one row per client")
        clients, dim = self.centres.shape
        sizes = {"alpha": clients, "counts": clients, "sigma": clients, "truth": dim, "start": dim}
        for name, size in sizes.items():
            shape = getattr(self, name).shape
            if shape != (size,):
                raise CafedclError(f"{name}: has shape {shape}; give {size} numbers")
        if not 0 <= self.rho < 1:
            raise CafedclError(
                f"rho: {self.rho} is not in [0, 1); with other values the error does not converge"
            )
        if not (np.all(self.alpha >= 0) and abs(self.alpha.sum() - 1) < 1e-9):
            raise CafedclError("alpha: weights must be at least 0 and sum to 1; use normalised()")
        if not np.all(self.counts > 0):
            raise CafedclError(
                "counts: every client needs more than 0 samples; leave out clients with none"
            )
        if not np.all((self.sigma >= 0) & np.isfinite(self.sigma)):
            raise CafedclError("sigma: a standard deviation must be finite and at least 0")

    @property
    def noise(self) -> Floats:
        """s_k = σ_k²/n_k^eff."""
        return noise(self.counts, self.sigma)

    @property
    def shift(self) -> Floats:
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


def noise(counts: Floats, sigma: Floats) -> Floats:
    """Return s_k = σ_k²/n_k^eff, Lemma 1's bound on the error of a local prototype."""
    return np.asarray(sigma**2 / counts)


def injected_variance(alpha: Floats, noise: Floats) -> Floats:
    """Return V(α) = Σ_k α_k² s_k, Proposition 1's variance, for uncorrelated noise."""
    return np.asarray(np.sum(alpha**2 * noise, -1))


def correlated_variance(alpha: Floats, noise: Floats, correlation: float) -> Floats:
    """Return E‖ξ̄‖² = (1−r) V + r (Σ_k α_k √s_k)² for noise with correlation r between clients."""
    together = np.sum(alpha * np.sqrt(noise), -1) ** 2
    return np.asarray((1 - correlation) * injected_variance(alpha, noise) + correlation * together)


def next_mean(mean: Floats, shift: Floats, rho: Values) -> Floats:
    """Return E e⁺ = (1−ρ) b + ρ E e."""
    kept = np.asarray(rho)[..., None]
    return np.asarray((1 - kept) * shift + kept * mean)


def next_error(error: Values, mean: Floats, shift: Floats, rho: Values, injected: Values) -> Floats:
    """Return the exact recursion E⁺ = ρ² E + (1−ρ)² Δ + 2ρ(1−ρ) ⟨b, E e⟩ + V."""
    gap = np.sum(shift * shift, -1)
    cross = np.sum(shift * mean, -1)
    return np.asarray(
        rho**2 * error + (1 - rho) ** 2 * gap + 2 * rho * (1 - rho) * cross + injected
    )


def printed_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the printed Proposition 1, the right-hand side of Eq. 8: ρ² E + 2(1−ρ)² Δ + 2V.

    It is not a bound: it fails if and only if 2ρ(1−ρ) ⟨b, E e⟩ > (1−ρ)² Δ + V.
    """
    return np.asarray(rho**2 * error + 2 * (1 - rho) ** 2 * gap + 2 * injected)


def young_bound(error: Values, gap: Values, rho: Values, injected: Values, eta: Values) -> Floats:
    """Return Young's form of the corrected Proposition 1, for any η > 0.

    (1+η) ρ² E + (1+1/η) (1−ρ)² Δ + V.
    """
    return np.asarray((1 + eta) * rho**2 * error + (1 + 1 / eta) * (1 - rho) ** 2 * gap + injected)


def corrected_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the corrected Proposition 1, ρ E + (1−ρ) Δ + V.

    This is Young's form with η = (1−ρ)/ρ. It is tight at e = b.
    """
    return np.asarray(rho * error + (1 - rho) * gap + injected)


def tightest_bound(error: Values, gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the minimum of Young's forms over η, (ρ √E + (1−ρ) √Δ)² + V.

    No bound in E, Δ and V alone is smaller.
    """
    return np.asarray((rho * np.sqrt(error) + (1 - rho) * np.sqrt(gap)) ** 2 + injected)


def stationary_error(gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the limit of the exact recursion from every start, Δ + V/(1−ρ²)."""
    return np.asarray(gap + injected / (1 - rho**2))


def persistent_error(gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the limit if noise is drawn once and stays: e = b + ξ̄/(1−ρ), so Δ + V/(1−ρ)².

    Then p_g depends on the noise, and neither the recursion nor any of the bounds applies.
    """
    return np.asarray(gap + injected / (1 - rho) ** 2)


def printed_limit(gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the limit of iterating the printed Eq. 8: 2(1−ρ)/(1+ρ) Δ + 2V/(1−ρ²)."""
    return np.asarray(2 * (1 - rho) / (1 + rho) * gap + 2 * injected / (1 - rho**2))


def corrected_limit(gap: Values, rho: Values, injected: Values) -> Floats:
    """Return the limit of iterating the corrected Proposition 1: Δ + V/(1−ρ)."""
    return np.asarray(gap + injected / (1 - rho))


def holds(error: Values, bound: Values) -> NDArray[np.bool_]:
    """Return whether error ≤ bound, up to rounding: the corrected bound is tight."""
    return np.asarray(error <= bound * (1 + 1e-12) + 1e-15)


@dataclass(frozen=True, eq=False)
class Course:
    """The exact error over the rounds; round 0 is the start."""

    error: Floats
    """E^t, (rounds + 1,)."""
    mean: Floats
    """E e^t, (rounds + 1, d)."""


def course(model: Model, rounds: int) -> Course:
    """Return E^t and E e^t for all rounds by the exact recursion; the start has E = ‖e‖²."""
    means = [model.start - model.truth]
    errors = [means[0] @ means[0]]
    for _ in range(rounds):
        errors.append(next_error(errors[-1], means[-1], model.shift, model.rho, model.injected))
        means.append(next_mean(means[-1], model.shift, model.rho))
    return Course(np.array(errors), np.array(means))


@dataclass(frozen=True, eq=False)
class Estimate:
    """A simulation's estimate of E^t; round 0 is the start."""

    mean: Floats
    """The mean of ‖e^t‖² over the repetitions, (rounds + 1,)."""
    deviation: Floats
    """The standard error of that mean, (rounds + 1,)."""


def simulate(model: Model, rounds: int, repetitions: int, rng: np.random.Generator) -> Estimate:
    """Simulate Eqs. 6 and 7 client by client, many times, and return the mean squared error."""
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
