"""Memory that two processes share: tensors are written into it and read out, one copy each."""

import json
import math
import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

from cafedcl.core.tensors import Header, Tensors

ALIGNED = 64
"""Tensors begin at multiples of so many bytes."""


class SharedMemory:
    """A stretch of unnamed memory that processes forked from here see too. What is written replaces
    what was there.
    """

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    def write(self, tensors: Mapping[str, Tensor], header: Header) -> bool:
        """Write tensors and a header; returns whether there was room."""
        entries = list[tuple[str, str, list[int], int]]()
        end = 0
        for name, value in tensors.items():
            entries.append((name, str(value.dtype).removeprefix("torch."), list(value.shape), end))
            end += -(-value.numel() * value.element_size() // ALIGNED) * ALIGNED
        text = json.dumps({"header": header, "entries": entries}).encode()
        start = -(-(8 + len(text)) // ALIGNED) * ALIGNED
        if start + end > len(self.bytes):
            return False
        self.memory[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
        for value, (_, dtype, shape, begin) in zip(tensors.values(), entries, strict=True):
            self._at(start + begin, dtype, shape).copy_(value.detach())
        return True

    def read(self, *, copied: bool) -> tuple[Tensors, Header]:
        """Return what was written last; without a copy it is good until the next time something is
        written.
        """
        length = int.from_bytes(self.memory[:8], "little")
        start = -(-(8 + length) // ALIGNED) * ALIGNED
        index = json.loads(self.memory[8 : 8 + length])
        tensors = {
            name: self._at(start + begin, dtype, shape)
            for name, dtype, shape, begin in index["entries"]
        }
        return {name: value.clone() if copied else value for name, value in tensors.items()}, index[
            "header"
        ]

    def _at(self, begin: int, dtype: str, shape: list[int]) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        end = begin + math.prod(shape) * kind.itemsize
        return self.bytes[begin:end].view(kind).view(shape)
