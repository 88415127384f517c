"""What makes a client's steps private: which images are in a step, and how much noise."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.rng import stream
from cafedcl.functional.private_sums import system_normal

Draw = Callable[[int], npt.NDArray[np.float64]]
"""Returns the given number of random numbers."""


@dataclass(frozen=True)
class PrivateSteps:
    """Noise and batches of DP-SGD (Abadi et al., CCS 2016)."""

    noise: float
    """Standard deviation of the noise in units of ``clip``."""
    clip: float
    """The longest gradient of one image."""
    seed: int
    from_system: bool
    """Whether random numbers come from the operating system instead of the seed."""

    def draws(self, client: int, round: int) -> "StepDraws":
        """Return the random numbers of a client's visit."""
        if self.from_system:
            return StepDraws(system_uniform, system_normal)
        batches = stream(self.seed, "private batches", client, round)
        noise = stream(self.seed, "private noise", client, round)
        return StepDraws(batches.random, noise.standard_normal)


@dataclass(frozen=True)
class StepDraws:
    """The random numbers of one visit, in the order of its steps."""

    uniform: Draw
    normal: Draw

    def batch(self, images: int, rate: float) -> Tensor:
        """Return the images of one step: each takes part with the same probability."""
        return torch.from_numpy(np.flatnonzero(self.uniform(images) < rate))

    def noise(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of a vector."""
        return torch.from_numpy(self.normal(len(like))).to(like)


def system_uniform(size: int) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) from the operating system's randomness."""
    numbers = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(11)
    return numbers.astype(np.float64) * 2.0**-53
