"""Captures for visits of one shape: the static tensors of a visit, and what a loss and a summary
may know of it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cafedcl.core.contract import Visit
from cafedcl.core.tensors import Tensors
from cafedcl.device.lane import Lane
from cafedcl.device.packed_bytes import PackedBytes

CHAINS = (1, 4, 16)
"""How often a piece of work is repeated in its captures: the more, the fewer launches many
repetitions take.
"""


class VisitResult(NamedTuple):
    """What a visit comes to."""

    sent: Tensors
    """What goes up, but for entries per class."""
    kept: Tensors
    broadcast: Tensor
    """What goes to the host, in one parcel: entries per class, notes, the losses, and whether all
    is sound.
    """
    packed: PackedBytes
    whole: bool
    """Whether entries are of all classes, and not yet of those the client holds."""


class Plan:
    """Static anchors and memory of one shape, and what was captured on them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.kept: Tensors = {}
        self.names: tuple[str, ...] = ()
        self.log = torch.zeros(0)
        self.held = torch.ones_like(visit.client.counts, dtype=torch.bool)
        self.captures: dict[tuple[str, int, int], Callable[[], None]] = {}
        """By what is done, the size of what it is done to, and how often."""
        self.outcomes: dict[int, VisitResult] = {}
        """What captured summaries give, by the passes over the client's images that they take."""

    def prepare(
        self,
        lane: Lane,
        what: str,
        size: int,
        most: int,
        work: Callable[[], None],
        before: Callable[[], object],
    ) -> None:
        """Capture work that is done up to ``most`` times in a row, if it is not yet; ``before``
        makes ready for it.
        """
        for number in CHAINS:
            if number > most or (what, size, number) in self.captures:
                continue

            def chain(number: int = number) -> None:
                for _ in range(number):
                    work()

            before()
            self.captures[what, size, number] = lane.capture(
                chain, before, warm=number == min(CHAINS)
            )

    def repeat(self, what: str, size: int, times: int) -> None:
        """Queue captured work so many times."""
        for number in reversed(CHAINS):
            chains, times = divmod(times, number)
            for _ in range(chains):
                self.captures[what, size, number]()

    def close(self) -> None:
        """Let go of the captures at once: they refer to this plan, so they would stay for a while."""
        self.captures.clear()
