"""Several small tensors as one, so that one copy takes them to another device."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cafedcl.pack import Tensors


class Piece(NamedTuple):
    """Where a tensor begins, in bytes, and how it is read there."""

    name: str
    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """The tensor's type, if NumPy has none like it."""
    kind: "np.dtype[Any]"
    """The type as which NumPy reads it."""


class Parcel:
    """Where tensors of certain names, shapes and types lie in one vector of bytes."""

    def __init__(self, tensors: Tensors) -> None:
        self.pieces: list[Piece] = []
        begin = 0
        for name, value in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
            self.pieces.append(Piece(name, begin, tuple(value.shape), *read_as(value.dtype)))
            begin += value.numel() * value.dtype.itemsize

    def wrap(self, tensors: Tensors) -> Tensor:
        """Return the tensors as bytes, those of the widest types first, so that each lies where it may be read."""
        return torch.cat([tensors[piece.name].reshape(-1).view(torch.uint8) for piece in self.pieces])

    def unwrap(self, data: Tensor) -> Tensors:
        """Return the tensors that lie in a vector on the host, as views of it, which NumPy makes faster."""
        whole, found = data.numpy(), Tensors()
        for name, begin, shape, dtype, kind in self.pieces:
            value = torch.from_numpy(np.ndarray(shape, kind, whole, begin))
            found[name] = value if dtype is None else value.view(dtype)
        return found


def read_as(dtype: torch.dtype) -> "tuple[torch.dtype | None, np.dtype[Any]]":
    """Return the type as which NumPy reads numbers, and that of PyTorch if it is not the same."""
    try:
        return None, torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return dtype, np.dtype(f"i{dtype.itemsize}")
