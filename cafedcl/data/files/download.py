"""Downloads from official addresses: resumed if interrupted, and checked by MD5."""

import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from cafedcl.core.errors import CafedclError

CHUNK = 1 << 20
TIMEOUT = 30.0
TRIES = 4


@dataclass(frozen=True)
class Remote:
    """A file at its official address, with its published MD5."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The file's name in the data folder."""
        return urlsplit(self.url).path.rsplit("/", 1)[-1]


class _InterruptedError(Exception):
    """The transfer ended before the file was complete."""


class _Bar(Protocol):
    def __call__(self, done: int, total: int | None) -> None: ...


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the file in ``folder``, downloaded if it is missing.

    A download has the ending ``.part`` until it is complete and its MD5 is right.
    """
    target = folder / remote.name
    if target.exists():
        return target
    part = folder / f"{remote.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        _transfer(remote, part)
        if resumed and _md5(part) != remote.md5:
            # The resumed part may be from an older version of the file: start again once.
            part.unlink()
            _transfer(remote, part)
        found = _md5(part)
        if found != remote.md5:
            part.unlink()
            raise CafedclError(
                f"{remote.url}: the download's MD5 is {found}, not {remote.md5} as published; "
                "it was deleted, try again"
            )
        part.replace(target)
    except OSError as error:
        raise CafedclError(
            f"{folder}: cannot be written: {error.strerror or error}; set data.dir"
        ) from None
    return target


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _transfer(remote: Remote, part: Path) -> None:
    """Complete the part file; an interrupted transfer is resumed a few times."""
    with _progress(remote.name) as bar:
        for tries_left in reversed(range(TRIES)):
            before = part.stat().st_size if part.exists() else 0
            try:
                _one_transfer(remote, part, bar)
            except _InterruptedError as error:
                grown = part.exists() and part.stat().st_size > before
                if tries_left and grown:
                    continue
                raise CafedclError(
                    f"{remote.url}: the download broke off ({error}); run again to resume it"
                ) from None
            else:
                return


def _one_transfer(remote: Remote, part: Path, bar: _Bar) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "cafedcl"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(remote.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _save(response, part, have, bar)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            # 416, range not satisfiable: the part is as long as the file or longer. The MD5 then
            # decides, and the caller starts again if it is wrong.
            return
        raise CafedclError(
            f"{remote.url}: cannot be fetched: HTTP {error.code} {error.reason}"
        ) from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise CafedclError(f"{remote.url}: cannot be fetched: {reason}") from None
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from None


def _save(response: http.client.HTTPResponse, part: Path, have: int, bar: _Bar) -> None:
    span = response.headers.get("Content-Range", "")
    resumed = response.status == 206 and span.startswith(f"bytes {have}-")
    if response.status == 206 and not resumed:
        raise _InterruptedError(f"the server sent the wrong part, {span or 'unnamed'}")
    done = have if resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else None
    with part.open("ab" if resumed else "wb") as file:
        while chunk := _receive(response):
            file.write(chunk)
            done += len(chunk)
            bar(done, total)
    # http.client raises nothing when a body that is read in pieces is shorter than announced.
    if total is not None and done < total:
        raise _InterruptedError(f"{done} of {total} bytes")


def _receive(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from None


@contextmanager
def _progress(name: str) -> Iterator[_Bar]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, markup=False)) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
