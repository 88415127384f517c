"""Tail augmentation: synthetic images for classes of which a client has few images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.arrays import Array, Ints
from cafedcl.core.tensors import Tensors


@dataclass(frozen=True)
class TailOptions:
    """Which classes of a client are its tail, and how many synthetic images they get."""

    tail: str = option(
        "mean",
        "a client's class is a tail class if it has fewer images than the mean, median or max of "
        "the client's classes; it is filled up to that number",
        choices=("mean", "median", "max"),
    )
    fill: float = option(1.0, "share of the missing images to generate", low=0.0, high=1.0)
    most: float = option(
        0.0, "maximum number of synthetic images per real one; 0: no limit", low=0.0
    )
    weight: float = option(1.0, "weight of a synthetic image in the losses", above=0.0, high=1.0)


@dataclass(frozen=True)
class NoTail:
    """No options."""

    weight: ClassVar[float] = 1.0


@dataclass(frozen=True)
class ClientImages:
    """An augmenter's input: the images of one client, in one round. They never leave the client."""

    x: Tensor
    """Its training images, uint8 (n, channels, height, width)."""
    y: Tensor
    host_y: Ints
    """``y`` in the host's memory."""
    held_x: Tensor
    """Its held-out images."""
    held_y: Tensor
    synthetic_counts: Ints
    """How many synthetic images each class gets, m_{k,c}."""
    memory: Tensors
    """What the client stored in earlier rounds, and what it learned in this one."""
    features: Callable[[], Tensor]
    """Returns the encoder's features of ``x`` under the received weights."""
    round: int
    draws: np.random.Generator

    def synthetic_labels(self) -> Ints:
        """Return the labels of the synthetic images, ordered by class."""
        return np.repeat(np.arange(len(self.synthetic_counts)), self.synthetic_counts)

    def draw_same_class(self, labels: Ints) -> Ints:
        """Draw a real image of the same class for every label; return indices into ``x``."""
        return draw_same_class(self.host_y, labels, len(self.synthetic_counts), self.draws)

    def images(self, rows: Ints) -> Tensor:
        """Return the given rows of the training images."""
        return self.x[self.to_device(rows)]

    def to_device(self, values: Array) -> Tensor:
        """Copy an array to the client's device, without waiting for it."""
        return to_device(values, self.x.device)


@dataclass(frozen=True)
class SyntheticImages:
    """The images that a client trains on besides its own, in the requested number per class."""

    x: Tensor
    y: Tensor
    shift: Tensor | None = None
    """Added to the encoder's features of each image, for augmentation in feature space."""
    signals: Tensors = field(default_factory=dict)
    """``synthetic``: m_{k,c} of images that count as new samples; ``quality``: conf^gen_{k,c}."""
    notes: Tensors = field(default_factory=dict)
    """Values per class for reports; no method reads them."""

    def __len__(self) -> int:
        return len(self.y)

    def problem(self, shape: torch.Size, wanted: Ints) -> str:
        """Return what is wrong with the images, without waiting for a GPU; empty if nothing is."""
        number = int(wanted.sum())
        if self.x.dtype != torch.uint8 or self.x.shape[1:] != shape:
            found = str(self.x.dtype).removeprefix("torch.")
            return (
                f"images of {found}, shape {tuple(self.x.shape[1:])}; uint8 of shape "
                f"{tuple(shape)} is expected"
            )
        if (len(self.x), len(self.y)) != (number, number):
            return f"{len(self.x)} images and {len(self.y)} labels; {number} of both are wanted"
        if self.y.device.type == "cpu":
            given = np.bincount(self.y.numpy(), minlength=len(wanted))
            if not np.array_equal(given, wanted):
                return "labels of other classes than are wanted (client.synthetic_counts)"
        return ""


