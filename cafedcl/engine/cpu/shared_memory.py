"""Memory that two processes share: writing tensors and reading them takes one copy each."""

import json
import math
import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

from cafedcl.core.tensors import Header, Tensors
from cafedcl.device.packed_bytes import PackedBytes

ALIGNMENT = 64
"""The tensors begin at a multiple of this many bytes, which suits vector instructions."""
LENGTH_BYTES = 8
"""The memory begins with the length of the index, as a number of this many bytes."""


class SharedMemory:
    """Unnamed memory that processes forked from this one share.

    It holds an index (a header, and names, types and shapes of tensors), then the tensors' bytes.
    Every message replaces the one before.
    """

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    def write(self, tensors: Mapping[str, Tensor], header: Header) -> bool:
        """Write tensors and a header; return whether there was room."""
        packed = PackedBytes.like(tensors)
        entries = [
            (name, str(value.dtype).removeprefix("torch."), list(value.shape))
            for name, value in tensors.items()
        ]
        index = json.dumps({"header": header, "entries": entries}).encode()
        begin = _data_begins(len(index))
        if begin + packed.size > len(self.bytes):
            return False
        length = len(index).to_bytes(LENGTH_BYTES, "little")
        self.memory[: LENGTH_BYTES + len(index)] = length + index
        packed.write(tensors, self.bytes[begin : begin + packed.size])
        return True

    def read(self, *, copied: bool) -> tuple[Tensors, Header]:
        """Return the last message; without a copy it is valid until the next one is written."""
        length = int.from_bytes(self.memory[:LENGTH_BYTES], "little")
        index = json.loads(self.memory[LENGTH_BYTES : LENGTH_BYTES + length])
        entries = index["entries"]
        packed = PackedBytes(
            {name: (getattr(torch, dtype), tuple(shape)) for name, dtype, shape in entries}
        )
        begin = _data_begins(length)
        tensors = packed.unwrap(self.bytes[begin : begin + packed.size])
        if copied:
            tensors = {name: value.clone() for name, value in tensors.items()}
        return tensors, index["header"]


def _data_begins(index_length: int) -> int:
    return math.ceil((LENGTH_BYTES + index_length) / ALIGNMENT) * ALIGNMENT
