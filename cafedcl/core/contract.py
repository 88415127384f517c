"""What moves between server and clients, and what a client's job sees. Methods and engines meet
only here.
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
"""Gives the embeddings and labels of a part of the client's data, under the trained or the received
weights.
"""


TICKET = "kept in round"
"""The only entry of a client's memory where that stays at its site, and the server just knows of
it.
"""
SCALAR_NOTES = frozenset({"generated_round"})
"""Notes that are one number; every other is one per class."""


class Batch(NamedTuple):
    """Images, labels and weights of one step; padding has weight 0, and every mean is a weighted
    mean.
    """

    x: Tensor
    y: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Down:
    """What the server sends: ``model/…`` weights and ``anchors/…``, for one round."""

    round: int
    tensors: Tensors


@dataclass(frozen=True)
class Up:
    """What a client returns.

    ``model`` is the weights that are averaged, and ``tensors`` what else the method needs
    (prototypes, confidences); both are counted as traffic. ``notes`` is what the client tells about
    itself for people to look at, and no method reads it.
    """

    client: int
    samples: int
    tensors: Tensors
    model: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Tensors = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
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
    """A finished job: what travels, what stays with the client, and how its own model did on test
    images if asked.

    ``hits`` counts images per class: ``tested``, and those called right among ``all`` classes and
    among those ``held``. Where the test images are a client's own, only these counts leave it.
    """

    up: Up
    memory: Tensors
    correct: Tensors
    valid_numbers: bool = False
    """Whether the engine has seen that all numbers are finite and in their ranges; others are
    looked through.
    """


@dataclass(frozen=True)
class Failure:
    """A job that gave no usable reply, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class Client:
    """What a client knows of itself, and what it was told once when it enrolled.

    ``counts`` are its training images per class n_{k,c}, n_k in all, and ``holds`` the classes it
    has, in order; ``most`` and ``total`` are the largest and the summed count per class over all
    clients, which the server tells every client at enrolment.
    """

    index: int
    samples: int
    counts: Tensor
    holds: Tensor
    most: Tensor
    total: Tensor


@dataclass(frozen=True)
class Visit:
    """All that a method sees of one client in one round.

    ``round`` and ``progress`` (round over the number of rounds) are tensors, and ``scratch`` is
    zeroed at the start of every epoch and written in place, so that a loss can be captured once and
    replayed.
    """

    client: Client
    round: Tensor
    progress: Tensor
    received: Tensors
    anchors: Tensors
    memory: Tensors
    scratch: Tensors
    embed: Embed
    rates: float = 0.0
    """The sum of the learning rates over all local steps of this visit."""
    signals: Tensors = field(default_factory=dict)
    """What tail augmentation reports: ``synthetic`` m_{k,c} and ``quality`` conf^gen_{k,c}."""


@dataclass(frozen=True)
class Field:
    """One entry of a reply: its shape and the range its numbers must lie in."""

    shape: tuple[int, ...]
    low: float = float("-inf")
    high: float = float("inf")
    per_class: bool = True
    """Whether there is one row per class listed in the reply's ``classes``."""
    repeated: bool = False
    """Whether a class may be listed more than once."""

    @property
    def bounded(self) -> bool:
        """Whether it has a range at all."""
        return (self.low, self.high) != (float("-inf"), float("inf"))
