"""k-means for all classes of a client and all starts at once, on any device."""

from functools import cache

import torch
from torch import Tensor

STARTS = 10
TRIALS = 3
"""Candidates for each seed, of which the best is taken."""
ITERATIONS = 25
SAME_COST = 1e-5
"""Starts whose costs differ by less than this share count as equal, and the first is taken.

So the choice is the same on every device.
"""


def k_means(
    z: Tensor, y: Tensor, classes: Tensor, k: int, *, padded: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the class of every centroid, and the centroids: k of every class.

    A class has fewer if it has fewer distinct points. ``classes`` are in order; points of no class,
    such as those with the label −1, are left out. For each class separately, the best of ten
    k-means++ starts with a fixed seed is taken. An empty cluster stays where it was. The order of
    a class's centroids does not depend on the start that found them, nor on the last bit of a
    point.

    If ``padded``, there are always k rows for every class, and no shape depends on a value, so that
    the work can be captured; the class of a row without a centroid is −1.
    """
    if not len(classes):
        return classes, z[:0]
    points, times, distinct = distinct_points(z, y, classes, padded=padded)
    middle = (times[:, None] @ points) / times.sum(1).clamp_min(1)[:, None, None]
    groups = PointGroups(points - middle, times)
    used = torch.arange(k, device=z.device) < distinct[:, None]
    cost, centres = groups.settle(groups.seeds(k), used)
    best = (cost <= cost.amin(1, keepdim=True) * (1 + SAME_COST)).byte().argmax(1)
    index = best[:, None, None, None].expand(-1, -1, *centres.shape[2:])
    found = (centres.gather(1, index)[:, 0] + middle).flatten(0, 1)
    # Rows without a centroid come last.
    group = torch.arange(len(classes), device=z.device)[:, None].expand_as(used)
    order = order_of(found, group.masked_fill(~used, len(classes)).flatten())
    labels = classes[:, None].expand_as(used).masked_fill(~used, -1).flatten()[order]
    found = found[order]
    if padded:
        return labels, found
    return labels[labels >= 0], found[labels >= 0]


def distinct_points(
    z: Tensor, y: Tensor, classes: Tensor, *, padded: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each class's distinct points, how often each occurs, and how many there are.

    The points of every class are padded to the same number, that of the class with the most, or, if
    ``padded``, of all points. Padding occurs zero times.
    """
    # Equal points are neighbours in this order.
    order = order_of(z, y)
    z = z[order]
    y = y[order]
    group = torch.searchsorted(classes, y).clamp_max(len(classes) - 1)
    counts = classes[group] == y
    new = counts.clone()
    new[1:] &= (z[1:] != z[:-1]).any(1) | (y[1:] != y[:-1])
    distinct = torch.zeros_like(classes).index_add_(0, group, new.long())
    at = new.cumsum(0) - 1 - (distinct.cumsum(0) - distinct)[group]
    # Without padding this waits for the device: the shapes below depend on this number.
    most = len(z) if padded else int(distinct.max())
    # Points of no class go to an extra last row.
    index = group, at.masked_fill(~counts, most)
    points = z.new_zeros(len(classes), most + 1, z.shape[1]).index_put_(index, z)
    times = z.new_zeros(points.shape[:2]).index_put_(index, z.new_ones(len(z)), accumulate=True)
    return points[:, :most], times[:, :most], distinct


def order_of(z: Tensor, group: Tensor) -> Tensor:
    """Return the order of points by group, and in it by a weighted sum of their coordinates."""
    # MPS has no float64.
    dtype = z.dtype if z.device.type == "mps" else torch.float64
    factors = torch.arange(1.0, z.shape[1] + 1, dtype=dtype, device=z.device).sqrt()
    order = (z.to(dtype) @ factors).argsort()
    return order[group[order].argsort(stable=True)]


@cache
def draws(number: int, device: torch.device) -> Tensor:
    """Return the same random numbers at every call. Cached: a capture must not copy to a device."""
    drawn = torch.rand(number, STARTS, TRIALS, generator=torch.Generator().manual_seed(0))
    drawn[0] = drawn[0, :, :1].clone()
    return drawn.to(device)


class PointGroups:
    """Points of several groups (groups, rows, dim), and how often each occurs (groups, rows).

    The mean of every group is at zero.
    """

    def __init__(self, points: Tensor, times: Tensor) -> None:
        self.points = points
        self.times = times
        self.norms = points.square().sum(2)

    def distances(self, centres: Tensor) -> Tensor:
        """Return the squared distances (…, rows) of all points to centres (…, dim)."""
        flat = centres.flatten(1, -2)
        norms = self.norms[:, None] + flat.square().sum(2)[..., None]
        away = torch.baddbmm(norms, flat, self.points.mT, alpha=-2).clamp_min_(0)
        return away.view(*centres.shape[:-1], -1)

    def seeds(self, number: int) -> Tensor:
        """Return ``number`` points for every start, (groups, starts, number, dim), by k-means++.

        They differ as long as there are different points. The first is drawn at random; each of the
        others is the best of a few, drawn in proportion to the squared distance to those before.
        """
        free = self.times[:, None].repeat(1, STARTS, 1)
        near = torch.full_like(free, torch.inf)
        seeds: list[Tensor] = []
        for draw in draws(number, self.points.device).to(self.points.dtype):
            chance = (free * near if seeds else free).cumsum(2)[:, :, None]
            reached = chance > draw[..., None] * chance[..., -1:]
            chosen = (reached & (free > 0)[:, :, None]).byte().argmax(3)
            index = chosen.flatten(1)[..., None].expand(-1, -1, self.points.shape[2])
            tried = self.points.gather(1, index).view(*chosen.shape, -1)
            left = torch.minimum(near[:, :, None], self.distances(tried))
            best = (left * self.times[:, None, None]).sum(3).argmin(2, keepdim=True)
            free.scatter_(2, chosen.gather(2, best), 0.0)
            # A point at distance 0 keeps a tiny chance, so that one is always found.
            smallest = torch.finfo(left.dtype).tiny
            near = left.take_along_dim(best[..., None], 2)[:, :, 0].clamp_min_(smallest)
            seeds.append(tried.take_along_dim(best[..., None], 2))
        return torch.cat(seeds, 2)

    def settle(self, centres: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs (groups, starts) and the centres after Lloyd's iterations.

        ``used`` says which centres of a group count.
        """
        unused = ~used[:, None, :, None]
        index = torch.arange(used.shape[1], device=used.device)
        for _ in range(ITERATIONS):
            distances = self.distances(centres).masked_fill_(unused, torch.inf)
            # The same as argmin, which takes sixteen times as long on a CPU along such a dimension.
            nearest = distances.min(2, keepdim=True).indices
            member = (nearest == index[:, None]) * self.times[:, None, None]
            sums = (member.flatten(1, 2) @ self.points).view_as(centres)
            size = member.sum(3, keepdim=True)
            before = centres
            centres = torch.where(size > 0, sums / size.clamp_min(1), centres)
            # On a GPU, finding out would wait for the device.
            if centres.is_cpu and torch.equal(before, centres):
                break
        least = self.distances(centres).masked_fill_(unused, torch.inf).amin(2)
        return (least * self.times[:, None]).sum(2), centres
