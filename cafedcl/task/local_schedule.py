"""How long clients train, with which batch size and learning rate."""

import math
from dataclasses import dataclass
from functools import lru_cache

from cafedcl.config.train_options import TrainOptions


@dataclass(frozen=True)
class LocalSchedule:
    """How long clients train, with which batch size and learning rate."""

    options: TrainOptions
    typical: int
    """Training images of an average client."""
    pooled: bool
    """Whether one client has all images: its batches are then those of an average client."""
    rounds: int
    """The rounds of the run."""

    def batch_size(self, samples: int) -> int:
        """Return a client's batch size: fixed, or such that an epoch has the wanted number of
        iterations.
        """
        size = self.typical if self.pooled else samples
        return self.options.batch_size or math.ceil(size / self.options.iterations)

    def steps(self, samples: int) -> int:
        """Return the optimizer steps of a visit to a client with the given number of images."""
        return self.options.epochs * math.ceil(samples / self.batch_size(samples))

    def learning_rate(self, round: int, epoch: int) -> float:
        """Return the learning rate of one local epoch."""
        options = self.options
        if round < options.warmup:
            return options.lr * (round + 1) / (options.warmup + 1)
        if options.schedule == "cosine":
            # The share of the rounds after the warm-up that has passed.
            passed = (round - options.warmup) / max(1, self.rounds - options.warmup)
            return options.lr * (1 + math.cos(math.pi * passed)) / 2
        decays = round + epoch if options.lr_decay_in_round else round
        return options.lr * options.lr_decay**decays

    def summed_rates(self, samples: int, round: int) -> float:
        """Return how far a gradient of 1 in every step of SGD would move a weight in a visit.

        That is the sum of the learning rates over all steps. With momentum β, step j goes
        1 + β + … + βʲ times as far.
        """
        epochs = self.options.epochs
        ways = _ways(epochs, self.steps(samples) // epochs, self.options.momentum)
        return sum(self.learning_rate(round, epoch) * way for epoch, way in enumerate(ways))


# Every visit of every method asks for it, and clients have few different sizes.
@lru_cache(maxsize=1024)
def _ways(epochs: int, steps: int, momentum: float) -> tuple[float, ...]:
    """Return how far a gradient of 1 in every step goes in each epoch at a learning rate of 1."""
    ways = []
    velocity = 0.0
    for _ in range(epochs):
        way = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            way += velocity
        ways.append(way)
    return tuple(ways)
