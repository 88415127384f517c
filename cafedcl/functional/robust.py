"""Means that a few lying clients cannot ruin: clipped, trimmed, medians, Krum."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

WEISZFELD_STEPS = 50
"""Steps of the iteration for a geometric median; it converges in far fewer."""


def at_most(share: float, number: int) -> int:
    """Return the share of a number, rounded up; a fifth of 20 is 4 in spite of float rounding."""
    return math.ceil(share * number - 1e-9)


def clip_factors(lengths: Tensor, factor: float) -> Tensor:
    """Return the factors that shorten vectors to at most ``factor`` median lengths; 1 for most."""
    limit = factor * middle(lengths)
    return torch.where(lengths > limit, limit / lengths.clamp_min(1e-30), torch.ones_like(lengths))


def middle(values: Tensor) -> Tensor:
    """Return the median along the first axis; of an even number, the mean of the middle two."""
    ordered = values.sort(0).values
    number = len(values)
    return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2


def trimmed_mean(values: Tensor, share: float) -> Tensor:
    """Return the mean along the first axis without the largest and smallest ``share`` of values.

    It is the median if nothing would be left.
    """
    cut = at_most(share, len(values))
    if 2 * cut >= len(values):
        return middle(values)
    return values.sort(0).values[cut : len(values) - cut].mean(0)


def geometric_median(points: Tensor) -> Tensor:
    """Return the point with the least sum of distances to the rows, by Weiszfeld's iteration."""
    centre = points.mean(0)
    for _ in range(WEISZFELD_STEPS):
        weights = 1 / torch.linalg.vector_norm(points - centre, dim=1).clamp_min(1e-12)
        centre = (weights[:, None] * points).sum(0) / weights.sum()
    return centre


def pulled_in(points: Tensor, factor: float) -> Tensor:
    """Return the rows, those far from the geometric median pulled towards it.

    No row is farther from it than ``factor`` median distances; the others stay bit for bit. With
    fewer than three rows nobody can say which one is wrong, so they all stay.
    """
    if len(points) < 3:
        return points
    exact = points.double()
    centre = geometric_median(exact)
    offsets = exact - centre
    factors = clip_factors(torch.linalg.vector_norm(offsets, dim=1), factor)
    moved = (centre + factors[:, None] * offsets).to(points.dtype)
    return torch.where((factors < 1)[:, None], moved, points)


def krum_scores(vectors: Tensor, liars: int) -> Tensor:
    """Return each row's sum of squared distances to its nearest neighbours (Krum).

    It has len − liars − 2 of them (Blanchard et al., NeurIPS 2017); at least one.
    """
    squared = torch.cdist(vectors, vectors).square()
    neighbours = max(1, len(vectors) - liars - 2)
    # The smallest distance of every row is 0, to itself.
    return squared.sort(1).values[:, 1 : neighbours + 1].sum(1)


def krum(vectors: Tensor, share: float, *, multi: bool) -> list[int]:
    """Return the rows closest to their neighbours: one, or with ``multi`` all but the liars'."""
    liars = at_most(share, len(vectors))
    chosen = len(vectors) - liars if multi else 1
    order = krum_scores(vectors, liars).argsort(stable=True)
    return sorted(order[:chosen].tolist())


def agreeing(updates: Tensor) -> list[int]:
    """Return the rows that do not point away from the common direction.

    That is the geometric median of the rows' directions, so a minority cannot turn it.
    """
    directions = F.normalize(updates.double(), dim=1)
    along = directions @ geometric_median(directions)
    return (along >= 0).nonzero().flatten().tolist()
