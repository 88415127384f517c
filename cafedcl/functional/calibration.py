"""Calibration: do probabilities say how often a prediction is right?"""

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
"""Bins of equal width, as in Guo et al. 2017."""
RANGE = (0.02, 50.0)
"""Temperatures that are tried."""
STEPS = 48
"""Each step of the search for a temperature makes its interval 1.6 times as short."""


def reliability(p: Tensor, y: Tensor) -> Tensor:
    """Return what is behind a reliability diagram, (bins, 3).

    Images are grouped by the probability of their predicted class. A bin has the number of its
    images, the sum of these probabilities, and how many predictions are right.
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


def fit_temperature(scores: Tensor, y: Tensor) -> float:
    """Return the temperature T that gives softmax(scores / T) the smallest cross-entropy.

    The cross-entropy is convex in 1/T, so a golden-section search finds it. Its targets are those
    of Platt 1999: of N images, the true class has the probability (N + 1) / (N + 2), and the other
    classes share the rest. If all of a few images are predicted rightly, targets of 1 would be
    fitted best by T = 0, and every prediction would be called certain.
    """
    scores = scores.double()
    # A class that cannot be predicted has −∞, of which no finite loss can be made.
    predictable = scores.isfinite()
    scores = scores.clamp_min(-1e6)
    others = predictable & ~F.one_hot(y, scores.shape[1]).bool()
    share = others / others.sum(1, keepdim=True).clamp_min(1)
    target = F.one_hot(y, scores.shape[1]) * (len(y) + 1) + share
    target = target / (len(y) + 2)

    def loss(log_temperature: Tensor) -> float:
        return float(F.cross_entropy(scores / log_temperature.exp(), target))

    low, high = torch.tensor(RANGE, dtype=torch.float64).log()
    ratio = (5**0.5 - 1) / 2
    left = high - ratio * (high - low)
    right = low + ratio * (high - low)
    left_loss = loss(left)
    right_loss = loss(right)
    for _ in range(STEPS):
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
    return float(((low + high) / 2).exp())
