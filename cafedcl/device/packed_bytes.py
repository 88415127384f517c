"""Several tensors in one vector of bytes: one copy takes them to another device or process."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors


class Entry(NamedTuple):
    """A tensor in the vector: its name, type and shape, and its first byte."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        """The byte behind its last."""
        return self.begin + self.dtype.itemsize * torch.Size(self.shape).numel()


class PackedBytes:
    """Where tensors of certain names, shapes and types lie in one vector of bytes."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names = list(tensors)
        # The widest types come first, so that each number lies at a multiple of its own size.
        by_width = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
        self.entries: list[Entry] = []
        self.size = 0
        for name, value in by_width:
            entry = Entry(name, value.dtype, tuple(value.shape), self.size)
            self.entries.append(entry)
            self.size = entry.end

    def wrap(self, tensors: Tensors) -> Tensor:
        """Return the tensors as a new vector of bytes on their device."""
        parts = [tensors[entry.name].reshape(-1).view(torch.uint8) for entry in self.entries]
        return torch.cat(parts)

    def write(self, tensors: Mapping[str, Tensor], data: Tensor) -> None:
        """Copy the tensors into a vector of bytes that is there already."""
        for name, view in self.unwrap(data).items():
            view.copy_(tensors[name].detach())

    def unwrap(self, data: Tensor) -> Tensors:
        """Return the tensors as views of the vector, which may be filled later."""
        views = {
            entry.name: data[entry.begin : entry.end].view(entry.dtype).view(entry.shape)
            for entry in self.entries
        }
        return {name: views[name] for name in self.names}

    @cached_property
    def _numpy_types(self) -> list[np.dtype[Any]]:
        return [torch.empty(0, dtype=entry.dtype).numpy().dtype for entry in self.entries]

    def read(self, data: Tensor) -> dict[str, npt.NDArray[Any]]:
        """Return copies of what is in a vector on the host, as arrays; NumPy must have the types.

        That takes half the time of making tensors, and every visit of a client is read so.
        """
        whole = data.numpy().copy()
        pairs = zip(self.entries, self._numpy_types, strict=True)
        return {
            entry.name: np.ndarray(entry.shape, kind, whole, entry.begin) for entry, kind in pairs
        }
