"""Digests of files' content, by which damaged files are detected."""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

DIGEST = "digest"
"""The entry of a file's header with the digest of all the rest."""


TYPES = {
    "BOOL": "torch.bool",
    **{f"U{bits}": f"torch.uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"torch.int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"torch.float{bits}" for bits in (16, 32, 64)},
    "BF16": "torch.bfloat16",
    "F8_E4M3": "torch.float8_e4m3fn",
    "F8_E5M2": "torch.float8_e5m2",
    "C64": "torch.complex64",
}
"""PyTorch's names of the types in a packed file."""


class Entry(NamedTuple):
    """One tensor as bytes."""

    name: str
    type: str
    """As PyTorch calls it, such as ``torch.float32``."""
    shape: tuple[int, ...]
    content: Any
    """A buffer."""


def digest_of(entries: Iterable[Entry], header: Mapping[str, Any] | None = None) -> str:
    """Return a digest of names, types, shapes and content, and of a header if one is given."""
    hasher = blake2b(digest_size=16)
    for entry in sorted(entries, key=lambda entry: entry.name):
        hasher.update(f"{entry.name} {entry.type} {entry.shape} ".encode())
        hasher.update(entry.content)
    if header is not None:
        hasher.update(json.dumps(header, sort_keys=True).encode())
    return hasher.hexdigest()


def checked_header(content: bytes) -> Any:
    """Return the header of a packed file without its digest, or None if it has no header.

    Raises ValueError if the file is incomplete or its content does not match the digest. Files of
    earlier versions have no digest.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        tensors = json.loads(content[8:start])
        text = tensors.pop("__metadata__", {}).get("header")
        header = None if text is None else json.loads(text)
        if not isinstance(header, dict) or DIGEST not in header:
            return header
        rest = {name: value for name, value in header.items() if name != DIGEST}
        # The bytes as they are: NumPy has no name for some types of PyTorch.
        entries = [
            Entry(
                name,
                TYPES.get(about["dtype"], about["dtype"]),
                tuple(about["shape"]),
                content[slice(*(start + place for place in about["data_offsets"]))],
            )
            for name, about in tensors.items()
        ]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a whole packed file: {error}") from None
    if header[DIGEST] != digest_of(entries, rest):
        raise ValueError("its content does not match its digest")
    return rest