class Augmenter:
    """Makes synthetic images for a client's tail classes. A subclass needs a name and ``make``.

    Use your own with ``--augment package.module:Class``.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = TailOptions
    shifts: ClassVar[bool] = False
    """Whether it works in feature space and sets ``SyntheticImages.shift``."""

    def __init__(self, options: Any, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        self.options = options
        self.classes = classes
        self.shape = shape
        self.seed = seed

    @property
    def title(self) -> str:
        """The augmenter's name in messages."""
        return f"augment '{getattr(self, 'name', type(self).__name__)}'"

    def synthetic_counts(self, counts: Tensor) -> Tensor:
        """Return m_{k,c}, the number of synthetic images, for the clients' counts n_{k,c}."""
        return missing_images(counts, self.options)

    def new_samples(self, counts: Tensor) -> Tensor:
        """Return how many of the synthetic images may count as new samples, m_{k,c} in n^eff.

        It is the upper bound of what ``make`` reports as ``synthetic``, known in advance.
        """
        return self.synthetic_counts(counts)

    def learn(self, client: ClientImages) -> Tensors:
        """Train what the augmenter needs on the client's data; return the client's new memory.

        Several clients may learn at the same time, in threads. The memory stays at the client.
        """
        return client.memory

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return the synthetic images that the client trains on."""
        raise NotImplementedError

    def remarks(
        self,
        round: int,  # noqa: ARG002
        notes: Mapping[int, Tensors],  # noqa: ARG002
        names: Sequence[str],  # noqa: ARG002
        client_title: Callable[[int], str],  # noqa: ARG002
    ) -> list[str]:
        """Return messages to show after a round, given the clients' notes and the class names.

        ``client_title`` returns how a client is displayed.
        """
        return []


class Nothing(Augmenter):
    """No augmentation."""

    name = "none"
    Options = NoTail

    def synthetic_counts(self, counts: Tensor) -> Tensor:
        """Return zeros."""
        return no_images(counts)

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return no images."""
        return SyntheticImages(client.x[:0], client.y[:0])


class Resample(Augmenter):
    """Draws a tail class's images again. Copies are not new samples, so n_eff ignores them."""

    name = "resample"

    def new_samples(self, counts: Tensor) -> Tensor:
        """Return zeros."""
        return no_images(counts)

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return copies of real images."""
        labels = client.synthetic_labels()
        return SyntheticImages(
            client.images(client.draw_same_class(labels)), client.to_device(labels)
        )


def no_images(counts: Tensor) -> Tensor:
    """Return zeros in the shape of the counts that take no memory: there may be many clients."""
    return counts.new_zeros(()).expand_as(counts)


def missing_images(counts: Tensor, options: TailOptions) -> Tensor:
    """Return how many images every class (last dimension) lacks, according to the options."""
    n = counts.double()
    # Classes that a client lacks count neither in the mean nor in the median.
    present = torch.where(n > 0, n, torch.full_like(n, torch.nan))
    if options.tail == "mean":
        level = present.nanmean(-1, keepdim=True)
    elif options.tail == "median":
        # nanmedian would take the lower of the two middle counts.
        level = present.nanquantile(0.5, -1, keepdim=True)
    else:
        level = n.amax(-1, keepdim=True)
    missing = options.fill * torch.where(n > 0, level - n, torch.zeros_like(n)).clamp_min(0)
    if options.most:
        missing = torch.minimum(missing, options.most * n)
    return missing.round().long()


def draw_same_class(
    image_labels: Ints, labels: Ints, classes: int, draws: np.random.Generator
) -> Ints:
    """Draw an image of the same class for every label; return indices into ``image_labels``."""
    counts = np.bincount(image_labels, minlength=classes)
    # Images sorted by class: class c is order[starts[c] : starts[c] + counts[c]].
    order = np.argsort(image_labels, kind="stable")
    starts = np.r_[0, np.cumsum(counts)]
    at = starts[labels] + np.floor(draws.random(labels.shape) * counts[labels]).astype(np.int64)
    return np.asarray(order[at], np.int64)


def to_device(values: Array, device: torch.device) -> Tensor:
    """Copy an array to a device, without waiting for it."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        # Only copies from pinned memory run asynchronously.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
