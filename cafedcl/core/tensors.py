"""The one representation: a flat dict of tensors plus a small JSON header, as safetensors bytes.

What the engine returns, what a worker process receives, what a checkpoint stores: all are this. No
pickle.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as _load
from safetensors.torch import save as _save
from torch import Tensor

from cafedcl.core.digests import DIGEST, Entry, digest_of

Tensors = dict[str, Tensor]
"""Tensors by name: the weights of a model, the state of a server, the terms of a loss."""
Header = dict[str, Any]

MODEL = "model/"
ANCHORS = "anchors/"
AUGMENT = "augment/"
OWN_MODEL = "own/"
"""In what a client keeps: its model after its last visit, and the anchors that it had there."""
ENCODER = "encoder."
"""The prefix of the encoder's weights in a network."""
OPTIMIZER = "server/optimizer/"
"""What the server's optimizer keeps: it is as large as the model, and on the same device."""
FEATURES = "server/features"
"""Features that a server trains on: too many numbers to be recorded in every round."""


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the entries below ``prefix`` with the prefix taken off."""
    return {
        name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
    }


def without(prefix: str | tuple[str, ...], tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the entries that are not below ``prefix``, or any of several."""
    return {name: value for name, value in tensors.items() if not name.startswith(prefix)}


def method_memory(memory: Mapping[str, Tensor]) -> Tensors:
    """Return what the method itself keeps for a client, without weights and augmentation."""
    return without((MODEL, AUGMENT, OWN_MODEL), memory)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the entries with ``prefix`` put in front of every name."""
    return {prefix + name: value for name, value in tensors.items()}


def moved(tensors: Mapping[str, Tensor], device: torch.device | str) -> Tensors:
    """Return the tensors on a device."""
    return {name: value.to(device) for name, value in tensors.items()}


def cloned(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return copies of the tensors, without their gradients' history."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Return how many bytes the tensors take when they are sent."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def floats(tensors: Mapping[str, Tensor]) -> int:
    """Return how many floating-point numbers are sent, the unit of cost in the literature."""
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())


def pack(tensors: Mapping[str, Tensor], header: Header) -> bytes:
    """Return tensors and header as safetensors bytes."""
    storage_tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    seen: set[int] = set()
    for name, value in storage_tensors.items():
        if value.untyped_storage().data_ptr() in seen:
            storage_tensors[name] = value.clone()
        seen.add(storage_tensors[name].untyped_storage().data_ptr())
    return _save(storage_tensors, metadata={"header": json.dumps(header)})


def unpack(data: bytes) -> tuple[Tensors, Header]:
    """Return what :func:`pack` was given; raises ValueError if bytes are damaged."""
    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        return _load(data), json.loads(metadata["header"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a whole packed file: {error}") from error


def map_file(path: str | Path) -> tuple[Tensors, Header]:
    """Return a packed file's tensors mapped from disk: pages are shared between processes, nothing
    is copied.
    """
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["header"])


def spaced_rows(number: int, most: int) -> Tensor:
    """Return at most ``most`` of the first ``number`` rows, evenly spaced."""
    if number <= most:
        return torch.arange(number)
    return torch.linspace(0, number - 1, most, dtype=torch.float64).round().long()


def digest(tensors: Tensors, header: Mapping[str, Any] | None = None) -> str:
    """Return a digest of names, types, shapes and content, and of a header if one is given."""
    return digest_of((_entry(name, value) for name, value in tensors.items()), header)


def _entry(name: str, value: Tensor) -> Entry:
    value = value.detach().cpu().contiguous()
    content = value.flatten().view(torch.uint8).numpy().data if value.numel() else b""
    return Entry(name, str(value.dtype), tuple(value.shape), content)


def pack_with_digest(tensors: Tensors, header: Header) -> bytes:
    """Return the content of a file with a digest, by which damage can be detected."""
    return pack(tensors, {**header, DIGEST: digest(tensors, header)})


def unpack_checked(data: bytes) -> tuple[Tensors, Header]:
    """Return what :func:`pack_with_digest` was given; raises ValueError if it is damaged.

    Files of earlier versions have no digest.
    """
    tensors, header = unpack(data)
    rest = {name: value for name, value in header.items() if name != DIGEST}
    if header.get(DIGEST, "") not in ("", digest(tensors, rest)):
        raise ValueError("its content does not match its digest")
    return tensors, rest
