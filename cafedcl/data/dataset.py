"""A data set: uint8 images, which stay on the device, and their labels."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.errors import CafedclError
from cafedcl.core.rng import draw_by_class, stream
from cafedcl.core.tensors import Tensors
from cafedcl.data.groups import no_numbers

_FIELDS = (
    "train_x", "train_y", "test_x", "test_y", "mean", "std", "owners", "groups", "test_groups",
)  # fmt: skip
_PLAIN_FIELDS = ("names", "owner_names", "owner_kind", "group_kind", "window")


Numbers = Tensor | npt.NDArray[Any]
"""What a data function may return: a tensor, or a NumPy array."""


def as_tensor(value: Any) -> Any:
    """Return a NumPy array as a tensor; anything else, or an array of another type, as it is."""
    if not isinstance(value, np.ndarray):
        return value
    # Tensors need the machine's byte order, no negative strides (flipped images have them), and
    # writable memory, which a file's may not be.
    native = value.astype(value.dtype.newbyteorder("="), copy=not value.flags.writeable)
    with suppress(TypeError):
        return torch.from_numpy(np.ascontiguousarray(native))
    return value


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
    """The natural client of every training image, as int64; empty without natural clients."""
    owner_names: tuple[str, ...] = ()
    owner_kind: str = "natural"
    """The split in which the owners are the clients: ``natural``, or ``source`` for the places that
    images come from.
    """
    groups: Tensor = field(default_factory=no_numbers)
    """The group of every training image, such as its patient, as int64; empty without groups."""
    test_groups: Tensor = field(default_factory=no_numbers)
    """The group of every test image, by the same numbers."""
    group_kind: str = ""
    """What the groups are, such as ``patient``."""
    window: tuple[float, ...] = ()
    """The lowest and the highest grey value of images with more than 8 bits; empty: there are none,
    or each has its own.
    """

    @classmethod
    def of(
        cls,
        train_x: Numbers,
        train_y: Numbers,
        test_x: Numbers,
        test_y: Numbers,
        names: tuple[str, ...],
        owners: Numbers | None = None,
        owner_names: tuple[str, ...] = (),
        **more: Any,
    ) -> "Dataset":
        """Make a data set and measure its mean and standard deviation.

        ``more`` are other fields by name, such as ``groups``.
        """
        images = as_tensor(train_x)
        if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.dim() != 4:
            what = getattr(images, "dtype", type(images).__name__)
            raise CafedclError(
                f"its training images are {what} of shape {tuple(getattr(images, 'shape', ()))}; "
                "expected uint8 of shape (N, channels, height, width)"
            )
        mean, std = mean_and_std(*pixel_moments(images))
        return cls(
            images,
            as_tensor(train_y),
            as_tensor(test_x),
            as_tensor(test_y),
            names,
            mean,
            std,
            no_numbers() if owners is None else as_tensor(owners),
            owner_names,
            **{name: as_tensor(value) for name, value in more.items()},
        )

    @classmethod
    def from_tensors(cls, tensors: Tensors, plain: Mapping[str, Any]) -> "Dataset":
        """Return the data set from the results of :meth:`tensors` and :meth:`plain`.

        The latter may have been JSON, in which tuples are lists.
        """
        parts: dict[str, Any] = {name: tensors[name] for name in _FIELDS}
        for name in _PLAIN_FIELDS:
            value = plain[name]
            parts[name] = tuple(value) if isinstance(value, list) else value
        return cls(**parts)

    def plain(self) -> dict[str, Any]:
        """Return the fields that are not tensors, by name, for :meth:`from_tensors`."""
        return {name: getattr(self, name) for name in _PLAIN_FIELDS}

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width

    @property
    def is_encoded(self) -> bool:
        """Whether it has the features of a frozen encoder in place of images."""
        return self.train_x.is_floating_point()

    def reduced(self, images: int) -> "Dataset":
        """Return the data set with at most N training images, the same share of every class.

        0 keeps all images.
        """
        number = len(self.train_y)
        if not images or images >= number:
            return self
        if images < self.classes:
            raise CafedclError(
                f"data.images = {images}: the {self.classes} classes need at least one image each; "
                f"use at least {self.classes}"
            )
        rng = stream(0, "part of the training images")
        labels = self.train_y.numpy()
        share = np.bincount(labels, minlength=self.classes) * images / number
        keep = np.maximum(1, np.round(share)).astype(np.int64)
        rows = torch.from_numpy(draw_by_class(labels, keep, rng))
        mean, std = mean_and_std(*pixel_moments(self.train_x[rows]))
        return replace(
            self,
            train_x=self.train_x[rows],
            train_y=self.train_y[rows],
            mean=mean,
            std=std,
            owners=self.owners[rows] if len(self.owners) else self.owners,
            groups=self.groups[rows] if len(self.groups) else self.groups,
        )

    def coloured(self, colours: str) -> "Dataset":
        """Return the data set with all images ``grey`` or ``rgb``; ``auto`` leaves them."""
        channels = {"grey": 1, "rgb": 3}.get(colours, self.shape[0])
        if channels == self.shape[0]:
            return self
        if self.shape[0] not in (1, 3):
            raise CafedclError(
                f"data.colours = {colours}: the images have {self.shape[0]} channels, neither 1 "
                "nor 3; leave it out"
            )
        train_x, test_x = (with_channels(x, channels) for x in (self.train_x, self.test_x))
        mean, std = mean_and_std(*pixel_moments(train_x))
        return replace(self, train_x=train_x, test_x=test_x, mean=mean, std=std)

    def relabelled(self, names: tuple[str, ...], whose: str) -> "Dataset":
        """Return the data set with its classes numbered as in ``names``."""
        unknown = [name for name in self.names if name not in names]
        if unknown:
            raise CafedclError(
                f"{whose}: the class '{unknown[0]}' is not a class of this run: {', '.join(names)}"
            )
        order = torch.tensor([names.index(name) for name in self.names])
        return replace(self, names=names, train_y=order[self.train_y], test_y=order[self.test_y])

    def ungrouped(self) -> "Dataset":
        """Return the data set without its groups."""
        return replace(self, groups=no_numbers(), test_groups=no_numbers(), group_kind="")

    def merged(self) -> "Dataset":
        """Return the data set with its test images added to the training images."""
        return self.of(
            torch.cat([self.train_x, self.test_x]),
            torch.cat([self.train_y, self.test_y]),
            self.test_x[:0],
            self.test_y[:0],
            self.names,
            groups=torch.cat([self.groups, self.test_groups]),
            test_groups=self.test_groups[:0],
            group_kind=self.group_kind,
            window=self.window,
        )

    def images(self, x: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
        """Return uint8 images as float32, standardised: the encoder's input.

        ``layout`` is the order of its dimensions in memory. Features stay as they are.
        """
        if x.is_floating_point():
            return x
        # In place on a copy: half the time of three new tensors.
        copy = x.to(torch.float32, copy=True)
        # Where channels are last, their means and deviations would be applied to three numbers at a
        # time, which takes twice as long as changing the layout afterwards.
        return copy.div_(255).sub_(self.mean).div_(self.std).to(memory_format=layout)

    def to(self, device: torch.device) -> "Dataset":
        """Return the data set on a device."""
        moved = {name: getattr(self, name).to(device) for name in _FIELDS}
        return replace(self, **moved)

    def tensors(self) -> Tensors:
        """Return all tensors by name, to be shared with worker processes."""
        return {name: getattr(self, name) for name in _FIELDS}


def with_channels(x: Tensor, channels: int) -> Tensor:
    """Return grey images as RGB, or RGB images as grey, with Pillow's weights of the colours."""
    if channels == 3:
        return x.expand(-1, 3, -1, -1).contiguous()
    # Whole numbers of 32 bits need four times the memory, so not all images at once.
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(1, 3, 1, 1)
    parts = [(part.int() * weights).sum(1, keepdim=True) for part in x.split(1024)]
    return torch.cat([((part + 0x8000) >> 16).to(torch.uint8) for part in parts])


def pixel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of pixels and squared pixels per channel, with pixels scaled to [0, 1]."""
    # Counting the 256 levels is exact and needs no float copy of the images.
    pixels = x.numel() // x.shape[1]
    levels = torch.stack(
        [torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)]
    )
    values = torch.arange(256, dtype=torch.float64) / 255
    return (levels * values).sum(1) / pixels, (levels * values**2).sum(1) / pixels


def mean_and_std(mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per channel, shaped for images.

    The standard deviation of a constant channel is set to 1, so that it can be divided by.
    """
    std = (square - mean**2).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, torch.ones_like(std))
    return mean.float().view(1, -1, 1, 1), std.float().view(1, -1, 1, 1)
