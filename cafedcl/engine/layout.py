"""All trainable weights of a network in one flat tensor: one copy receives a model, one call
updates it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cafedcl.core.flat import WeightSlice, in_one
from cafedcl.core.tensors import Tensors


class ParameterSlice(NamedTuple):
    """One weight: its module and key, and where it lies."""

    module: nn.Module
    key: str
    place: WeightSlice


class Layout:
    """Where each weight of a network lies in a flat tensor.

    The network itself holds ``leaves``: views of ``flat``, each of which a gradient can be asked
    for.
    """

    def __init__(self, network: nn.Module, channels_last: bool) -> None:
        self.entries: dict[str, ParameterSlice] = {}
        begin = 0
        for prefix, module in network.named_modules():
            for key, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    name = f"{prefix}.{key}" if prefix else key
                    place = WeightSlice.at(
                        begin, parameter.shape, last=channels_last and parameter.dim() == 4
                    )
                    self.entries[name] = ParameterSlice(module, key, place)
                    begin += parameter.numel()
        self.size = begin
        self.slices = {name: entry.place for name, entry in self.entries.items()}
        state = network.state_dict()
        self.rest = {name: value for name, value in state.items() if name not in self.entries}
        self.flat = self.lay(state)
        self.leaves = {name: view.requires_grad_() for name, view in self.views(self.flat).items()}
        for name, entry in self.entries.items():
            entry.module._parameters[entry.key] = self.leaves[name]  # type: ignore[assignment]

    def views(self, flat: Tensor) -> Tensors:
        """Return the weights that lie in a flat tensor, by name; those of several clients, if it
        has a row for each.
        """
        return {name: place.of(flat) for name, place in self.slices.items()}

    def flatten(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the weights of several clients, each (clients, …), as one tensor with a row for
        each.
        """
        pairs = zip(parts, self.entries.values(), strict=True)
        return torch.cat(
            [entry.place.as_it_lies(part).reshape(len(part), -1) for part, entry in pairs], 1
        )

    def lay(self, weights: Tensors, flat: Tensor | None = None) -> Tensor:
        """Return weights as a flat tensor: a new one, or the one that is given."""
        whole = in_one({name: weights[name].detach() for name in self.slices}, self.slices)
        return whole.clone() if flat is None else flat.copy_(whole)
