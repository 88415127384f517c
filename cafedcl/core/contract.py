"""What server and clients exchange, and what a method sees of a client.

Methods and engines meet only here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from cafedcl.core.tensors import Tensors

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""
Part = Literal["train", "validation", "synthetic"]
Weights = Literal["trained", "received"]
Embed = Callable[[Part, Weights], tuple[Tensor, Tensor]]
"""Returns embeddings and labels of a part of the client's data, under the given weights."""
TICKET = "kept in round"
"""The only entry of a client's memory at the server if the memory stays at the client's site."""
SCALAR_NOTES = frozenset({"generated_round"})
"""Notes that are one number; every other is one per class."""


NO_CONSTANTS: Tensors = {}


class Batch(NamedTuple):
    """Images, labels and weights of one step. Padding has weight 0: weight every mean."""

    x: Tensor
    y: Tensor
    weight: Tensor
    constants: Tensors = NO_CONSTANTS
    """What `Method.constants` returned for these images."""


@dataclass(frozen=True)
class Down:
    """What the server sends: ``model/…`` weights and ``anchors/…``, for one round."""

    round: int
    tensors: Tensors


@dataclass(frozen=True)
class Up:
    """What a client returns.

    ``model`` are the weights that are averaged, and ``tensors`` what else the method needs, such as
    prototypes; both count as traffic. ``notes`` are for people to read; no method reads them.
    """

    client: int
    samples: int
    tensors: Tensors
    model: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Tensors = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    """The mean of each term of the loss; empty where images are private, since it has no noise."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """One client's work in one round. ``memory`` is what the client kept from its last visit."""

    client: int
    down: Down
    memory: Tensors
    evaluate: bool


@dataclass(frozen=True)
class Reply:
    """A finished job: what is sent, what the client keeps, and test results of its own model.

    ``correct`` has counts per class: images ``tested``, and those predicted correctly among ``all``
    classes and among the classes ``held``. It is empty if the model was not to be tested.
    """

    up: Up
    memory: Tensors
    correct: Tensors
    valid_numbers: bool = False
    """Whether the engine has checked that all numbers are finite and in their ranges."""


@dataclass(frozen=True)
class Failure:
    """A job that gave no usable reply, and why."""

    client: int
    reason: str


class Census(NamedTuple):
    """What the server tells clients about all clients together, per class."""

    most: Tensor
    """The largest effective count of any client (`Method.effective_counts`)."""
    total: Tensor
    """The sum of effective counts."""
    images: Tensor
    """The number of training images."""


@dataclass(frozen=True)
class Client:
    """What a client knows about itself, and what the server sent it at enrolment.

    It has ``samples`` training images n_k, ``counts`` per class n_{k,c}, and ``holds`` lists the
    classes it has. The server sent it the ``census`` of all clients.
    """

    index: int
    samples: int
    counts: Tensor
    holds: Tensor
    census: Census


@dataclass(frozen=True)
class Enrolment:
    """What the server knows of all clients before the first round.

    ``counts`` and ``synthetic`` are (clients, classes): the training images n_{k,c}, and the new
    samples that a tail augmentation may add at most. ``census`` is what clients receive.
    """

    counts: Tensor
    synthetic: Tensor
    census: Census


Claims = dict[str, tuple[Tensor, Tensor]]
"""The smallest and the largest value of entries of a reply, each (clients, classes)."""


@dataclass(frozen=True)
class Visit:
    """All that a method sees of one client in one round.

    ``received`` are the weights it began with, ``anchors`` what else the server broadcast, and
    ``memory`` what the client kept. ``progress`` is the round over the number of rounds.
    ``scratch`` is written in place and zeroed at the start of every epoch. A loss reads only these,
    which are tensors, so that it can be captured once and replayed.
    """

    client: Client
    round: Tensor
    progress: Tensor
    received: Tensors
    anchors: Tensors
    memory: Tensors
    scratch: Tensors
    embed: Embed
    rates: float | Tensor = 0.0
    """How far a gradient of 1 in every local step would move a weight; not for a loss.

    Without momentum, it is the sum of the learning rates.

    It is a tensor where the summary is captured, so that a replay reads the client's own.
    """
    captured: bool = False
    """Whether the summary is being captured; if so, no shape may depend on a tensor's value.

    ``client.holds`` lists all classes, and an image that is not in the requested part has the label
    −1. Entries of the summary whose class the client does not hold, or is −1, are dropped later.
    """
    signals: Tensors = field(default_factory=dict)
    """What tail augmentation reports: ``synthetic`` m_{k,c} and ``quality`` conf^gen_{k,c}."""


@dataclass(frozen=True)
class Field:
    """One entry of a reply: its shape and the range its numbers must lie in."""

    shape: tuple[int, ...]
    low: float = float("-inf")
    high: float = float("inf")
    per_class: bool = True
    """Whether there is a row for each entry of the reply's ``classes``."""
    rows_per_class: int = 1
    """How often a class may be listed there at most."""
    norm: float = float("inf")
    """The largest Euclidean length of a row."""
    summed: bool = False
    """Whether the server adds up what clients send. Honest sums differ as much as the images that
    clients have, so `Method.contradiction` has to bound them.
    """
    by_class: bool = False
    """Whether row c of such a sum is over the client's images of class c alone. Divided by their
    number it is a mean, which defences compare with those of other clients.
    """

    @property
    def bounded(self) -> bool:
        """Whether it has a range at all."""
        return (self.low, self.high) != (float("-inf"), float("inf"))


@dataclass(frozen=True)
class ClassMeans:
    """A mean per class: the rows of one entry of the replies, weighted by another entry."""

    values: str = "prototypes"
    weights: str = ""
    """The entry with one weight per row; if there is none, all rows have the weight 1."""
    most: float = 1.0
    """The largest weight of a row; infinite if weights have no bound of their own."""


@dataclass(frozen=True)
class Averages:
    """The weighted means that make up a server step.

    The step depends on the replies only through these means: one reply that is their mean gives
    the same result as all replies.
    """

    most: float = float("inf")
    """The largest weight of a client in the mean of models; infinite if there is no bound."""
    classes: ClassMeans | None = None
    """The mean per class, if there is one."""
