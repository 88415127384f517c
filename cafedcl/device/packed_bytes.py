"""Several tensors in one vector of bytes, which one copy moves to another device or process."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors

Forms = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Types and shapes of tensors, by name."""


class PackedTensor(NamedTuple):
    """A tensor in the vector: its name, type and shape, and the bytes it takes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class PackedBytes:
    """Where tensors of certain names, types and shapes lie in one vector of bytes."""

    def __init__(self, forms: Forms) -> None:
        self.names = list(forms)
        self.entries: list[PackedTensor] = []
        self.size = 0
        # The widest types come first, so that each number is at a multiple of its own size.
        for name in sorted(forms, key=lambda name: -forms[name][0].itemsize):
            dtype, shape = forms[name]
            end = self.size + dtype.itemsize * math.prod(shape)
            self.entries.append(PackedTensor(name, dtype, shape, self.size, end))
            self.size = end

    @classmethod
    def like(cls, tensors: Mapping[str, Tensor]) -> "PackedBytes":
        """Return the packing of tensors with these names, types and shapes."""
        return cls({name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()})

    def wrap(self, tensors: Tensors) -> Tensor:
        """Return the tensors as a new vector of bytes on their device."""
        parts = [tensors[entry.name].reshape(-1).view(torch.uint8) for entry in self.entries]
        return torch.cat(parts)

    def write(self, tensors: Mapping[str, Tensor], data: Tensor) -> None:
        """Copy the tensors into an existing vector of bytes."""
        for name, view in self.unwrap(data).items():
            view.copy_(tensors[name].detach())

    def unwrap(self, data: Tensor) -> Tensors:
        """Return the tensors as views of the vector, which may be filled later."""
        views = {
            name: data[begin:end].view(dtype).view(shape)
            for name, dtype, shape, begin, end in self.entries
        }
        return {name: views[name] for name in self.names}

    @cached_property
    def _numpy_types(self) -> list[np.dtype[Any]]:
        return [torch.empty(0, dtype=entry.dtype).numpy().dtype for entry in self.entries]

    def read(self, data: Tensor) -> dict[str, npt.NDArray[Any]]:
        """Return copies of what is in a vector on the host, as arrays; NumPy must have the types.

        That takes half the time of making tensors, and happens in every visit of a client.
        """
        whole = data.numpy().copy()
        pairs = zip(self.entries, self._numpy_types, strict=True)
        return {
            entry.name: np.ndarray(entry.shape, kind, whole, entry.begin) for entry, kind in pairs
        }
