"""All weights of a model as one vector: often they lie so already, and nothing has to be copied."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class WeightSlice(NamedTuple):
    """Where a weight lies in a vector."""

    shape: torch.Size
    strides: tuple[int, ...]
    begin: int
    last: bool
    """Whether its channels, the second of its four axes, lie last."""

    @classmethod
    def at(cls, begin: int, shape: torch.Size, *, last: bool) -> "WeightSlice":
        """Return the place of a weight that begins there."""
        form = torch.channels_last if last else torch.contiguous_format
        return cls(
            shape, torch.empty(shape, device="meta", memory_format=form).stride(), begin, last
        )

    def of(self, vector: Tensor) -> Tensor:
        """Return the weight that lies there in a vector; those of several clients, if it has a row
        for each.
        """
        begin = vector.storage_offset() + self.begin
        if vector.dim() == 1:
            return vector.as_strided(self.shape, self.strides, begin)
        return vector.as_strided(
            vector.shape[:-1] + self.shape, vector.stride()[:-1] + self.strides, begin
        )

    def as_it_lies(self, part: Tensor) -> Tensor:
        """Return something of the weight's shape, such as its gradient, in the shape it lies in; of
        many too.
        """
        return part.movedim(-3, -1) if self.last else part


WeightSlices = dict[str, WeightSlice]


class FlatModel(Mapping[str, Tensor]):
    """Weights that together are one vector, listed as they lie in it.

    Each is cut out of it when somebody asks for it, which few do.
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
    """Return all numbers of a model in as few tensors as there are."""
    return {"vector": model.vector} if isinstance(model, FlatModel) else model


def slices_of(model: Mapping[str, Tensor]) -> WeightSlices:
    """Return where weights are to lie in one vector: as they do, if they are parts of one, or else
    one by one.
    """
    if isinstance(model, FlatModel):
        return model.slices
    values = list(model.values())
    begins = [0, *accumulate(value.numel() for value in values[:-1])]
    pairs = list(zip(begins, values, strict=True))
    kept = [WeightSlice.at(begin, value.shape, last=channels_last(value)) for begin, value in pairs]
    if not lie(values, kept):
        kept = [WeightSlice.at(begin, value.shape, last=False) for begin, value in pairs]
    return dict(zip(model, kept, strict=True))


def channels_last(value: Tensor) -> bool:
    """Return whether a weight's channels lie last in memory."""
    return (
        value.dim() == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def lie(values: Sequence[Tensor], slices: Iterable[WeightSlice]) -> bool:
    """Return whether weights are those parts of one vector."""
    first = values[0]
    begin = first.storage_offset()
    data = first.untyped_storage().data_ptr()
    dtype = first.dtype
    return all(
        value.storage_offset() == begin + place.begin
        and value.stride() == place.strides
        and value.dtype == dtype
        and value.untyped_storage().data_ptr() == data
        for value, place in zip(values, slices, strict=True)
    )


def in_one(model: Mapping[str, Tensor], slices: WeightSlices) -> Tensor:
    """Return weights as one vector, which is the one they are parts of if they lie so already."""
    if isinstance(model, FlatModel) and model.slices == slices:
        return model.vector
    values = [model[name] for name in slices]
    if lie(values, slices.values()):
        return values[0].as_strided((sum(value.numel() for value in values),), (1,))
    return torch.cat(
        [
            place.as_it_lies(value).flatten()
            for value, place in zip(values, slices.values(), strict=True)
        ]
    )
