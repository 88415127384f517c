"""What the server broadcasts in a round besides the weights, where all lanes read it."""

import torch
from torch import Tensor

from cafedcl.core.tensors import ANCHORS, Tensors, under

Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]
SHAPES_KEPT = 4
"""Static tensors and captures are kept for this many different shapes; the oldest are freed."""


class Broadcast:
    """Anchors, the round and the progress of the run, in tensors that captures refer to."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device = device
        self.rounds = rounds
        self.round = torch.zeros((), device=device)
        self.progress = torch.zeros((), device=device)
        self.by_shape: dict[Shapes, Tensors] = {}
        self.anchors: Tensors = {}

    def place(self, tensors: Tensors) -> None:
        """Replace the last round's anchors, which are no longer read."""
        anchors = under(ANCHORS, tensors)
        key = shapes(anchors)
        static = self.by_shape.pop(key, None)
        if static is None:
            static = {name: value.to(self.device, copy=True) for name, value in anchors.items()}
        else:
            copy_into(static, anchors)
        self.anchors = static
        self.by_shape[key] = static
        while len(self.by_shape) > SHAPES_KEPT:
            del self.by_shape[next(iter(self.by_shape))]

    def set_round(self, round: int) -> None:
        """Set the number of the round, and the progress that follows from it."""
        self.round.fill_(round)
        self.progress.fill_(round / self.rounds)

    def values(self) -> list[Tensor]:
        """Return all tensors that a later round overwrites."""
        anchors = [value for static in self.by_shape.values() for value in static.values()]
        return [self.round, self.progress, *anchors]


def shapes(tensors: Tensors) -> Shapes:
    """Return names, shapes and types."""
    return tuple((name, value.shape, value.dtype) for name, value in tensors.items())


def copy_into(static: Tensors, values: Tensors) -> None:
    """Copy values into static tensors."""
    for name, tensor in static.items():
        tensor.copy_(values[name], non_blocking=True)
