"""The batches of a client's visit as tables: drawn on the host, and padded to a fixed width.

A captured step reads one row of each table, so it serves every client whose batches have its width.
"""

import math
import threading
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
from cafedcl.task.task import Task

STEP_COST = 16.0
"""The fixed cost of a step, in images."""
ACCEPTED_COST = 1.1
"""Padding is acceptable if it raises the cost of all steps by no more than this factor."""
_DRAWING = threading.Lock()
"""Threads draw in turn: PyTorch has one generator for all of them."""
MOST_SIZES = 128
"""How many different batch sizes are considered when widths are chosen."""


@dataclass(frozen=True)
class Schedule:
    """The steps of one visit. Padding repeats an image with weight 0."""

    tables: Tensors
    """One row per step: ``rows`` into the training set, their ``weight``, the learning ``rate``,
    whether it is the ``first`` step of its epoch, and the draws of random transforms.
    """
    shares: npt.NDArray[np.float64]
    """For every step of an epoch, its share of the epoch's images."""
    keys: dict[str, object]
    """Tables with the same name and key have the same content; tables without a key may differ."""

    @cached_property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.tables["rows"])

    def losses(self, names: Sequence[str], log: npt.NDArray[np.float32]) -> dict[str, float]:
        """Return the mean of every term over the last epoch, from the log of all steps."""
        last_epoch = log[self.steps - len(self.shares) : self.steps]
        return dict(zip(names, (self.shares @ last_epoch).tolist(), strict=True))


def make_schedule(
    task: Task, shard: npt.NDArray[np.int64], client: int, round: int, width: int
) -> Schedule:
    """Draw a client's batches as the reference engine does, and pad them to a width."""
    options = task.schedule.options
    images = len(shard)
    size = task.schedule.batch_size(images)
    pattern = _pattern(images, size, width, options.epochs)
    steps = len(pattern.sizes)
    draws = stream(task.seed, "batches", client, round)
    order = shard[np.array([draws.permutation(images) for _ in range(options.epochs)])]
    rows = np.full((options.epochs, steps, width), shard[0])
    full = images // size
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
    keys: dict[str, object] = {"weight": (images, size), "first": steps, "rate": (round, steps)}
    if task.transforms:
        sizes = [int(number) for number in pattern.sizes] * options.epochs
        with _DRAWING, torch_stream(task.seed, "client", client, round):
            drawn = [task.transforms.draw(number) for number in sizes]
        for name in drawn[0]:
            tables[f"draw/{name}"] = _padded([draws[name] for draws in drawn], width)
    synthetic_weight = task.tail.augmenter.options.weight
    if synthetic_weight != 1:
        is_synthetic = tables["rows"] >= len(task.clients.data.train_y)
        tables["weight"] = torch.where(
            is_synthetic, synthetic_weight * pattern.weight, pattern.weight
        )
        del keys["weight"]
    return Schedule(tables, pattern.shares, keys)


class Pattern(NamedTuple):
    """The part of a schedule that follows from the number of a client's images."""

    sizes: npt.NDArray[np.int64]
    """Real images at every step of an epoch."""
    shares: npt.NDArray[np.float64]
    weight: Tensor
    first: Tensor


@lru_cache(maxsize=1024)
def _pattern(images: int, size: int, width: int, epochs: int) -> Pattern:
    steps = math.ceil(images / size)
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
    """Return the fewest widths, at most ``most``, that batch sizes can be padded to at little cost.

    A dynamic programme over the sorted sizes s_1 < … < s_n. Let N(i, j) be the number of clients
    with a size among s_{i+1} … s_j. If these are all padded to s_j, their steps cost
    N(i, j)·(s_j + STEP_COST). With w widths the least cost of the first j sizes is

        best_w(j) = min over i < j of  best_{w−1}(i) + N(i, j)·(s_j + STEP_COST),

    with best_0(0) = 0 and best_0(j) = ∞ otherwise. Widths are added until the cost of all sizes is
    accepted, or there are ``most``; the minimisers then give the widths from the largest down.
    """
    ordered = np.sort(np.asarray(sizes))
    # With very many different sizes, evenly spaced ones among the clients represent all.
    chosen = np.unique(np.linspace(0, len(ordered) - 1, MOST_SIZES).round().astype(int))
    candidates = np.unique(ordered[chosen])
    edges = np.concatenate([[-1], candidates]) + 0.5
    clients = np.histogram(ordered, edges)[0].astype(float)
    clients_up_to = np.concatenate([[0.0], np.cumsum(clients)])
    step_costs = candidates + STEP_COST
    accepted = ACCEPTED_COST * float((clients * step_costs).sum())
    ends = np.arange(len(candidates))[:, None]
    begins = np.arange(len(candidates) + 1)[None, :]
    between = clients_up_to[1:, None] - clients_up_to[None, :]
    best = np.where(begins[0] == 0, 0.0, np.inf)
    minimisers: list[npt.NDArray[np.int64]] = []
    for _ in range(most):
        costs = best[None, :] + between * step_costs[:, None]
        costs[ends < begins] = np.inf
        minimisers.append(costs.argmin(1))
        best = np.concatenate([[np.inf], costs.min(1)])
        if best[-1] <= accepted:
            break
    widths: list[int] = []
    end = len(candidates)
    for minimiser in reversed(minimisers):
        widths.insert(0, int(candidates[end - 1]))
        end = int(minimiser[end - 1])
        if end == 0:
            break
    return widths
