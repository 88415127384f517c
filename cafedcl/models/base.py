"""Encoders and networks. Encoders are independent of methods; a method adds its own head."""

from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors, under

FIXED_STATISTICS = "fixed_statistics"
"""The attribute of a batch normalisation that says whether its statistics never change."""


class Encoder(nn.Module):
    """Maps images to features. Subclasses define their stages; pooling and the last ReLU are here.

    Stages are returned *before* their ReLU, the stem's first, so that a method can use any level.
    """

    dim: int
    channels_last: ClassVar[bool] = False
    """Whether it is faster with the channels last in memory, where oneDNN's kernels are used."""

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the pre-ReLU output of the stem and of every stage."""
        raise NotImplementedError

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return pooled features of every stage before its ReLU, and the encoder's features."""
        stages = self.stages(x)
        return [average_pool(stage) for stage in stages], average_pool(F.relu(stages[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of the last stage, after its ReLU."""
        return average_pool(F.relu(self.stages(x)[-1]))


def frozen_names(encoder: nn.Module) -> frozenset[str]:
    """Return the names of tensors that training never changes: frozen weights, fixed statistics."""
    parameters = encoder.named_parameters(remove_duplicate=False)
    names = {name for name, weight in parameters if not weight.requires_grad}
    for prefix, module in encoder.named_modules():
        if getattr(module, FIXED_STATISTICS, False):
            names |= {f"{prefix}.{key}" for key, _ in module.named_buffers(recurse=False)}
    return frozenset(names & encoder.state_dict().keys())


class GivenFeatures(nn.Module):
    """Takes the place of a frozen encoder whose features, (N, features, 1, 1), are the input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        return x.flatten(1)


class Factory(Protocol):
    """Builds an encoder for images of one shape; ``width`` multiplies its channels."""

    def __call__(self, shape: Shape, width: float) -> nn.Module:
        """Build an encoder."""


class Runner:
    """Runs a network's encoder in plain PyTorch. An engine may replace it by a faster one."""

    def features(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return encoder(x)  # type: ignore[no-any-return]

    def levels(self, encoder: Encoder, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return pooled features of every stage before its ReLU, and the encoder's features."""
        return encoder.levels(x)

    def frozen(self, encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features under other weights."""
        return functional_call(encoder, weights, (x,))  # type: ignore[no-any-return]


class Network(nn.Module):
    """An encoder and the method's head on it."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.runner = Runner()
        self.shift: Tensor | None = None
        """Added to the features of a batch's images, for augmentation in feature space."""
        self.chosen = False
        """Whether the encoder was chosen by the size of the images instead of by the user."""
        self.notes: tuple[str, ...] = ()
        """Remarks for the user about how the encoder was made."""

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
        """Return pooled features of every stage before its ReLU, and the encoder's features."""
        if not isinstance(self.encoder, Encoder):
            raise CafedclError("this model has no stages; derive it from cafedcl.extend.Encoder")
        levels, features = self.runner.levels(self.encoder, x)
        return [*levels[:-1], self._shifted(levels[-1])], self._shifted(features)

    @torch.no_grad()
    def frozen(self, weights: Tensors, x: Tensor, *parts: str) -> Tensor:
        """Return the output under other weights: the encoder, then the named parts of the head."""
        training = self.training
        self.eval()
        x = self._shifted(self.runner.frozen(self.encoder, under("encoder.", weights), x))
        for part in parts:
            x = functional_call(self.part(part), under(f"head.{part}.", weights), (x,))
        self.train(training)
        return x

    def _shifted(self, features: Tensor) -> Tensor:
        return features if self.shift is None else features + self.shift


def average_pool(features: Tensor) -> Tensor:
    """Average over height and width, if there are such dimensions."""
    return features.mean((2, 3)) if features.dim() == 4 else features
