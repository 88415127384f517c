"""What the server tells every client of a round besides the weights, laid once where all lanes read
it.
"""

import torch
from torch import Tensor

from cafedcl.core.tensors import ANCHORS, Tensors, under

Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]
KEPT = 4
"""Anchors of so many different shapes keep their place, and so many sets of anchors and memories
their captures.
"""


class Broadcast:
    """Anchors, the round and the progress of the run, in tensors that captures refer to."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device = device
        self.rounds = rounds
        self.round, self.progress = (torch.zeros((), device=device) for _ in range(2))
        self.slices: dict[Shapes, Tensors] = {}
        self.anchors: Tensors = {}

    def lay(self, tensors: Tensors) -> None:
        """Lay a round's anchors; nobody reads the last ones any more."""
        anchors = under(ANCHORS, tensors)
        shape = shapes(anchors)
        place = self.slices.pop(shape, None)
        self.anchors = (
            {n: v.to(self.device, copy=True) for n, v in anchors.items()}
            if place is None
            else place
        )
        if place is not None:
            copy_into(place, anchors)
        self.slices[shape] = self.anchors
        while len(self.slices) > KEPT:
            del self.slices[next(iter(self.slices))]

    def date(self, round: int) -> None:
        """Say which round it is."""
        self.round.fill_(round)
        self.progress.fill_(round / self.rounds)

    def values(self) -> list[Tensor]:
        """Return all tensors that a later message overwrites."""
        return [
            self.round,
            self.progress,
            *(value for place in self.slices.values() for value in place.values()),
        ]


def shapes(tensors: Tensors) -> Shapes:
    """Return names, shapes and types."""
    return tuple((name, value.shape, value.dtype) for name, value in tensors.items())


def copy_into(static: Tensors, values: Tensors) -> None:
    """Copy values into static tensors."""
    for name, tensor in static.items():
        tensor.copy_(values[name], non_blocking=True)
