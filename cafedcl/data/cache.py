"""A cache of decoded sets and of their features, one safetensors file each, so that the second load
is a memory map.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError

from cafedcl.core.tensors import Tensors, digest, map_file, pack
from cafedcl.data.dataset import Dataset

FOLDER = "cache"
VERSION = 6
"""Raised whenever a reader's result changes, so that older entries are not used."""

Remarks = list[str]
"""Warnings of a reader, one line each: images that it left out, and why."""


def cached(
    root: Path, label: str, files: Iterable[Path], make: Callable[[], tuple[Dataset, Remarks]]
) -> tuple[Dataset, Remarks]:
    """Return the result of ``make``, from ``cache/`` below the data folder if files are unchanged.

    If the folder cannot be written to, nothing is cached; this is not an error.
    """
    folder = root / FOLDER
    path = folder / f"{label}-{_files_digest(files)}.safetensors"
    entry = _read_entry(path)
    if entry is not None:
        return entry
    data, remarks = make()
    header = {"version": VERSION, "plain": data.plain(), "remarks": remarks}
    with contextlib.suppress(OSError):
        _write_entry(path, pack(data.tensors(), header))
        _delete_older(folder, label, path)
    return data, remarks


def cached_tensors(
    root: Path, name: str, fits: Callable[[Tensors], bool], make: Callable[[], Tensors]
) -> Tensors:
    """Return the result of ``make``, from ``cache/`` if there is one of this name that ``fits``."""
    path = root / FOLDER / f"{name}.safetensors"
    with contextlib.suppress(SafetensorError, OSError, ValueError, KeyError, TypeError):
        found, header = map_file(path)
        if header["digest"] == digest(found) and fits(found):
            return found
    made = make()
    with contextlib.suppress(OSError):
        _write_entry(path, pack(made, {"digest": digest(made)}))
    return made


def choice_digest(*chosen: object) -> str:
    """Return a short digest of what determines how files are read: their place, and options."""
    # Bytes of a path that are not UTF-8 are lone surrogates, which no other encoding accepts.
    text = "|".join(map(str, chosen)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:8]


def _files_digest(files: Iterable[Path]) -> str:
    """Return a digest of the source files' names, sizes and modification times."""
    stats = [(str(file), _stat(file)) for file in files]
    parts = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps([VERSION, parts]).encode()).hexdigest()[:16]


def _stat(file: Path) -> os.stat_result:
    """Return a file's status; for a broken link, that of the link itself."""
    try:
        return file.stat()
    except FileNotFoundError:
        return file.lstat()


def _read_entry(path: Path) -> tuple[Dataset, Remarks] | None:
    if not path.exists():
        return None
    try:
        tensors, header = map_file(path)
        return Dataset.from_tensors(tensors, header["plain"]), list(header["remarks"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        # The entry is damaged: the caller decodes the set again and replaces it.
        return None


def _write_entry(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same entry, so each has its own temporary file. mkstemp also
    # makes it readable by this user only, as your own data should be.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _delete_older(folder: Path, label: str, keep: Path) -> None:
    """Delete entries of the same set that were decoded from earlier versions of its files."""
    pattern = re.compile(re.escape(label) + r"-[0-9a-f]{16}\.safetensors")
    for other in folder.iterdir():
        if other != keep and pattern.fullmatch(other.name):
            other.unlink(missing_ok=True)
