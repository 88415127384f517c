"""The confidence of a client's prototypes, class by class: Eqs. 9 and 11 and their parts."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.functional.contrast import class_means


def effective_counts(real: Tensor, synthetic: Tensor | None, gamma: float) -> Tensor:
    """Return n^eff_{k,c} = n_{k,c} + γ m_{k,c} (Lemma 1)."""
    return real if synthetic is None else real + gamma * synthetic


def data_confidence(n_eff: Tensor, most: Tensor, total: Tensor, rule: str, half: float) -> Tensor:
    """Return conf^data, which is proportional to n^eff.

    ``rule`` says what it is divided by: the largest n^eff of any client (``max``), the sum over
    clients (``sum``), the client's own total (``own``), or n^eff + half (``saturating``).
    """
    scale = {"max": most, "sum": total, "own": n_eff.sum(), "saturating": n_eff + half}[rule]
    return torch.where(n_eff > 0, n_eff / scale.clamp_min(1e-12), torch.zeros_like(n_eff))


def largest_data_confidence(
    n_eff: Tensor, most: Tensor, total: Tensor, rule: str, half: float
) -> Tensor:
    """Return the largest possible conf^data of clients with at most the given n^eff."""
    if rule == "own":
        # The client's own total depends on how many synthetic images it made.
        return (n_eff > 0).float()
    return data_confidence(n_eff, most, total, rule, half)


def uncertainty(logits: Tensor, y: Tensor, classes: int, kind: str, unseen: float) -> Tensor:
    """Return u_{k,c}, the uncertainty averaged over the validation images of each class.

    A class without validation images gets ``unseen``. ``entropy`` is normalised by ln C and lies in
    [0, 1]; ``nll`` also sees confident mistakes; ``doubt`` is 1 − p_y; ``error`` is the share of
    wrong predictions.
    """
    log_p = F.log_softmax(logits, 1)
    own = y.clamp_min(0)[:, None]
    value = {
        "entropy": lambda: -(log_p.exp() * log_p).sum(1) / math.log(max(classes, 2)),
        "nll": lambda: -log_p.gather(1, own)[:, 0],
        "doubt": lambda: 1 - log_p.gather(1, own)[:, 0].exp(),
        "error": lambda: (logits.argmax(1) != y).to(logits.dtype),
    }[kind]()
    means, counts = class_means(value[:, None], y, classes)
    return torch.where(counts > 0, means[:, 0], torch.full_like(counts, unseen))


def validation_confidence(u: Tensor, beta: float) -> Tensor:
    """Return conf^val = exp(−β u)."""
    return torch.exp(-beta * u)


def confidence(
    data: Tensor,
    val: Tensor,
    weights: Sequence[float],
    quality: Tensor | None,
    made: Tensor | None,
    missing: str,
) -> Tensor:
    """Return Eq. 9 (eq:conf_def): w1·conf^data + w2·conf^gen + w3·conf^val.

    Without a generator (``quality`` None) w2 = 0 and (w1, w3) are renormalised, as the paper says.
    With one, a class for which nothing was made (``made`` = 0) gets the same treatment class by
    class; ``missing = "literal"`` counts its conf^gen as 0 instead.
    """
    w1, w2, w3 = weights
    without = (w1 * data + w3 * val) / (w1 + w3) if w1 + w3 > 0 else torch.zeros_like(data)
    if quality is None:
        return without
    literal = w1 * data + w2 * quality + w3 * val
    if missing == "literal" or made is None:
        return literal
    return torch.where(made > 0, literal, without)


def largest_confidence(data: Tensor, generated: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the upper bound of Eq. 9 for a known conf^data: conf^gen and conf^val are at most 1.

    ``generated`` marks the classes that may have generated images.
    """
    w1, w2, w3 = weights
    ones = torch.ones_like(data)
    without = confidence(data, ones, weights, None, None, "renormalise")
    return torch.where(generated, torch.maximum(without, w1 * data + w2 + w3), without)


SMALLEST_VARIANCE = 1e-3


def inverse_variance(counts: Tensor, prototypes: Tensor) -> Tensor:
    """Return n/σ̂², the weights that give the global prototype the least variance.

    A prototype p is the mean of n real images with ‖z‖ = 1. So the variance follows from its norm:
    σ̂² = n/(n−1)·(1 − ‖p‖²). One image says nothing about it, so it has σ̂² = 1, the largest value.
    Synthetic images do not count: the prototype is not their mean.
    """
    spread = counts / (counts - 1).clamp_min(1e-12) * (1 - prototypes.square().sum(1))
    variance = torch.where(
        counts > 1, spread.clamp(SMALLEST_VARIANCE, 1.0), torch.ones_like(spread)
    )
    return counts / variance


def client_confidence(conf: Tensor, present: Tensor, over: str) -> Tensor:
    """Return Eq. 11 (eq:client_conf), Conf_k: the mean of conf over classes.

    ``literal`` is over all classes, as printed; otherwise it is over those that the client has.
    """
    total = (conf * present).sum(-1)
    if over == "literal":
        return total / conf.shape[-1]
    return total / present.sum(-1).clamp_min(1)


def trust(rule: str, conf: Tensor, n_eff: Tensor, counts: Tensor, prototypes: Tensor) -> Tensor:
    """Return the weights of a client's classes by a rule.

    They are its confidences, all equal, its effective counts (Eq. 2), or n/σ̂² of its real images.
    """
    return {
        "confidence": lambda: conf,
        "uniform": lambda: torch.ones_like(conf),
        "counts": lambda: n_eff,
        "inverse-variance": lambda: inverse_variance(counts, prototypes),
    }[rule]()


def trust_range(rule: str, most: Tensor, n_eff: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest possible `trust` of clients with the given counts.

    ``most`` is their largest confidence, and ``n_eff`` their largest effective counts.
    """
    one = torch.ones_like(most)
    return {
        "confidence": lambda: (torch.zeros_like(most), most),
        "uniform": lambda: (one, one),
        "counts": lambda: (counts, n_eff),
        "inverse-variance": lambda: (counts, counts / SMALLEST_VARIANCE),
    }[rule]()
