"""What an encoder is. An encoder knows nothing of methods; a method puts its own head on it."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.errors import CafedclError

Shape = tuple[int, int, int]


class Encoder(nn.Module):
    """Images to features. Subclasses give their stages; pooling and the last ReLU are here.

    ``stages`` are outputs *before* their ReLU, the stem's first, so that a method can look at any level.
    """

    dim: int

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the pre-ReLU output of the stem and of every stage."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of the last stage, after its ReLU."""
        return pool(F.relu(self.stages(x)[-1]))


class Factory(Protocol):
    """What builds an encoder for images of one shape; ``width`` multiplies its channels."""

    def __call__(self, shape: Shape, width: float) -> nn.Module:
        """Build it."""


class Network(nn.Module):
    """An encoder and the method's head on it."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's output."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]

    def part(self, name: str) -> nn.Module:
        """Return a named part of a head that has several."""
        return self.head.get_submodule(name)

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the pooled features of every stage before its ReLU, and the encoder's own features."""
        if not isinstance(self.encoder, Encoder):
            raise CafedclError("this model does not show its stages; derive it from cafedcl.models.Encoder")
        stages = self.encoder.stages(x)
        return [pool(stage) for stage in stages], pool(F.relu(stages[-1]))

    @torch.no_grad()
    def frozen(self, weights: dict[str, Tensor], x: Tensor, parts: tuple[str, ...]) -> Tensor:
        """Return what other weights would make of ``x``, sent through the named parts in turn, in evaluation mode."""
        training = self.training
        self.eval()
        for part in parts:
            own = {name.removeprefix(part + "."): w for name, w in weights.items() if name.startswith(part + ".")}
            x = functional_call(self.get_submodule(part), own, (x,))
        self.train(training)
        return x


def pool(features: Tensor) -> Tensor:
    """Average over space, if there is any."""
    return features.mean((2, 3)) if features.dim() == 4 else features
