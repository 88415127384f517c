"""Strikes at the system calls that write to a folder: takes a picture of it there, or fails.

What a process leaves behind when it is killed at a call is what the folder holds at that moment. So
one run with a picture at every call stands for as many runs that are killed.
"""

import errno
import io
import os
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

Strike = Callable[[str], None]
"""Is told the name of every call before it is made."""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, strike: Strike) -> None:
    """Call ``strike`` before every call that writes to the folder, and in the middle of writes.

    The functions of `os`, and the raw files below `open`, are replaced.
    """

    def is_inside(place: Any) -> bool:
        path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else place
        return os.fspath(path).startswith(str(folder))

    def watch(name: str) -> None:
        original = getattr(os, name)

        def replacement(place: Any, *others: Any, **options: Any) -> Any:
            writes = name != "open" or bool(others and others[0] & (os.O_CREAT | os.O_WRONLY))
            if writes and is_inside(place):
                strike(name)
            return original(place, *others, **options)

        monkeypatch.setattr(os, name, replacement)

    class RawFile(io.FileIO):
        def write(self, data: Any) -> int:
            strike("write")
            half = len(data) // 2
            written = super().write(bytes(data)[:half]) or 0
            strike("half a write")
            return written + (super().write(bytes(data)[half:]) or 0)

    def open_file(file: Any, mode: str = "r", *others: Any, **options: Any) -> Any:
        if isinstance(file, int) or not is_inside(file) or mode not in ("wb", "ab+"):
            return original_open(file, mode, *others, **options)
        strike("create")
        raw = RawFile(file, mode.replace("b", ""))
        return io.BufferedWriter(raw) if mode == "wb" else raw

    original_open = io.open
    for name in ("open", "fsync", "replace", "unlink", "mkdir", "ftruncate"):
        watch(name)
    monkeypatch.setattr(io, "open", open_file)


class Pictures:
    """Copies the folder at every call, as a process leaves it that is killed there.

    Some calls change nothing that can be seen, such as fsync; then there is no second copy.
    """

    def __init__(self, folder: Path, album: Path) -> None:
        self.folder = folder
        self.album = album
        self.calls = 0
        self.taken: list[Path] = []
        self.seen: set[bytes] = set()

    def __call__(self, name: str) -> None:
        """Take a picture."""
        if not self.folder.exists():
            return
        self.calls += 1
        content = content_of(self.folder)
        if content in self.seen:
            return
        self.seen.add(content)
        place = self.album / f"{self.calls:03d} {name}"
        self.taken.append(Path(shutil.copytree(self.folder, place)))


def content_of(folder: Path) -> bytes:
    """Return a digest of the names and the content of all files of a folder."""
    hasher = blake2b()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        hasher.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
    return hasher.digest()


class FullDisk:
    """Fails at one call, as on a full disk."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, name: str) -> None:
        """Fail if it is this call's turn."""
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
