"""What is captured for visits of one shape, and the static tensors that the captures refer to."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cafedcl.core.contract import Visit
from cafedcl.core.tensors import Tensors
from cafedcl.device.lane import Lane
from cafedcl.device.packed_bytes import PackedBytes
from cafedcl.engine.cuda.constants import VisitConstants

CHAINS = (1, 4, 16)
"""How many repetitions one capture holds: longer chains need fewer launches."""
LONG_CHAIN_PAYS = 100
"""The longest chain is captured after this many visits. That takes as long as many launches, so a
short run is faster without it.
"""


class VisitResult(NamedTuple):
    """The client's result: summary, memory and metrics."""

    sent: Tensors
    """What is sent and stays on the device: everything but entries per class."""
    kept: Tensors
    to_host: Tensor
    """What is copied to the host at once: entries per class, notes, losses, and their check."""
    packed: PackedBytes
    """How to read ``to_host``."""
    captured: bool
    """Whether entries may be of any class; the client's own are then picked on the host."""


class Captures:
    """Static anchors and memory of one shape, and the work that was captured on them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.kept: Tensors = {}
        self.constants: VisitConstants | None = None
        """None until the steps are captured."""
        self.loss_names: tuple[str, ...] = ()
        self.loss_log = torch.zeros(0)
        """The terms of the loss at every step, (steps, terms)."""
        self.prior = torch.zeros_like(visit.client.counts)
        self.calls: dict[tuple[str, int, int], Callable[[], None]] = {}
        """Captured work by its kind, the size of its input, and the number of repetitions."""
        self.visits: Counter[tuple[str, int]] = Counter()
        """How often work was queued, by its kind and the size of its input."""
        self.results: dict[int, VisitResult] = {}
        """Where captured summaries leave their results, by the number of images they embed."""

    def prepare(
        self,
        lane: Lane,
        kind: str,
        size: int,
        most: int,
        work: Callable[[], None],
        before: Callable[[], object],
    ) -> None:
        """Capture work that is repeated up to ``most`` times, unless it is already captured.

        ``before`` is called before each warm-up run and before each capture.
        """
        for number in CHAINS:
            if number > most or (kind, size, number) in self.calls:
                continue
            if number == max(CHAINS) and self.visits[kind, size] < LONG_CHAIN_PAYS:
                continue

            # The default argument binds this iteration's number.
            def chain(number: int = number) -> None:
                for _ in range(number):
                    work()

            before()
            is_first = number == min(CHAINS)
            self.calls[kind, size, number] = lane.capture(chain, before, warm=is_first)

    def repeat(self, kind: str, size: int, times: int) -> None:
        """Queue captured work the given number of times, in as few launches as possible."""
        self.visits[kind, size] += 1
        for number in reversed(CHAINS):
            call = self.calls.get((kind, size, number))
            if call is None:
                continue
            chains, times = divmod(times, number)
            for _ in range(chains):
                call()

    def close(self) -> None:
        """Free the captures now: they refer to this object, and a cycle would keep them longer."""
        self.calls.clear()
        self.constants = None
