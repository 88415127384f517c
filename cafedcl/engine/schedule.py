"""What a client's training sees, step by step: drawn on the host, padded to a width that captures
exist for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.rng import stream, torch_stream
from cafedcl.core.tensors import Tensors
from cafedcl.engine.flip_and_crop import draw
from cafedcl.task.task import Task

FIXED = 16.0
"""What a step costs besides its images, in images."""
WASTE = 1.1
"""How much more than without padding the steps of all clients may cost, if there are widths left to
avoid it.
"""
POINTS = 128
"""How many different batch sizes are told apart when widths are chosen."""


@dataclass(frozen=True)
class Schedule:
    """The steps of one visit. Padding repeats an image with weight 0."""

    tables: Tensors
    """Per step: ``rows`` into the training set, their ``weight``, the learning ``rate``, whether it
    is the ``first`` of its epoch, and what augmentation draws.
    """
    shares: npt.NDArray[np.float64]
    """Per step of an epoch: its share of the epoch's images."""
    keys: dict[str, object]
    """Tables of the same name and mark have the same content; those without one have their own."""

    @cached_property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.tables["rows"])

    def losses(self, names: Sequence[str], log: npt.NDArray[np.float32]) -> dict[str, float]:
        """Return the mean of every term over the last epoch from what was logged at every step."""
        last = log[self.steps - len(self.shares) : self.steps]
        return dict(zip(names, (self.shares @ last).tolist(), strict=True))


def make_schedule(
    task: Task, shard: npt.NDArray[np.int64], client: int, round: int, width: int
) -> Schedule:
    """Draw a client's batches as the reference engine does, and pad them to a width."""
    options = task.schedule.options
    images = len(shard)
    size = task.schedule.batch_size(images)
    pattern = _pattern(images, size, width, options.epochs)
    steps = len(pattern.sizes)
    full = images // size
    draws = stream(task.seed, "batches", client, round)
    rows = np.full((options.epochs, steps, width), shard[0])
    order = shard[np.array([draws.permutation(images) for _ in rows])]
    rows[:, :full, :size] = order[:, : full * size].reshape(len(order), full, size)
    if full < steps:
        rows[:, full, : images - full * size] = order[:, full * size :]
    rates = tuple(task.schedule.learning_rate(round, epoch) for epoch in range(options.epochs))
    tables = {
        "rows": torch.from_numpy(rows.reshape(-1, width)),
        "weight": pattern.weight,
        "rate": _rate(rates, steps),
        "first": pattern.first,
    }
    if options.flip or options.crop:
        with torch_stream(task.seed, "client", client, round):
            drawn = [draw(int(n), options) for _ in rates for n in pattern.sizes]
        tables |= {
            f"draw/{name}": _padded([each[name] for each in drawn], width) for name in drawn[0]
        }
    keys: dict[str, object] = {"weight": (images, size), "first": steps, "rate": (round, steps)}
    if task.tail.augmenter.options.weight != 1:
        synthetic = tables["rows"] >= len(task.clients.data.train_y)
        tables["weight"] = torch.where(
            synthetic, task.tail.augmenter.options.weight * pattern.weight, pattern.weight
        )
        del keys["weight"]
    return Schedule(tables, pattern.shares, keys)


class Pattern(NamedTuple):
    """What follows from how many images a client has: real images per step of an epoch, and tables
    of all steps.
    """

    sizes: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    weight: Tensor
    first: Tensor


@lru_cache(maxsize=1024)
def _pattern(images: int, size: int, width: int, epochs: int) -> Pattern:
    """Return the steps of a client."""
    steps = -(-images // size)
    sizes = np.minimum(size, images - size * np.arange(steps))
    weight = (np.arange(width) < sizes[:, None]).astype(np.float32)
    first = np.arange(steps) == 0
    return Pattern(
        sizes,
        sizes / images,
        torch.from_numpy(np.tile(weight, (epochs, 1))),
        torch.from_numpy(np.tile(first, epochs)),
    )


@lru_cache(maxsize=64)
def _rate(rates: tuple[float, ...], steps: int) -> Tensor:
    """Return the learning rate of every step, which is that of its epoch."""
    return torch.tensor(rates).repeat_interleave(steps)


def _padded(draws: Sequence[Tensor], width: int) -> Tensor:
    table = draws[0].new_zeros((len(draws), width, *draws[0].shape[1:]))
    for row, values in zip(table, draws, strict=True):
        row[: len(values)] = values
    return table


def choose_widths(sizes: Sequence[int], most: int) -> list[int]:
    """Return the fewest widths, at most ``most``, to pad clients' batch sizes to at little waste,
    in rising order.
    """
    asked = np.sort(np.asarray(sizes))
    points = np.unique(asked[np.unique(np.linspace(0, len(asked) - 1, POINTS).round().astype(int))])
    number = np.histogram(asked, np.r_[-1, points] + 0.5)[0].astype(float)
    below = np.r_[0.0, np.cumsum(number)]
    enough = WASTE * float((number * (points + FIXED)).sum())
    best = np.where(np.arange(len(points) + 1) == 0, 0.0, np.inf)
    cuts: list[npt.NDArray[np.int64]] = []
    for _ in range(most):
        costs = best[None, :] + (below[1:, None] - below[None, :]) * (points[:, None] + FIXED)
        costs[np.arange(len(points))[:, None] < np.arange(len(points) + 1)[None, :]] = np.inf
        cuts.append(costs.argmin(1))
        best = np.r_[np.inf, costs.min(1)]
        if best[-1] <= enough:
            break
    widths: list[int] = []
    end = len(points)
    for cut in reversed(cuts):
        widths.insert(0, int(points[end - 1]))
        end = int(cut[end - 1])
        if end == 0:
            break
    return widths
