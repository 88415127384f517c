"""Writing files so that a crash or a full disk loses nothing that was saved before."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cafedcl.core.errors import CafedclError

TEMPORARY = ".tmp"
"""The suffix of a file until it is complete; files that a killed process leaves behind have it."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one: temporary file, fsync,
    rename.

    A link stays a link. Anything but a regular file, such as a pipe, is written to directly.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


BEGINNING = 1_000_000
"""How many bytes of a file are read to tell what it is."""


def refuse_other_file(path: Path, own: re.Pattern[bytes], what: str, option: str = "--out") -> None:
    """Raise CafedclError if there is a file that a new one must not replace: one of another kind.

    ``own`` matches the beginning of files that may be replaced. A file that cannot be read is
    reported when it is written.
    """
    if not path.is_file():
        return
    with suppress(OSError):
        beginning = _beginning(path)
        if beginning and not own.match(beginning):
            raise CafedclError(f"{option} {path}: it exists and is no {what}; choose another name")


def require_writable(path: Path) -> None:
    """Make a file's folder and raise CafedclError if no file can be written there.

    Call it before long work whose result would otherwise be lost.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.exists() and not path.is_file():
            return
        temporary = path.with_name(path.name + TEMPORARY)
        temporary.touch()
        temporary.unlink()


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(BEGINNING)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, and wait until it is on the disk.

    A last line that a crash cut off is removed first: the new one would become part of it.
    """
    is_new = not path.exists()
    # Without a buffer: after a failed write, closing the file would write the buffer once more.
    with path.open("ab+", buffering=0) as file:
        size = _size_of_whole_lines(file.fileno())
        try:
            data = line.encode() + b"\n"
            os.ftruncate(file.fileno(), size)
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except BaseException:
            os.ftruncate(file.fileno(), size)
            raise
    if is_new:
        _sync_folder(path.parent)


def _size_of_whole_lines(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    return os.pread(descriptor, size, 0).rfind(b"\n") + 1


def _sync_folder(path: Path) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_content(path: Path) -> bytes:
    """Return the content of a file; raise an error of one line if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CafedclError(f"{path}: cannot be read: {error.strerror}") from None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system, such as a full disk, into one clear line."""
    try:
        yield
    except OSError as error:
        # A file is first written under a temporary name, which the user does not know.
        where = str(error.filename or path).removesuffix(TEMPORARY)
        raise CafedclError(
            f"{where}: cannot be written: {why_unwritten(error)}; nothing already saved is lost"
        ) from error


def why_unwritten(error: OSError) -> str:
    """Return why the operating system does not write a file or make a folder."""
    if isinstance(error, FileExistsError) and isinstance(error.filename, str):
        path = Path(error.filename)
        if path.is_symlink() and not path.exists():
            return "it is a broken link; remove the link"
    return error.strerror or str(error)
