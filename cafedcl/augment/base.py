"""What tail augmentation is: from a client's own data, more images of the classes it has few of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.tensors import Tensors


@dataclass(frozen=True)
class TailOptions:
    """Which classes of a client are its tail, and how many images they are given."""

    tail: str = option(
        "mean",
        "a client's class is tail if it has fewer images than this of the classes the client has, and is filled to it",
        choices=("mean", "median", "max"),
    )
    fill: float = option(1.0, "part of the gap that is filled", low=0.0, high=1.0)
    most: float = option(0.0, "synthetic images per real one at most; 0: no bound", low=0.0)
    weight: float = option(1.0, "weight of a synthetic image in the losses", above=0.0, high=1.0)


@dataclass(frozen=True)
class NoTail:
    """Nothing to set."""

    weight: ClassVar[float] = 1.0


@dataclass(frozen=True)
class ClientImages:
    """All that an augmenter sees: one client's own data, in one round. Nothing of it leaves the
    client.
    """

    x: Tensor
    """Its training images, uint8 (n, channels, height, width)."""
    y: Tensor
    known: npt.NDArray[np.int64]
    """``y`` on the host."""
    held_x: Tensor
    """Its held-out images."""
    held_y: Tensor
    wanted: npt.NDArray[np.int64]
    """How many images each class is to be given, m_{k,c}."""
    memory: Tensors
    """What the client kept from its last visit, and what it has learned in this one."""
    features: Callable[[], Tensor]
    """Gives the encoder's features of ``x`` under the weights that the client received."""
    round: int
    draws: np.random.Generator

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the labels that are wanted, in the order of the classes."""
        return np.repeat(np.arange(len(self.wanted)), self.wanted)

    def pick(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Draw a real image of the same class for every label; returns indices into ``x``."""
        return pick(self.known, labels, len(self.wanted), self.draws)

    def images(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return some of the training images."""
        return self.x[self.put(rows)]

    def put(self, values: npt.NDArray[Any]) -> Tensor:
        """Return numbers from the host on the client's device, without waiting for it."""
        return put(values, self.x.device)


@dataclass(frozen=True)
class SyntheticImages:
    """What a client trains on besides its own images: exactly as many of each class as were wanted."""

    x: Tensor
    y: Tensor
    shift: Tensor | None = None
    """What is added to the encoder's features of each image, for augmentation in the space of
    features.
    """
    signals: Tensors = field(default_factory=dict)
    """``synthetic`` m_{k,c} as far as they count as new samples, and ``quality`` conf^gen_{k,c}."""
    notes: Tensors = field(default_factory=dict)
    """What people may want to know, per class."""

    def __len__(self) -> int:
        return len(self.y)


class Augmenter:
    """Feeds a client's tail classes. Subclass it, give it a name and a ``make``; that is all.

    ``--augment package.module:Class`` finds one that is not part of the package.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = TailOptions
    shifts: ClassVar[bool] = False
    """Whether it works in the space of features: ``Extra.shift`` is given."""

    def __init__(self, options: Any, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        self.options = options
        self.classes = classes
        self.shape = shape
        self.seed = seed

    def wanted(self, counts: Tensor) -> Tensor:
        """Return m_{k,c} for clients' counts n_{k,c}: tail classes are filled up to the mean of
        those a client has.
        """
        return fill(counts, self.options)

    def learn(self, own: ClientImages) -> Tensors:
        """Return what the client keeps: what it has, or what it learns from its data alone, at any
        moment of a round.

        Several clients may learn at the same time, in threads. Nobody waits for anything learned to
        be sent.
        """
        return own.memory

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return the images that the client trains on besides its own."""
        raise NotImplementedError

    def remarks(self, round: int, notes: Mapping[int, Tensors], names: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Return what people should be told after a round, from clients' notes by their number and
        classes' names.
        """
        return []


class Nothing(Augmenter):
    """Gives clients nothing."""

    name = "none"
    Options = NoTail

    def wanted(self, counts: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(counts)

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return no image."""
        return SyntheticImages(own.x[:0], own.y[:0])


class Resample(Augmenter):
    """Draws a tail class's own images again. They are nothing new, so they do not count in n_eff."""

    name = "resample"

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return copies."""
        labels = own.labels()
        return SyntheticImages(own.images(own.pick(labels)), own.put(labels))


def fill(counts: Tensor, options: TailOptions) -> Tensor:
    """Return how many images every class (last dimension) is short of the client's typical class,
    as options say.
    """
    n = counts.double()
    some = torch.where(n > 0, n, torch.full_like(n, torch.nan))
    level = {
        "mean": lambda: some.nanmean(-1, keepdim=True),
        "median": lambda: some.nanmedian(-1, keepdim=True).values,
        "max": lambda: n.amax(-1, keepdim=True),
    }[options.tail]()
    missing = options.fill * torch.where(n > 0, level - n, torch.zeros_like(n)).clamp_min(0)
    bounded = torch.minimum(missing, options.most * n) if options.most else missing
    return bounded.round().long()


def pick(
    known: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    classes: int,
    draws: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draw for every label one of the images whose ``known`` label it is; returns their indices."""
    counts = np.bincount(known, minlength=classes)
    order = np.argsort(known, kind="stable")
    ends = np.r_[0, np.cumsum(counts)]
    at = ends[labels] + np.floor(draws.random(labels.shape) * counts[labels]).astype(np.int64)
    return np.asarray(order[at], np.int64)


def put(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return numbers from the host on a device, without waiting for it."""
    tensor = torch.from_numpy(values)
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else tensor.to(device)
    )
