"""What an encoder is. An encoder knows nothing of methods; a method puts its own head on it."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors, under


class Encoder(nn.Module):
    """Images to features. Subclasses give their stages; pooling and the last ReLU are here.

    ``stages`` are outputs *before* their ReLU, the stem's first, so that a method can look at any
    level.
    """

    dim: int

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the pre-ReLU output of the stem and of every stage."""
        raise NotImplementedError

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the pooled features of every stage before its ReLU, and the encoder's own
        features.
        """
        stages = self.stages(x)
        return [pool(stage) for stage in stages], pool(F.relu(stages[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of the last stage, after its ReLU."""
        return pool(F.relu(self.stages(x)[-1]))


class Factory(Protocol):
    """What builds an encoder for images of one shape; ``width`` multiplies its channels."""

    def __call__(self, shape: Shape, width: float) -> nn.Module:
        """Build it."""


class Runner:
    """How a network's encoder is run. An engine may put a faster one in its place; this is the
    plain one.
    """

    def features(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return encoder(x)  # type: ignore[no-any-return]

    def levels(self, encoder: Encoder, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the pooled features of every stage before its ReLU, and the encoder's own
        features.
        """
        return encoder.levels(x)

    def frozen(self, encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features that other weights would give."""
        return functional_call(encoder, weights, (x,))  # type: ignore[no-any-return]


class Network(nn.Module):
    """An encoder and the method's head on it."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.runner = Runner()
        self.shift: Tensor | None = None
        """What is added to the features of every image of a batch: augmentation in the space of
        features.
        """

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's output."""
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return self._shifted(self.runner.features(self.encoder, x))

    def part(self, name: str) -> nn.Module:
        """Return a named part of a head that has several."""
        return self.head.get_submodule(name)

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the pooled features of every stage before its ReLU, and the encoder's own
        features.
        """
        if not isinstance(self.encoder, Encoder):
            raise CafedclError(
                "this model does not show its stages; derive it from cafedcl.models.Encoder"
            )
        levels, features = self.runner.levels(self.encoder, x)
        return [*levels[:-1], self._shifted(levels[-1])], self._shifted(features)

    @torch.no_grad()
    def frozen(self, weights: Tensors, x: Tensor, *parts: str) -> Tensor:
        """Return what other weights would make of ``x``: the encoder, then the named parts of the
        head in turn.
        """
        training = self.training
        self.eval()
        x = self._shifted(self.runner.frozen(self.encoder, under("encoder.", weights), x))
        for part in parts:
            x = functional_call(self.part(part), under(f"head.{part}.", weights), (x,))
        self.train(training)
        return x

    def _shifted(self, features: Tensor) -> Tensor:
        return features if self.shift is None else features + self.shift


def pool(features: Tensor) -> Tensor:
    """Average over space, if there is any."""
    return features.mean((2, 3)) if features.dim() == 4 else features
