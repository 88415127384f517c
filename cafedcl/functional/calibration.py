"""Calibration: do probabilities say how often a prediction is right?"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.core.tensors import Tensors

BINS = 15
"""Bins of equal width, as in Guo et al. 2017."""
TEMPERATURES = (0.02, 50.0)
"""The range in which the temperature is searched."""
PRIOR_WEIGHTS = (0.0, 2.0)
"""The range in which the weight of the class prior is searched."""
IMPOSSIBLE = -1e6
"""A class with a lower score cannot be predicted: the client lacks it, or it has no anchor."""
TEMPERATURE_STEPS = 32
PRIOR_STEPS = 16
"""Each step of a search makes its interval 1.6 times shorter."""


class Calibration(NamedTuple):
    """What turns scores into probabilities (see `probabilities`)."""

    temperature: float
    prior: Tensor
    """Added for each class: high for classes that are more common than scores alone suggest."""


def probabilities(scores: Tensor, temperature: Tensor, prior: Tensor) -> Tensor:
    """Return softmax(scores / temperature + prior)."""
    return (scores / temperature + prior).softmax(-1)


def reliability(p: Tensor, y: Tensor) -> Tensor:
    """Return the data of a reliability diagram, (bins, 3).

    Images are grouped by the probability of their predicted class. A bin holds the number of its
    images, the sum of these probabilities, and the number of correct predictions.
    """
    confidence, predicted = p.double().max(1)
    place = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    values = torch.stack([torch.ones_like(confidence), confidence, (predicted == y).double()], 1)
    return values.new_zeros(BINS, 3).index_add(0, place, values)


def calibration_error(bins: Tensor) -> float | None:
    """Return the expected calibration error (ECE): |confidence − accuracy|, averaged over images.

    It is 0 where predictions of 80 % are right in 80 % of the cases, and so on.
    """
    images = float(bins[:, 0].sum())
    if not images:
        return None
    return float((bins[:, 1] - bins[:, 2]).abs().sum()) / images


def log_frequencies(counts: Tensor) -> Tensor:
    """Return the logarithm of each class's share of the images.

    One image is added to every class, so that a class without any is rare rather than impossible.
    """
    return ((counts.double() + 1) / (counts.double() + 1).sum()).log()


def fit_calibration(scores: Tensor, y: Tensor, log_prior: Tensor) -> Calibration:
    """Return the temperature T and the weight w of the class prior π that fit images best.

    They minimise the cross-entropy of softmax(scores / T + w·log π). A temperature alone cannot
    calibrate a model whose classes all weigh the same, such as one that is trained for balanced
    accuracy: it takes all classes to be equally common, so rare ones get too high probabilities.
    Such a model gets a weight near 1, and one that has learned the prior itself a weight near 0.

    An image of a class that the model cannot predict says nothing about the others, and is left
    out.
    """
    rows = _can_be_right(scores, y)
    if not rows.any():
        return Calibration(1.0, torch.zeros_like(log_prior, dtype=torch.float64))
    scores, y = scores[rows], y[rows]
    scores, target = _smoothed(scores, y)
    # The mean changes no probability.
    offset = log_prior.double() - log_prior.double().mean()

    def fitted(weight: float) -> tuple[float, float]:
        return _fit_temperature(scores, weight * offset, target)

    # Convex in (1/T, w) together, so the best T of each weight has a convex loss in the weight.
    weight = _golden_section(lambda w: fitted(w)[1], PRIOR_WEIGHTS, PRIOR_STEPS)
    temperature, _ = fitted(weight)
    return Calibration(temperature, weight * offset)


def fitted_calibration(scores: Tensor, y: Tensor, counts: Tensor) -> Tensors:
    """Return the calibration on images with these scores and labels, as a run stores it.

    ``counts`` are the images of each class where the model is used. If no image is of a class that
    the model can predict, ``images`` is 0 and the model is not calibrated.
    """
    temperature, prior = fit_calibration(scores, y, log_frequencies(counts.cpu()))
    return {
        "temperature": torch.tensor([temperature]),
        "prior": prior.float(),
        "images": torch.tensor([int(_can_be_right(scores, y).sum())]),
    }


def _can_be_right(scores: Tensor, y: Tensor) -> Tensor:
    """Return whether each image is of a class that can be predicted."""
    return scores.gather(1, y[:, None])[:, 0] > IMPOSSIBLE


def _smoothed(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores without those of impossible classes, and the targets that they are fitted to.

    The targets are Platt's (1999): of N images, the true class has the probability
    (N + 1) / (N + 2), and the other classes share the rest. If all of a few images are predicted
    correctly, T = 0 would fit targets of 1 best, and every prediction would have probability 1.
    """
    scores = scores.double()
    predictable = scores > IMPOSSIBLE
    others = predictable & ~F.one_hot(y, scores.shape[1]).bool()
    share = others / others.sum(1, keepdim=True).clamp_min(1)
    target = F.one_hot(y, scores.shape[1]) * (len(y) + 1) + share
    # Their target is 0, and so is their probability at any temperature; −∞ would make it NaN.
    return scores.clamp_min(IMPOSSIBLE), target / (len(y) + 2)


def _fit_temperature(scores: Tensor, offset: Tensor, target: Tensor) -> tuple[float, float]:
    """Return the temperature with the smallest cross-entropy, and this cross-entropy."""

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(scores * math.exp(-log_temperature) + offset, target))

    low, high = TEMPERATURES
    # Convex in 1/T, so in log T it falls and then rises.
    best = _golden_section(loss, (math.log(low), math.log(high)), TEMPERATURE_STEPS)
    return math.exp(best), loss(best)


def _golden_section(
    loss: Callable[[float], float], interval: tuple[float, float], steps: int
) -> float:
    """Return where a function that falls and then rises is smallest in an interval.

    Each step reuses one of the two inner values of the previous one, and computes only one more.
    """
    low, high = interval
    ratio = (5**0.5 - 1) / 2
    left = high - ratio * (high - low)
    right = low + ratio * (high - low)
    left_loss = loss(left)
    right_loss = loss(right)
    for _ in range(steps):
        if left_loss <= right_loss:
            high = right
            right = left
            right_loss = left_loss
            left = high - ratio * (high - low)
            left_loss = loss(left)
        else:
            low = left
            left = right
            left_loss = right_loss
            right = low + ratio * (high - low)
            right_loss = loss(right)
    return (low + high) / 2
