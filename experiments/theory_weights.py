"""How the server weights clients in the model of theory.py, and Lemma 1 on synthetic samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from theory import Floats, injected_variance, noise

from cafedcl.functional.confidence import confidence, data_confidence, validation_confidence

BETA = 0.5
"""The paper's β in conf^val = exp(−β u)."""
PARTS = (0.4, 0.3, 0.3)
"""The paper's (w1, w2, w3) of Eq. 9."""


def normalised(trust: Floats) -> Floats:
    """Return α_k = trust_k/Σ trust, along the last axis."""
    return np.asarray(trust / trust.sum(-1, keepdims=True))


def uniform_weights(clients: int) -> Floats:
    """Return α_k = 1/K."""
    return np.full(clients, 1 / clients)


def count_weights(counts: Floats) -> Floats:
    """Return α_k = n_k/Σn, Eq. 2 (eq:global_agg)."""
    return normalised(counts)


def confidence_weights(
    counts: Floats, u: Floats, beta: float = BETA, parts: Sequence[float] = PARTS
) -> Floats:
    """Return α_k ∝ conf_k, Eq. 9 (eq:conf_def) without a generator, from uncertainties u_k.

    conf^data is n_k over the largest count, and conf^val = exp(−β u_k).
    """
    n_eff = torch.tensor(counts, dtype=torch.float64)
    data = data_confidence(n_eff, n_eff.max(), n_eff.sum(), "max", 0.0)
    val = validation_confidence(torch.tensor(u, dtype=torch.float64), beta)
    return normalised(np.asarray(confidence(data, val, parts, None, None, "renormalise")))


def largest_weight_ratio(beta: float = BETA, parts: Sequence[float] = PARTS) -> float:
    """Return (w1 + w3)/(w3 e^−β), the largest ratio of two clients' confidences for u ∈ [0, 1]."""
    return float((parts[0] + parts[2]) / (parts[2] * np.exp(-beta)))


def inverse_variance_weights(counts: Floats, variance: Floats) -> Floats:
    """Return α_k ∝ n_k/σ_k², from true or estimated variances; true ones give the optimum."""
    return normalised(counts / variance)


def estimated_variances(
    counts: Floats, sigma: Floats, dim: int, times: int, rng: np.random.Generator
) -> Floats:
    """Return unbiased estimates σ̂_k² from the clients' own n_k Gaussian samples, drawn (times, K).

    σ̂² = σ² χ²/f with f = d(n−1) degrees of freedom. A client with one sample has no estimate: it
    gets the one pooled over the others. If all have one sample, all get the same.
    """
    freedom = dim * np.maximum(counts - 1, 0)
    known = freedom > 0
    if not known.any():
        return np.ones((times, len(counts)))
    chi_square = rng.chisquare(freedom[known], (times, int(known.sum())))
    drawn = np.zeros((times, len(counts)))
    drawn[:, known] = sigma[known] ** 2 * chi_square / freedom[known]
    pooled = drawn @ freedom / freedom.sum()
    return np.where(known, drawn, pooled[:, None])


def least_variance(noise: Floats) -> float:
    """Return V* = 1/Σ_k(1/s_k), the least V(α) over weights that sum to 1.

    It is σ²/Σn^eff if all σ are equal.
    """
    return float(1 / np.sum(1 / noise))


def optimal_weights(noise: Floats) -> Floats:
    """Return α*_k ∝ 1/s_k = n_k^eff/σ_k², the weights of V*."""
    return normalised(1 / noise)


def excess_variance(alpha: Floats, noise: Floats) -> Floats:
    """Return Σ_k (α_k − α*_k)² s_k, which equals V(α) − V*."""
    return injected_variance(alpha - optimal_weights(noise), noise)


def effective_clients(alpha: Floats) -> Floats:
    """Return 1/Σ_k α_k²: the number of equally weighted clients with the same Σ_k α_k²."""
    return np.asarray(1 / np.sum(alpha**2, -1))


@dataclass(frozen=True, eq=False)
class Weighting:
    """A rule for the clients' weights, and the variance that it injects."""

    name: str
    alpha: Floats
    """α_k, (K,); the mean of the estimated ones."""
    injected: float
    """V(α); its expectation if α is estimated."""
    ratio: float
    """V(α)/V*."""
    squares: float
    """Σ_k α_k²."""


def weightings(
    counts: Floats, sigma: Floats, u: Floats, dim: int, times: int, rng: np.random.Generator
) -> dict[str, Weighting]:
    """Return all rules: uniform, counts, confidence, inverse-variance (σ̂²) and optimal (σ²).

    For Gaussian samples σ̂² is independent of the mean. So the variance that estimated weights
    inject is V(α) averaged over σ̂².
    """
    s = noise(counts, sigma)
    estimates = estimated_variances(counts, sigma, dim, times, rng)
    rules = {
        "uniform": uniform_weights(len(counts)),
        "counts": count_weights(counts),
        "confidence": confidence_weights(counts, u),
        "inverse-variance": inverse_variance_weights(counts, estimates),
        "optimal": optimal_weights(s),
    }
    least = least_variance(s)
    found = {}
    for name, alpha in rules.items():
        drawn = np.atleast_2d(alpha)
        injected = float(injected_variance(drawn, s).mean())
        squares = float(np.sum(drawn**2, -1).mean())
        found[name] = Weighting(name, drawn.mean(0), injected, injected / least, squares)
    return found


def lemma_bound(n: float, m: float, gamma: float, variance: float) -> float:
    """Return the right-hand side of Lemma 1 (lem:local_uncertainty), σ²/(n + γ m)."""
    return variance / (n + gamma * m)


def prototype_error(
    n: float,
    m: float,
    weight: float,
    variance: float,
    synthetic_variance: float,
    bias_square: float = 0.0,
) -> float:
    """Return E‖p_w − μ‖² of p_w = (Σ f_i + w Σ f̃_j)/(n + w m), with m synthetic samples.

    (n σ² + w² m σ_s²)/(n + w m)² + (w m/(n + w m))² ‖b‖². Synthetic samples are independent, with
    mean μ + b and variance σ_s².
    """
    total = n + weight * m
    spread = (n * variance + weight**2 * m * synthetic_variance) / total**2
    return spread + (weight * m / total) ** 2 * bias_square


def lemma_holds(
    gamma: float, m: float, variance: float, synthetic_variance: float, bias_square: float = 0.0
) -> bool:
    """Return whether Lemma 1 holds for p_w with w = γ > 0 and m > 0: σ_s² + m ‖b‖² ≤ σ²/γ."""
    return synthetic_variance + m * bias_square <= variance / gamma


def memorised_error(n: float, m: float, weight: float, variance: float) -> float:
    """Return E‖p_w − μ‖² if each synthetic sample repeats a random real one; at least σ²/n."""
    total = n + weight * m
    return variance / n + weight**2 * m / total**2 * variance * (n - 1) / n
