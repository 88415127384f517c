"""k-means for all classes of a client and all starts at once, on any device."""

import torch
from torch import Tensor

STARTS = 10
TRIALS = 3
ROUNDS = 25
NEAR = 1e-5
"""Starts whose costs differ by less than this share found the same: the first of them is taken, on
every device.
"""


def k_means(z: Tensor, y: Tensor, classes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return k centroids of every class, fewer for fewer distinct points, and before them the class
    of each.

    ``classes`` are the classes in ``y``, in order. Of ten starts by k-means++ with a fixed seed the
    one of least cost is taken, for each class by itself. A cluster that nothing is nearest to stays
    where it was. Which of a class's centroids comes first does not depend on the start that found
    them, nor on the last bit of a point.
    """
    points, times, distinct = parted(z, y, classes)
    middle = (times[:, None] @ points) / times.sum(1)[:, None, None]
    scene = Scene(points - middle, times)
    number = min(k, max(distinct))
    used = torch.arange(number) < torch.tensor(distinct)[:, None]
    cost, centres = scene.settle(scene.seeds(number), used.to(z.device, non_blocking=True))
    best = (cost <= cost.amin(1, keepdim=True) * (1 + NEAR)).byte().argmax(1)
    mine, which = (index.to(z.device, non_blocking=True) for index in used.nonzero(as_tuple=True))
    found = centres[mine, best[mine], which] + middle[mine, 0]
    order = order_of(found, mine)
    return classes[mine[order]], found[order]


def parted(z: Tensor, y: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Return each class's distinct points, how often each occurs, and their number; padding occurs
    zero times.

    Alike points are neighbours in the order of their class and of one sum over their coordinates.
    The numbers are the only thing that the device is waited for.
    """
    order = order_of(z, y)
    z = z[order]
    y = y[order]
    new = torch.ones_like(y)
    new[1:] = (z[1:] != z[:-1]).any(1) | (y[1:] != y[:-1])
    group = torch.searchsorted(classes, y)
    distinct = torch.zeros_like(classes).index_add_(0, group, new)
    at = group, new.cumsum(0) - 1 - (distinct.cumsum(0) - distinct)[group]
    numbers: list[int] = distinct.tolist()
    points = z.new_zeros(len(classes), max(numbers), z.shape[1]).index_put_(at, z)
    times = z.new_zeros(points.shape[:2]).index_put_(at, z.new_ones(len(z)), accumulate=True)
    return points, times, numbers


def order_of(z: Tensor, group: Tensor) -> Tensor:
    """Return the order of points by their group, and in it by one sum over their coordinates."""
    wide = z.dtype if z.device.type == "mps" else torch.float64  # which that device does not have
    order = (
        z.to(wide) @ torch.arange(1.0, z.shape[1] + 1, dtype=wide, device=z.device).sqrt()
    ).argsort()
    return order[group[order].argsort(stable=True)]


class Scene:
    """Points of several groups (groups, rows, dim) that occur so many times (groups, rows), their
    mean at zero.
    """

    def __init__(self, points: Tensor, times: Tensor) -> None:
        self.points = points
        self.times = times
        self.norms = points.square().sum(2)

    def distances(self, centres: Tensor) -> Tensor:
        """Return the squared distances (groups, starts, …, rows) to centres (groups, starts, …,
        dim).
        """
        flat = centres.flatten(1, -2)
        norms = self.norms[:, None] + flat.square().sum(2)[..., None]
        away = torch.baddbmm(norms, flat, self.points.mT, alpha=-2).clamp_min_(0)
        return away.view(*centres.shape[:-1], -1)

    def seeds(self, number: int) -> Tensor:
        """Return so many points for every start, (groups, starts, number, dim): different ones
        while there are any.

        After a first one drawn at random, each is the best of a few, drawn by their squared
        distance to those before.
        """
        drawn = torch.rand(number, STARTS, TRIALS, generator=torch.Generator().manual_seed(0))
        drawn[0] = drawn[0, :, :1].clone()
        free = self.times[:, None].repeat(1, STARTS, 1)
        near = torch.full_like(free, torch.inf)
        seeds = list[Tensor]()
        for draw in drawn.to(self.points, non_blocking=True):
            chance = (free * near if seeds else free).cumsum(2)[:, :, None]
            chosen = (
                ((chance > draw[..., None] * chance[..., -1:]) & (free > 0)[:, :, None])
                .byte()
                .argmax(3)
            )
            index = chosen.flatten(1)[..., None].expand(-1, -1, self.points.shape[2])
            tried = self.points.gather(1, index).view(*chosen.shape, -1)
            left = torch.minimum(near[:, :, None], self.distances(tried))
            best = (left * self.times[:, None, None]).sum(3).argmin(2, keepdim=True)
            free.scatter_(2, chosen.gather(2, best), 0.0)
            near = left.take_along_dim(best[..., None], 2)[:, :, 0].clamp_min_(
                torch.finfo(left.dtype).tiny
            )
            seeds.append(tried.take_along_dim(best[..., None], 2))
        return torch.cat(seeds, 2)

    def settle(self, centres: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs (groups, starts) and the centres after Lloyd's rounds; ``used`` tells
        which ones count.
        """
        unused = ~used[:, None, :, None]
        index = torch.arange(used.shape[1], device=used.device)
        for _ in range(ROUNDS):
            nearest = (
                self.distances(centres).masked_fill_(unused, torch.inf).argmin(2, keepdim=True)
            )
            member = (nearest == index[:, None]) * self.times[:, None, None]
            sums = (member.flatten(1, 2) @ self.points).view_as(centres)
            size = member.sum(3, keepdim=True)
            before = centres
            centres = torch.where(size > 0, sums / size.clamp_min(1), centres)
            if centres.is_cpu and torch.equal(before, centres):
                break
        least = self.distances(centres).masked_fill_(unused, torch.inf).amin(2)
        return (least * self.times[:, None]).sum(2), centres
