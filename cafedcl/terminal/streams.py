"""Standard output and standard error that never stop a command.

Characters that they cannot encode are replaced, closed streams discard their output, and a stream
that cannot be written, as on a full disk, is abandoned. Only a reader that has closed the pipe,
such as `head`, ends the command.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = range(3)
"""The descriptors of the three streams that a process begins with."""


class NoReaderError(BrokenPipeError):
    """Standard output has no reader any more. It is raised once; later output is discarded."""


class OutputFile(io.FileIO):
    """The file of an output stream, which discards its output after the first failed write."""

    problem = ""
    """Why it cannot be written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write the data, or abandon the stream."""
        try:
            return super().write(data)
        except OSError as error:
            lead_nowhere(self.fileno())
            self.problem = error.strerror or str(error)
            if self.fileno() == STDOUT and isinstance(error, BrokenPipeError):
                raise NoReaderError(error.errno, self.problem) from None
        if self.fileno() == STDOUT:
            line = f"error: standard output cannot be written: {self.problem}; it is given up"
            # Not through `sys.stderr`: a live view redirects that to this very stream.
            with suppress(OSError):
                os.write(STDERR, f"{line}\n".encode())
        return super().write(data)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Keep standard output and standard error usable in a block that ends in `sys.exit`.

    Its exit status is 1 instead of 0 if some of its output is lost.
    """
    for descriptor in (STDIN, STDOUT, STDERR):
        _open_if_closed(descriptor)
    before = sys.stdout, sys.stderr
    sys.stdout = _lasting(sys.stdout, STDOUT)
    sys.stderr = _lasting(sys.stderr, STDERR)
    printed = sys.stdout
    told = sys.stderr
    try:
        try:
            yield
        finally:
            # Python's own flush, which comes later, could no longer report an error.
            printed.flush()
    except NoReaderError:
        sys.exit(1)
    except SystemExit as end:
        if _was_given_up(printed) and not end.code:
            sys.exit(1)
        raise
    finally:
        told.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a lasting stream for a descriptor; a redirected stream, as in a test, is kept."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(OutputFile(descriptor)), encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or not _leads_to(stream, descriptor):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(OutputFile(descriptor)),
        encoding=stream.encoding,
        errors="replace",
        # With PYTHONUNBUFFERED, every write is passed on at once.
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _leads_to(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _was_given_up(stream: TextIO) -> bool:
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(file, OutputFile) and bool(file.problem)


def lead_nowhere(descriptor: int) -> None:
    """Make a descriptor, open or closed, discard what is written to it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == descriptor:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _open_if_closed(descriptor: int) -> None:
    """Reserve the number of a closed stream, so that the next opened file does not get it."""
    try:
        os.fstat(descriptor)
    except OSError:
        lead_nowhere(descriptor)
