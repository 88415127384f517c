"""What a captured loss and a captured summary may know of a client."""

from typing import NamedTuple

from torch import Tensor

from cafedcl.core.contract import Part, Weights
from cafedcl.core.errors import CafedclError


class LossView(NamedTuple):
    """What a loss may know of a client: tensors, which can be exchanged under a capture. Numbers
    cannot.
    """

    counts: Tensor
    most: Tensor
    total: Tensor


class SummaryView(NamedTuple):
    """What a captured summary may know of a client: as if it held every class; its own are picked
    afterwards.
    """

    counts: Tensor
    holds: Tensor
    most: Tensor
    total: Tensor


def embeds_nothing(_part: Part, _weights: Weights) -> tuple[Tensor, Tensor]:
    """What a loss finds where it wants to embed its client's data."""
    raise CafedclError("a loss embeds nothing; its batch is what it sees")
