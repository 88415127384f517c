"""Record-level differential privacy: what clients send nearly does not depend on any one image.

Clients add noise to every step themselves (`engine/private_steps.py`). This keeps account of it:
every client has its own number of steps and its own share of images per step, so its own ε.
"""

import math
from collections.abc import Sequence

import torch

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors
from cafedcl.federation.accounting import Accountant
from cafedcl.federation.spending import Spending
from cafedcl.task.task import Task

VISITS = "server/privacy/visits"
"""The state's entry with the number of rounds in which each client has trained."""
RATES = 200
"""Sampling rates are rounded up to multiples of one over this: few of them have to be computed."""


class RecordPrivacy(Spending):
    """Keeps account of the noisy steps of every client; ε is the largest of any client."""

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        check_records(config, task)
        self.accountant = Accountant(self.options, "privacy.kind = records")
        self.again = 0
        """Rounds that were recorded before the run went back to a checkpoint, and done again."""
        self.samples = task.clients.shards.counts.sum(1).tolist()
        self.check_budget(self.start({}))

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, in which nobody has trained."""
        return {**state, VISITS: torch.zeros(len(self.samples), dtype=torch.int64)}

    def visited(self, state: Tensors, clients: Sequence[int]) -> Tensors:
        """Return the state after a round in which these clients trained."""
        visits = state[VISITS].clone()
        visits[list(clients)] += 1
        return {**state, VISITS: visits}

    def epsilons(self, state: Tensors, rounds: int) -> list[float]:
        """Return every client's ε if it trains in so many rounds more than in a state."""
        found = []
        for samples, visits in zip(self.samples, state[VISITS].tolist(), strict=True):
            schedule = self.task.schedule
            rate = schedule.batch_size(samples) / samples
            steps = schedule.steps(samples) * (visits + rounds + self.again)
            found.append(self.accountant.epsilon(math.ceil(RATES * rate) / RATES, steps))
        return found

    def epsilon(self, state: Tensors, rounds: int) -> float:
        """Return the largest ε of any client after so many rounds more than in a state."""
        return max(self.epsilons(state, rounds))

    def after_round(self, state: Tensors) -> dict[str, float]:
        """Return what the record of a round says; ``state`` is the one after it."""
        now = self.epsilons(state, 0)
        later = self.epsilon(state, 1) if self.options.budget else 0.0
        return {**self.spent(max(now), later), "least_epsilon": min(now)}

    def resume(self, round: int, recorded: int) -> None:
        """Go on after a checkpoint of a round, where so many private rounds had been recorded."""
        super().resume(round, recorded)
        self.again = self.releases - round


def check_records(config: Config, task: Task) -> None:
    """Refuse what noise in every step does not cover."""
    method = task.method
    if not method.per_image:
        raise CafedclError(
            f"privacy.kind = records: the loss of {method.name} is not a mean over single images, "
            "or it sends more than weights, which noise in the steps does not cover; use fedavg, "
            "fedprox, fedbn or moon"
        )
    if config.augment.name != "none":
        raise CafedclError(
            f"augment.name = {config.augment.name}: synthetic images tell about real ones without "
            "noise; leave it out, or leave out privacy.kind = records"
        )
    running = [name for name, _ in task.network.named_buffers()]
    if running:
        raise CafedclError(
            f"privacy.kind = records: the model {config.model.name} has running statistics "
            f"('{running[0]}'), in which images mix; choose a model without batch norm"
        )
