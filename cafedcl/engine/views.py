"""What a captured loss and a captured summary can see of a client.

A capture is replayed for every client, with other values in the same tensors. So it can only see
tensors: a plain number would stay that of the first client.
"""

from typing import NamedTuple

from torch import Tensor

from cafedcl.core.contract import Census, Part, Weights
from cafedcl.core.errors import CafedclError


class LossView(NamedTuple):
    """The part of `Client` that a loss can see."""

    counts: Tensor
    census: Census

    def __getattr__(self, name: str) -> Tensor:
        raise AttributeError(
            f"a loss can read counts and census of visit.client, not {name}: "
            "a plain number would stay that of the first client"
        )


class SummaryView(NamedTuple):
    """The part of `Client` that a captured summary can see.

    ``holds`` lists every class; those that the client holds are picked from its summary later.
    """

    counts: Tensor
    holds: Tensor
    census: Census


def embeds_nothing(_part: Part, _weights: Weights) -> tuple[Tensor, Tensor]:
    """Refuse to embed the client's data: a loss only sees its batch."""
    raise CafedclError("a loss embeds nothing: it sees its batch, not all data of the client")
