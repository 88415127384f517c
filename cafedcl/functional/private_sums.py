"""Sums to which no client adds more than a bounded amount, and noise for them.

A client's contribution is one vector. It has parts, such as an update of the model and its weight,
each of which is clipped to its maximum length. Divided by that length and multiplied by the root
of its share of the budget, all parts together have at most norm 1: that is the sensitivity of the
sum. Noise of one standard deviation is added to all coordinates, so a part with a larger share has
less noise in its own unit.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TINIEST = 1e-30
"""Vectors that are shorter are left as they are; divided by their length, they would overflow."""
SECURE_DRAWS = 4
"""Normal numbers that are summed into one number of `system_normal`."""


class BoundedPart(NamedTuple):
    """A part of a contribution: how many numbers it has, how long it may be, and its share."""

    size: int
    longest: float
    share: float

    @property
    def unit(self) -> float:
        """What a part is divided by in the sum."""
        return self.longest / math.sqrt(self.share)


@dataclass(frozen=True)
class Contributions:
    """Joins parts into contributions, and splits sums into parts again. Shares sum to 1."""

    parts: Mapping[str, BoundedPart]

    @property
    def size(self) -> int:
        """The number of coordinates of a contribution."""
        return sum(part.size for part in self.parts.values())

    def vector(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return a client's contribution; its norm is at most 1, whatever the values are."""
        pieces = [
            clipped(values[name].double().flatten(), part.longest) / part.unit
            for name, part in self.parts.items()
        ]
        # The norm of all parts together may exceed 1 by rounding, which this removes.
        return clipped(torch.cat(pieces), 1.0)

    def sums(self, total: Tensor) -> dict[str, Tensor]:
        """Return the parts of a sum of contributions, in their own units."""
        sizes = [part.size for part in self.parts.values()]
        pieces = zip(self.parts.items(), total.split(sizes), strict=True)
        return {name: piece * part.unit for (name, part), piece in pieces}

    def deviation(self, name: str, noise: float) -> float:
        """Return the standard deviation of a part's noise, in the part's own unit."""
        return noise * self.parts[name].unit


def clipped(vectors: Tensor, longest: float) -> Tensor:
    """Return vectors, or the rows of a table, with those that are too long clipped."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    factors: Tensor = (longest / lengths.clamp_min(TINIEST)).clamp(max=1.0)
    return vectors * factors


def capped_weights(weights: Tensor, most: float) -> Tensor:
    """Return weights divided by the largest allowed one; larger ones are capped to it."""
    return (weights.double() / most).clamp(0.0, 1.0)


def next_clip(clip: float, within: float, quantile: float, rate: float = 0.2) -> float:
    """Return the clipping length of the next round (Andrew et al., NeurIPS 2021).

    ``within`` is the noisy share of the updates that were not longer than ``clip``.
    """
    share = min(max(within, 0.0), 1.0)
    return clip * math.exp(-rate * (share - quantile))


def system_normal(size: int) -> npt.NDArray[np.float64]:
    """Return normal numbers from the operating system's randomness.

    Every number is the sum of several draws, divided by the root of their number. That hides which
    floating-point numbers a single draw cannot reach, which would reveal the sum below the noise
    (Holohan and Braghin, ESORICS 2021).
    """
    uniform = np.frombuffer(os.urandom(16 * SECURE_DRAWS * size), np.uint64) >> np.uint64(11)
    # Box and Muller; numbers of 53 bits in (0, 1], whose logarithm is finite.
    u, v = ((uniform + np.uint64(1)) * 2.0**-53).reshape(2, SECURE_DRAWS, size)
    draws = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
    summed: npt.NDArray[np.float64] = draws.sum(0) / math.sqrt(SECURE_DRAWS)
    return summed
