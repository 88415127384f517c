"""MixUp and CutMix of two images of the same tail class."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages, TailOptions
from cafedcl.config.options import option


@dataclass(frozen=True)
class MixOptions(TailOptions):
    """How strongly two images are mixed."""

    alpha: float = option(1.0, "α of the distribution Beta(α, α) of mixing shares", above=0.0)


class _Mix(Augmenter):
    Options = MixOptions

    def new_samples(self, counts: Tensor) -> Tensor:
        """Return the mixtures of classes with several images."""
        return self.synthetic_counts(counts) * (counts > 1)

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return mixtures; a class with a single image gives copies, which n_eff ignores."""
        labels = client.synthetic_labels()
        one = client.draw_same_class(labels)
        other = client.draw_same_class(labels)
        alpha = self.options.alpha
        share = client.draws.beta(alpha, alpha, len(labels)).astype(np.float32)
        corners = client.draws.random((2, len(labels)), np.float32)
        x = self.mix(
            client.images(one),
            client.images(other),
            client.to_device(share),
            client.to_device(corners),
        )
        several = np.bincount(client.host_y, minlength=self.classes) > 1
        made = (client.synthetic_counts * several).astype(np.float32)
        return SyntheticImages(
            x, client.to_device(labels), signals={"synthetic": client.to_device(made)}
        )

    def mix(self, one: Tensor, other: Tensor, share: Tensor, corners: Tensor) -> Tensor:
        """Mix with ``share`` of the first images; ``corners`` has two random numbers per image."""
        raise NotImplementedError


class MixUp(_Mix):
    """Blends two images of a tail class."""

    name = "mixup"

    def mix(
        self,
        one: Tensor,
        other: Tensor,
        share: Tensor,
        corners: Tensor,  # noqa: ARG002
    ) -> Tensor:
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
