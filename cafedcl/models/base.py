"""What an encoder is. An encoder knows nothing of methods; a method puts its own head on it."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

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

    def forward(self, x: Tensor, pre_relu: bool = False) -> Tensor:
        """Return the pooled features of the last stage, after its ReLU unless told otherwise."""
        last = self.stages(x)[-1]
        return pool(last if pre_relu else F.relu(last))


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

    def pre_relu(self, x: Tensor) -> Tensor:
        """Return features before the last ReLU, for methods that ask."""
        if not isinstance(self.encoder, Encoder):
            raise CafedclError("this model gives no features before its last ReLU; derive it from cafedcl's Encoder")
        return self.encoder(x, pre_relu=True)  # type: ignore[no-any-return]


def pool(features: Tensor) -> Tensor:
    """Average over space, if there is any."""
    return features.mean((2, 3)) if features.dim() == 4 else features
