"""New images of a tail class from two of its own: blended, or one pasted into the other."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages, TailOptions
from cafedcl.config.options import option


@dataclass(frozen=True)
class MixOptions(TailOptions):
    """How strongly two images are mixed."""

    alpha: float = option(
        1.0, "both parameters of the Beta distribution that the shares are drawn from", above=0.0
    )


class _Mix(Augmenter):
    Options = MixOptions

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return mixtures; where a class has one image only, that is a copy, which counts for
        nothing.
        """
        labels = own.labels()
        one = own.pick(labels)
        other = own.pick(labels)
        share = own.draws.beta(self.options.alpha, self.options.alpha, len(labels)).astype(
            np.float32
        )
        corners = own.draws.random((2, len(labels)), np.float32)
        x = self.mix(own.images(one), own.images(other), own.put(share), own.put(corners))
        several = np.bincount(own.known, minlength=self.classes) > 1
        made = (own.wanted * several).astype(np.float32)
        return SyntheticImages(x, own.put(labels), signals={"synthetic": own.put(made)})

    def mix(self, one: Tensor, other: Tensor, share: Tensor, corners: Tensor) -> Tensor:
        """Return mixtures with so much of the first images; ``corners`` are two more numbers in [0,
        1) for each.
        """
        raise NotImplementedError


class MixUp(_Mix):
    """Blends two images of a tail class."""

    name = "mixup"

    def mix(self, one: Tensor, other: Tensor, share: Tensor, corners: Tensor) -> Tensor:  # noqa: ARG002
        """Return share·one + (1 − share)·other."""
        part = share[:, None, None, None]
        return (part * one + (1 - part) * other).round().to(torch.uint8)


class CutMix(_Mix):
    """Pastes a rectangle of one image of a tail class into another."""

    name = "cutmix"

    def mix(self, one: Tensor, other: Tensor, share: Tensor, corners: Tensor) -> Tensor:
        """Return the first images with a rectangle of area 1 − share from the others."""
        sides = []
        for corner, pixels in zip(corners, one.shape[2:], strict=True):
            length = (pixels * (1 - share).sqrt()).round()
            start = (corner * (pixels - length + 1)).floor()
            line = torch.arange(pixels, device=one.device)
            sides.append((line >= start[:, None]) & (line < (start + length)[:, None]))
        inside = sides[0][:, :, None] & sides[1][:, None]
        return torch.where(inside[:, None], other, one)
