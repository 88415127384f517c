"""Record-level differential privacy: what clients send hardly depends on any single image.

Clients add noise to every step themselves (`engine/private_steps.py`). This module tracks the cost:
every client has its own number of steps and its own share of images per step, so its own ε.
"""

import math
from collections.abc import Sequence

import torch

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors
from cafedcl.federation.accounting import Accountant
from cafedcl.federation.participants import Participants
from cafedcl.federation.spending import Spending
from cafedcl.methods.base import Method
from cafedcl.task.task import Task

VISITS = "server/privacy/visits"
"""The state's entry with the number of rounds in which each client has trained."""
RATES = 200
"""Sampling rates are rounded up to multiples of 1/200, so that ε is computed for few of them."""


class RecordPrivacy(Spending):
    """Tracks the noisy steps of every client; ε is the largest of any client."""

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        check_records(config, task)
        self.accountant = Accountant(self.options, "privacy.kind = records")
        self.again = 0
        """Rounds that were recorded before the run returned to a checkpoint, and are repeated."""
        self.steps = [self.worst(*few_and_many) for few_and_many in possible_samples(task)]
        """Of every client, the largest share of images per step, and the most steps of a visit."""
        self.participants = Participants(config, len(self.steps))
        self.check_budget(self.start({}))

    def worst(self, few: float, many: float) -> tuple[float, int]:
        """Return the largest sampling rate and the most steps of a visit to a client with a number
        of images between ``few`` and ``many``.
        """
        schedule = self.task.schedule
        options = schedule.options
        least = max(1, int(few))
        if few == many:
            return schedule.batch_size(least) / least, schedule.steps(least)
        if options.batch_size:
            if math.isinf(many):
                raise CafedclError(
                    "release.counts = withheld: how often a client trains on an image, and so ε, "
                    "is not known; use rounded counts, or train.iterations instead of "
                    "train.batch_size"
                )
            return options.batch_size / least, schedule.steps(int(many))
        # With a fixed number of iterations per epoch, the share of images falls from here on.
        numbers = range(least, least + options.iterations + 1)
        rate = max(schedule.batch_size(number) / number for number in numbers)
        return rate, options.epochs * options.iterations

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, in which nobody has trained."""
        return {**state, VISITS: torch.zeros(len(self.steps), dtype=torch.int64)}

    def visited(self, state: Tensors, clients: Sequence[int]) -> Tensors:
        """Return the state after a round in which these clients trained."""
        visits = state[VISITS].clone()
        visits[list(clients)] += 1
        return {**state, VISITS: visits}

    def epsilons(self, state: Tensors) -> list[float]:
        """Return every client's ε in a state."""
        found = []
        for (rate, steps), visits in zip(self.steps, state[VISITS].tolist(), strict=True):
            rounded = min(1.0, math.ceil(RATES * rate) / RATES)
            found.append(self.accountant.epsilon(rounded, steps * (visits + self.again)))
        return found

    def epsilon(self, state: Tensors, first: int, rounds: int) -> float:
        """Return the largest ε of any client after more rounds, given who takes part in them."""
        for round in range(first, first + rounds):
            sampled, dropped = self.participants(round)
            state = self.visited(state, [client for client in sampled if client not in dropped])
        return max(self.epsilons(state))

    def after_round(self, state: Tensors, round: int) -> dict[str, float]:
        """Return what the record of a round says; ``state`` is the one after it."""
        now = self.epsilons(state)
        later = self.epsilon(state, round + 1, 1) if self.options.budget else 0.0
        return {**self.spent(max(now), later), "least_epsilon": min(now)}

    def resume(self, round: int, recorded: int) -> None:
        """Continue from a round's checkpoint; ``recorded`` private rounds had been recorded."""
        super().resume(round, recorded)
        self.again = self.releases - round


def possible_samples(task: Task) -> list[tuple[float, float]]:
    """Return the fewest and the most training images that each client may have.

    The two are equal unless the images are at sites, which may not report exact counts.
    """
    counts = task.clients.shards.counts.cpu()
    low = high = counts.double()
    if task.clients.remote:
        low, high = task.release.possible_counts(counts)
    return list(zip(low.sum(1).tolist(), high.sum(1).tolist(), strict=True))


def check_loss(method: Method) -> None:
    """Refuse a method that noise in every step does not protect."""
    if not method.per_image:
        raise CafedclError(
            f"privacy.kind = records: the loss of {method.name} is not a mean over single images, "
            "or it sends more than weights, which noise in the steps does not cover; use fedavg, "
            "fedprox, fedbn, moon or local. A method of your own whose loss is such a mean says so "
            "by `per_image = True`"
        )


def check_records(config: Config, task: Task) -> None:
    """Refuse options that noise in every step does not protect."""
    check_loss(task.method)
    if config.augment.name != "none":
        raise CafedclError(
            f"augment.name = {config.augment.name}: synthetic images reveal real ones without "
            "noise; leave it out, or leave out privacy.kind = records"
        )
    running = [name for name, _ in task.network.named_buffers()]
    if running:
        raise CafedclError(
            f"privacy.kind = records: the model {config.model.name} has running statistics "
            f"('{running[0]}'), in which images mix; choose a model without batch norm"
        )
