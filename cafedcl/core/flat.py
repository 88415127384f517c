"""All weights of a model as one vector, so that one call copies, averages or updates them all.

`WeightSlice` says where a weight lies in the vector, `FlatModel` is a model that is stored so, and
`FlatNetwork` is a network whose parameters are views of one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cafedcl.core.tensors import Tensors


class WeightSlice(NamedTuple):
    """Where a weight lies in a vector."""

    shape: torch.Size
    strides: tuple[int, ...]
    begin: int
    last: bool
    """Whether it is stored channels last: its second of four axes varies fastest."""

    @classmethod
    def at(cls, begin: int, shape: torch.Size, *, last: bool) -> "WeightSlice":
        """Return the slice of a weight that begins there."""
        form = torch.channels_last if last else torch.contiguous_format
        # A tensor on the meta device has strides but no memory.
        strides = torch.empty(shape, device="meta", memory_format=form).stride()
        return cls(shape, strides, begin, last)

    def of(self, vector: Tensor) -> Tensor:
        """Return the weight as a view of a vector, or of each row of a (clients, weights) table."""
        begin = vector.storage_offset() + self.begin
        if vector.dim() == 1:
            return vector.as_strided(self.shape, self.strides, begin)
        shape = vector.shape[:-1] + self.shape
        strides = vector.stride()[:-1] + self.strides
        return vector.as_strided(shape, strides, begin)

    def in_memory_order(self, value: Tensor) -> Tensor:
        """Return a tensor of the weight's shape, such as its gradient, with its axes as stored.

        Leading axes, such as one over clients, stay where they are.
        """
        return value.movedim(-3, -1) if self.last else value


WeightSlices = dict[str, WeightSlice]


class FlatModel(Mapping[str, Tensor]):
    """Weights that together are one vector, in the order in which they are stored.

    A single weight is a view that is made when it is asked for, which rarely happens.
    """

    def __init__(self, vector: Tensor, slices: WeightSlices) -> None:
        self.vector = vector
        self.slices = slices

    def __getitem__(self, name: str) -> Tensor:
        return self.slices[name].of(self.vector)

    def __iter__(self) -> Iterator[str]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)


def storage_tensors(model: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a model's numbers in as few tensors as possible."""
    return {"vector": model.vector} if isinstance(model, FlatModel) else model


def slices_of(model: Mapping[str, Tensor]) -> WeightSlices:
    """Return slices for all weights of a model; if it is already one vector, those it has."""
    if isinstance(model, FlatModel):
        return model.slices
    values = list(model.values())
    begins = [0, *accumulate(value.numel() for value in values[:-1])]
    pairs = list(zip(begins, values, strict=True))
    slices = [
        WeightSlice.at(begin, value.shape, last=is_channels_last(value)) for begin, value in pairs
    ]
    if not are_slices(values, slices):
        slices = [WeightSlice.at(begin, value.shape, last=False) for begin, value in pairs]
    return dict(zip(model, slices, strict=True))


def is_channels_last(value: Tensor) -> bool:
    """Return whether a weight is stored channels last, and not contiguous as well."""
    return (
        value.dim() == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def are_slices(values: Sequence[Tensor], slices: Iterable[WeightSlice]) -> bool:
    """Return whether weights are already those slices of one vector."""
    first = values[0]
    begin = first.storage_offset()
    data = first.untyped_storage().data_ptr()
    return all(
        value.storage_offset() == begin + part.begin
        and value.stride() == part.strides
        and value.dtype == first.dtype
        and value.untyped_storage().data_ptr() == data
        for value, part in zip(values, slices, strict=True)
    )


def as_vector(model: Mapping[str, Tensor], slices: WeightSlices) -> Tensor:
    """Return a model's weights as one vector; without a copy if they are slices of one already."""
    if isinstance(model, FlatModel) and model.slices == slices:
        return model.vector
    values = [model[name] for name in slices]
    if are_slices(values, slices.values()):
        return values[0].as_strided((sum(value.numel() for value in values),), (1,))
    pairs = zip(values, slices.values(), strict=True)
    return torch.cat([part.in_memory_order(value).flatten() for value, part in pairs])


class Parameter(NamedTuple):
    """A trainable weight of a network: its module, its name there, and its slice."""

    module: nn.Module
    key: str
    slice: WeightSlice


class FlatNetwork:
    """Makes all trainable weights of a network views of one vector.

    The network's parameters are replaced by ``leaves``: views of ``vector`` for which gradients can
    be computed. What is not trained (buffers, frozen weights) is in ``rest``.
    """

    def __init__(self, network: nn.Module, *, channels_last: bool = False) -> None:
        self.parameters: dict[str, Parameter] = {}
        owners: dict[int, str] = {}
        tied: list[tuple[nn.Module, str, str]] = []
        begin = 0
        for prefix, module in network.named_modules():
            for key, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    continue
                name = f"{prefix}.{key}" if prefix else key
                if id(parameter) in owners:
                    tied.append((module, key, owners[id(parameter)]))
                    continue
                owners[id(parameter)] = name
                last = channels_last and parameter.dim() == 4
                part = WeightSlice.at(begin, parameter.shape, last=last)
                self.parameters[name] = Parameter(module, key, part)
                begin += parameter.numel()
        self.slices = {name: parameter.slice for name, parameter in self.parameters.items()}
        state = network.state_dict()
        self.rest = {name: value for name, value in state.items() if name not in self.parameters}
        self.vector = self.flatten(state)
        self.leaves = {
            name: view.requires_grad_() for name, view in self.views(self.vector).items()
        }
        # A leaf is a plain tensor, no nn.Parameter, so it cannot be assigned as an attribute.
        for name, parameter in self.parameters.items():
            parameter.module._parameters[parameter.key] = self.leaves[name]  # type: ignore[assignment]
        for module, key, owner in tied:
            module._parameters[key] = self.leaves[owner]  # type: ignore[assignment]

    def views(self, vector: Tensor) -> Tensors:
        """Return the weights in a vector, by name; of each row in a (clients, weights) table."""
        return {name: part.of(vector) for name, part in self.slices.items()}

    def flatten(self, weights: Tensors, out: Tensor | None = None) -> Tensor:
        """Return weights as a vector: a new one, or the one that is given."""
        vector = as_vector({name: weights[name].detach() for name in self.slices}, self.slices)
        return vector.clone() if out is None else out.copy_(vector)

    def flatten_stacked(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the weights of several clients, each (clients, …), as (clients, weights)."""
        pairs = zip(weights, self.slices.values(), strict=True)
        rows = [part.in_memory_order(value).reshape(len(value), -1) for value, part in pairs]
        return torch.cat(rows, 1)

    def factors(self, prefix: str, factor: float) -> Tensor | None:
        """Return a factor for every weight: the given one under the prefix, and 1 elsewhere.

        None if all are 1, or if no weight is under the prefix.
        """
        names = [name for name in self.slices if name.startswith(prefix)]
        if factor == 1 or not names:
            return None
        vector = torch.ones_like(self.vector)
        for name in names:
            self.slices[name].of(vector).fill_(factor)
        return vector

    def gradient_of(self, loss: Tensor, out: Tensor) -> None:
        """Write the gradient of a loss into a vector; it is 0 for weights that the loss ignores.

        Copying is less work than `backward`, which adds to a vector that has to be zeroed first.
        """
        gradients = torch.autograd.grad(
            loss, list(self.leaves.values()), allow_unused=True, materialize_grads=True
        )
        for part, gradient in zip(self.slices.values(), gradients, strict=True):
            part.of(out).copy_(gradient)
