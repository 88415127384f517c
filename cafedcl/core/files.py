"""Writing files so that a crash or a full disk loses nothing that was saved before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cafedcl.core.errors import CafedclError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one: temporary file, fsync,
    rename.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system, such as a full disk, into one clear line."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CafedclError(
            f"{where}: cannot be written: {error.strerror}; nothing already saved is lost"
        ) from error
