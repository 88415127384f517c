"""Decoded sets, kept as one safetensors file each, so that the second load is a memory map."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError

from cafedcl.core.tensors import map_file, pack
from cafedcl.data.dataset import Dataset

VERSION = 1
"""Raised whenever a reader's result changes, so that what an older version decoded is not used."""

Remarks = list[str]


def cached(
    root: Path, label: str, files: Iterable[Path], make: Callable[[], tuple[Dataset, Remarks]]
) -> tuple[Dataset, Remarks]:
    """Return what ``make`` gives, from ``cache/`` below the data folder if the source files are
    still the same.

    A folder that cannot be written to is no error: then nothing is kept.
    """
    folder = root / "cache"
    path = folder / f"{label}-{_key(files)}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    data, remarks = make()
    header = {
        "version": VERSION,
        "names": data.names,
        "owners": data.owner_names,
        "remarks": remarks,
    }
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, pack(data.tensors(), header))
        _forget(folder, label, path)
    return data, remarks


def _key(files: Iterable[Path]) -> str:
    """Return a digest of the source files' names, sizes and times of change."""
    parts = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([VERSION, parts]).encode()).hexdigest()[:16]


def _read(path: Path) -> tuple[Dataset, Remarks] | None:
    if not path.exists():
        return None
    try:
        tensors, header = map_file(path)
        names = tuple(header["names"])
        owners = tuple(header["owners"])
        return Dataset(**tensors, names=names, owner_names=owners), list(header["remarks"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        # A damaged cache is decoded again and replaced.
        return None


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _forget(folder: Path, label: str, keep: Path) -> None:
    """Delete what was decoded from an earlier state of the same files."""
    pattern = re.compile(re.escape(label) + r"-[0-9a-f]{16}\.safetensors")
    for other in folder.iterdir():
        if other != keep and pattern.fullmatch(other.name):
            other.unlink(missing_ok=True)
