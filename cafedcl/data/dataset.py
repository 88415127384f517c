"""A data set: uint8 images that stay on the device, and their labels."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.rng import draw_by_class, stream
from cafedcl.core.tensors import Tensors

_FIELDS = ("train_x", "train_y", "test_x", "test_y", "mean", "std", "owners")


@dataclass(frozen=True)
class Dataset:
    """Images (N, channels, height, width) as uint8, labels as int64, and the classes' names.

    Normalisation happens in batches on the device: pixels are scaled to [0, 1] and standardised
    with the training set's mean and standard deviation per channel.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    owners: Tensor
    """The natural client of every training image, as int64; empty where there are none."""
    owner_names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        train_x: Tensor,
        train_y: Tensor,
        test_x: Tensor,
        test_y: Tensor,
        names: tuple[str, ...],
        owners: Tensor | None = None,
        owner_names: tuple[str, ...] = (),
    ) -> "Dataset":
        """Make a data set and measure its mean and standard deviation."""
        mean, std = scale(*moments(train_x))
        nobody = torch.zeros(0, dtype=torch.int64)
        clients = nobody if owners is None else owners
        return cls(train_x, train_y, test_x, test_y, names, mean, std, clients, owner_names)

    @classmethod
    def from_tensors(cls, tensors: Tensors, names: tuple[str, ...]) -> "Dataset":
        """Return what :meth:`tensors` gave, in another process."""
        parts: dict[str, Any] = {name: tensors[name] for name in _FIELDS}
        return cls(names=names, **parts)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width

    def reduced(self, images: int) -> "Dataset":
        """Return it with so many training images at most, the same part of every class; 0: all of
        them.
        """
        number = len(self.train_y)
        if not images or images >= number:
            return self
        rng = stream(0, "part of the training images")
        labels = self.train_y.numpy()
        share = np.bincount(labels, minlength=self.classes) * images / number
        rows = torch.from_numpy(
            draw_by_class(labels, np.maximum(1, np.round(share)).astype(np.int64), rng)
        )
        owners = self.owners[rows] if len(self.owners) else None
        test = self.test_x, self.test_y
        return self.of(
            self.train_x[rows], self.train_y[rows], *test, self.names, owners, self.owner_names
        )

    def images(self, x: Tensor) -> Tensor:
        """Return uint8 images as the encoder sees them."""
        return (x.float() / 255 - self.mean) / self.std

    def to(self, device: torch.device) -> "Dataset":
        """Return the data set on a device."""
        moved = {name: getattr(self, name).to(device) for name in _FIELDS}
        return replace(self, **moved)

    def tensors(self) -> Tensors:
        """Return all tensors by name, to be shared with worker processes."""
        return {name: getattr(self, name) for name in _FIELDS}


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the pixels of uint8 images, scaled to [0, 1], and of their squares, per
    channel.
    """
    pixels = x.numel() // x.shape[1]
    levels = torch.stack(
        [torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)]
    )
    values = torch.arange(256, dtype=torch.float64) / 255
    return (levels * values).sum(1) / pixels, (levels * values**2).sum(1) / pixels


def scale(mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation as images are standardised with; a constant channel is
    left as it is.
    """
    std = (square - mean**2).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, torch.ones_like(std))
    return mean.float().view(1, -1, 1, 1), std.float().view(1, -1, 1, 1)
