"""Several small tensors as one, so that one copy takes them to another device."""

from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors


class Stretch(NamedTuple):
    """Tensors of one type, which lie one after another."""

    dtype: torch.dtype
    start: int
    end: int
    sizes: list[int]
    shapes: dict[str, torch.Size]


class PackedBytes:
    """Where tensors of certain names, shapes and types lie in one vector of bytes."""

    def __init__(self, tensors: Tensors) -> None:
        self.stretches: list[Stretch] = []
        start = 0
        for dtype in sorted(
            {value.dtype for value in tensors.values()},
            key=lambda dtype: (-dtype.itemsize, str(dtype)),
        ):
            shapes = {name: value.shape for name, value in tensors.items() if value.dtype == dtype}
            sizes = [shape.numel() for shape in shapes.values()]
            end = start + dtype.itemsize * sum(sizes)
            self.stretches.append(Stretch(dtype, start, end, sizes, shapes))
            start = end

    def wrap(self, tensors: Tensors) -> Tensor:
        """Return the tensors as bytes, those of the widest types first, so that each lies where it
        may be read.
        """
        names = (name for stretch in self.stretches for name in stretch.shapes)
        return torch.cat([tensors[name].reshape(-1).view(torch.uint8) for name in names])

    @cached_property
    def _entries(self) -> list[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
        """Every tensor's name, shape, type and first byte."""
        entries = []
        for dtype, start, _, sizes, shapes in self.stretches:
            begins = accumulate(sizes, initial=0)
            kind = torch.empty(0, dtype=dtype).numpy().dtype
            parts = zip(shapes.items(), begins, strict=False)
            entries += [
                (name, tuple(shape), kind, start + dtype.itemsize * begin)
                for (name, shape), begin in parts
            ]
        return entries

    def read(self, data: Tensor) -> dict[str, npt.NDArray[Any]]:
        """Return what lies in a vector on the host now, in memory of its own; types are those that
        NumPy has.

        That takes half the time of cutting tensors out of it.
        """
        whole = data.numpy().copy()
        return {
            name: np.ndarray(shape, kind, whole, begin)
            for name, shape, kind, begin in self._entries
        }

    def unwrap(self, data: Tensor) -> Tensors:
        """Return the tensors that lie in a vector, as views of it, which may be filled later."""
        found: Tensors = {}
        for dtype, start, end, sizes, shapes in self.stretches:
            values = data[start:end].view(dtype).split_with_sizes(sizes)
            for (name, shape), value in zip(shapes.items(), values, strict=True):
                found[name] = value if len(shape) == 1 else value.view(shape)
        return found
