"""All weights of a model as one vector: often they lie so already, and nothing has to be copied."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from cafedcl.pack import Tensors


class Place(NamedTuple):
    """Where a weight lies in the vector."""

    shape: torch.Size
    strides: tuple[int, ...]
    begin: int
    last: bool
    """Whether its channels, which are its second axis, lie last."""

    def of(self, vector: Tensor) -> Tensor:
        """Return the weight that lies there in a whole vector."""
        return vector.as_strided(self.shape, self.strides, self.begin)


def places_of(model: Tensors) -> dict[str, Place]:
    """Return where weights are to lie in one vector: as they do, if they are parts of one, or else one by one."""
    values = list(model.values())
    begins = [0, *accumulate(value.numel() for value in values)]
    plain = [
        Place(v.shape, torch.empty(v.shape, device="meta").stride(), begin, last=False)
        for v, begin in zip(values, begins, strict=False)
    ]
    kept = [
        place._replace(strides=v.stride(), last=True)
        if v.dim() == 4 and not v.is_contiguous() and v.is_contiguous(memory_format=torch.channels_last)
        else place
        for v, place in zip(values, plain, strict=True)
    ]
    return dict(zip(model, kept if lie(values, kept) else plain, strict=True))


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
    pairs = zip(values, places.values(), strict=True)
    return torch.cat([(value.movedim(1, -1) if place.last else value).flatten() for value, place in pairs])
