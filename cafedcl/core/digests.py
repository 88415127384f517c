"""Digests of what a file holds, so that a damaged file is not taken for a whole one."""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from cafedcl.core.arrays import Array

DIGEST = "digest"
"""The entry of a file's header with the digest of all the rest."""


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


def checked_header(arrays: Mapping[str, Array], header: Any) -> Any:
    """Return a file's header without its digest; raises ValueError if the digest is another.

    Files of earlier versions have none.
    """
    if not isinstance(header, dict) or DIGEST not in header:
        return header
    rest = {name: value for name, value in header.items() if name != DIGEST}
    entries = (
        Entry(name, f"torch.{value.dtype}", value.shape, np.ascontiguousarray(value).tobytes())
        for name, value in arrays.items()
    )
    if header[DIGEST] != digest_of(entries, rest):
        raise ValueError("its content does not match its digest")
    return rest
