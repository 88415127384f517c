"""All weights of a model as one vector: often they lie so already, and nothing has to be copied."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from cafedcl.pack import Tensors


class Place(NamedTuple):
    """Where a weight lies in a vector."""

    shape: torch.Size
    strides: tuple[int, ...]
    begin: int
    last: bool
    """Whether its channels, the second of its four axes, lie last."""

    @classmethod
    def at(cls, begin: int, shape: torch.Size, *, last: bool) -> "Place":
        """Return the place of a weight that begins there."""
        form = torch.channels_last if last else torch.contiguous_format
        return cls(shape, torch.empty(shape, device="meta", memory_format=form).stride(), begin, last)

    def of(self, vector: Tensor) -> Tensor:
        """Return the weight that lies there in a vector; those of several clients, if it has a row for each."""
        begin = vector.storage_offset() + self.begin
        if vector.dim() == 1:
            return vector.as_strided(self.shape, self.strides, begin)
        return vector.as_strided(vector.shape[:-1] + self.shape, vector.stride()[:-1] + self.strides, begin)

    def as_it_lies(self, part: Tensor) -> Tensor:
        """Return something of the weight's shape, such as its gradient, in the shape it lies in; of many too."""
        return part.movedim(-3, -1) if self.last else part


def places_of(model: Tensors) -> dict[str, Place]:
    """Return where weights are to lie in one vector: as they do, if they are parts of one, or else one by one."""
    values = list(model.values())
    begins = [0, *accumulate(value.numel() for value in values[:-1])]
    pairs = list(zip(begins, values, strict=True))
    kept = [Place.at(begin, value.shape, last=channels_last(value)) for begin, value in pairs]
    if not lie(values, kept):
        kept = [Place.at(begin, value.shape, last=False) for begin, value in pairs]
    return dict(zip(model, kept, strict=True))


def channels_last(value: Tensor) -> bool:
    """Return whether a weight's channels lie last in memory."""
    return value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)


def lie(values: Sequence[Tensor], places: Iterable[Place]) -> bool:
    """Return whether weights are those parts of one vector."""
    first = values[0]
    begin, data, dtype = first.storage_offset(), first.untyped_storage().data_ptr(), first.dtype
    return all(
        value.storage_offset() == begin + place.begin
        and value.stride() == place.strides
        and value.dtype == dtype
        and value.untyped_storage().data_ptr() == data
        for value, place in zip(values, places, strict=True)
    )


def in_one(model: Tensors, places: dict[str, Place]) -> Tensor:
    """Return weights as one vector, which is the one they are parts of if they lie so already."""
    values = [model[name] for name in places]
    if lie(values, places.values()):
        return values[0].as_strided((sum(value.numel() for value in values),), (1,))
    return torch.cat([place.as_it_lies(value).flatten() for value, place in zip(values, places.values(), strict=True)])
