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
    """Return the factors that clip vectors to at most ``factor`` median lengths; 1 for most."""
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
    """Return the point with the least sum of distances to the others, by Weiszfeld's iteration.

    The points are along the first axis; each may be a vector, a matrix and so on.
    """
    # A norm of matrices along one axis would be one per column.
    rows = points.flatten(1)
    centre = rows.mean(0)
    for _ in range(WEISZFELD_STEPS):
        weights = 1 / torch.linalg.vector_norm(rows - centre, dim=1).clamp_min(1e-12)
        centre = (weights[:, None] * rows).sum(0) / weights.sum()
    return centre.view(points.shape[1:])


def pulled_in(points: Tensor, factor: float) -> Tensor:
    """Return the points, with those far from the geometric median pulled towards it.

    They are along the first axis. None ends farther from the median than ``factor`` median
    distances; nearer points stay bit for bit. With fewer than three nobody can say which one is
    wrong, so they all stay.
    """
    if len(points) < 3:
        return points
    rows = points.flatten(1)
    exact = rows.double()
    centre = geometric_median(exact)
    offsets = exact - centre
    factors = clip_factors(torch.linalg.vector_norm(offsets, dim=1), factor)
    moved = (centre + factors[:, None] * offsets).to(points.dtype)
    return torch.where((factors < 1)[:, None], moved, rows).view(points.shape)


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


def label_overlap(counts: Tensor) -> Tensor:
    """Return how alike the classes of any two clients are: Σ_c √(π_{k,c}·π_{j,c}), from 0 to 1.

    ``counts`` is (clients, classes). The diagonal is 0: nobody is compared with itself.
    """
    roots = F.normalize(counts.double(), p=1, dim=1).sqrt()
    overlap = roots @ roots.T
    return overlap.fill_diagonal_(0)


def peer_agreement(cosines: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's mean cosine with the others, weighted by overlap, and if it has any."""
    weight = overlap.sum(1)
    agreement = (overlap * cosines).sum(1) / weight.clamp_min(1e-12)
    return agreement, weight > 0


def cross_checked(claims: Tensor, low: Tensor, high: Tensor, vectors: Tensor) -> Tensor:
    """Return the claims, limited by how well the claimants' vectors agree with all of them.

    A claim counts as at most low + (high − low)·max(0, ⟨p, r⟩), where r is the direction of the
    vectors' geometric median; vectors longer than 1 count as unit vectors. With fewer than three
    vectors nobody can say which one is wrong, so nothing is limited.
    """
    if len(vectors) < 3:
        return claims
    exact = vectors.double()
    exact = exact / torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp_min(1)
    agreement = (exact @ F.normalize(geometric_median(exact), dim=0)).clamp(0, 1)
    return torch.minimum(claims, (low + (high - low) * agreement).to(claims.dtype))
