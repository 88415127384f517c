"""The clients' updates of the model in one round, as vectors."""

from collections.abc import Mapping
from functools import cached_property

from torch import Tensor

from cafedcl.core.contract import Up
from cafedcl.core.flat import WeightSlices, as_vector, slices_of
from cafedcl.core.tensors import MODEL, Tensors, under


class Updates:
    """Turns models into updates of the weights that clients began with, and back.

    Counters, such as a batch norm's number of batches, are not part of an update.
    """

    def __init__(self, state: Tensors) -> None:
        self.start = floating(under(MODEL, state))
        """The weights that clients began with."""

    @cached_property
    def slices(self) -> WeightSlices:
        """Where each weight lies in a vector."""
        return slices_of(self.start)

    @cached_property
    def received(self) -> Tensor:
        """The weights that clients began with, as a vector."""
        return as_vector(self.start, self.slices)

    def vector(self, up: Up) -> Tensor:
        """Return a client's weights as a vector."""
        return as_vector(floating(up.model), self.slices)

    def of(self, up: Up) -> Tensor:
        """Return a client's update."""
        return self.vector(up) - self.received

    def applied(self, update: Tensor) -> Tensors:
        """Return the weights after an update, as views of one vector."""
        vector = self.received + update
        return {name: part.of(vector) for name, part in self.slices.items()}


def floating(model: Mapping[str, Tensor]) -> Tensors:
    """Return the weights that are averaged; counters are not."""
    return {name: value for name, value in model.items() if value.is_floating_point()}
