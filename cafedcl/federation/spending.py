"""The privacy budget that a run spends: none, unless a kind of privacy is chosen."""

from collections.abc import Mapping, Sequence

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors
from cafedcl.task.task import Task


class Spending:
    """Tracks the private steps of a run. Without privacy there is nothing to track."""

    noisy_step = False
    """Whether the server step itself is private."""

    def __init__(self, config: Config, task: Task) -> None:
        self.config = config
        self.options = config.privacy
        self.task = task
        self.releases = 0
        """The private rounds so far. A round that is repeated with other noise counts again."""

    @property
    def from_system(self) -> bool:
        """Whether random numbers come from the operating system instead of the seed."""
        return self.options.from_system(own_data=self.config.at_sites)

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, with what is kept."""
        return state

    def visited(self, state: Tensors, clients: Sequence[int]) -> Tensors:  # noqa: ARG002
        """Return the state after a round in which these clients trained."""
        return state

    def epsilon(self, state: Tensors, first: int, rounds: int) -> float:  # noqa: ARG002
        """Return ε after the given number of further rounds, beginning with the ``first``."""
        return 0.0

    def after_round(self, state: Tensors, round: int) -> dict[str, float]:  # noqa: ARG002
        """Return what the record of a round says; ``state`` is the one after it."""
        return {}

    def commit(self, spent: Mapping[str, float]) -> None:
        """Count the private round that is over."""
        self.releases = int(spent.get("releases", 0))

    def resume(self, round: int, recorded: int) -> None:
        """Continue from a round's checkpoint; ``recorded`` private rounds had been recorded.

        The same seed gives the same noise and the same state again: nothing new is revealed.
        """
        self.releases = recorded if self.from_system else round

    def is_exhausted_by(self, state: Tensors, first: int, rounds: int) -> bool:
        """Return whether the given number of rounds from ``first`` on exceeds the budget."""
        budget = self.options.budget
        return bool(budget) and self.epsilon(state, first, rounds) > budget

    def why_exhausted(self, state: Tensors, round: int) -> str:
        """Return in words why a round does not take place."""
        return (
            f"one more round would bring ε to {self.epsilon(state, round, 1):.4g}, above "
            f"privacy.budget = {self.options.budget:g}"
        )

    def spent(self, now: float, later: float) -> dict[str, float]:
        """Return what is recorded of ε: now, and where there is a budget, after one more round."""
        found = {"epsilon": now, "delta": self.options.delta, "releases": self.releases + 1}
        if self.options.budget:
            found |= {"budget": self.options.budget, "next_epsilon": later}
        return found

    def check_budget(self, state: Tensors) -> None:
        """Refuse a budget that the first round exceeds."""
        if self.is_exhausted_by(state, 0, 1):
            raise CafedclError(
                f"privacy.budget = {self.options.budget:g}: the first round alone has ε = "
                f"{self.epsilon(state, 0, 1):.4g}; raise privacy.noise or the budget"
            )
