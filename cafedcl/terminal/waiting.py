"""What a command is doing while nothing else is printed: a line on standard error."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from cafedcl.core.printable import printable
from cafedcl.core.steps import WORTH_SHOWING, Step, current

LOOK = 0.25
"""Seconds between two checks of the current step."""
REPEAT = 10.0
"""Seconds between two lines about the same step where lines cannot be replaced."""
ERASE_LINE = "\r\x1b[K"


class StepWatch:
    """Shows steps that take longer than two seconds, from a thread of its own."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.replaces = out.isatty()
        """Whether a line can be replaced by the next one."""
        self.silent = 0
        """How many blocks that show no steps are running."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._step: Step | None = None
        self._printed = 0.0
        self._dirty = False

    def __enter__(self) -> "StepWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._erase()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            self.look()

    def look(self) -> None:
        """Show the current step if it is time to."""
        step = current()
        if self.silent or step is None or step.seconds < WORTH_SHOWING:
            self._erase()
            return
        if self.replaces:
            self._write(ERASE_LINE + printable(str(step)))
            self._dirty = True
        elif step is not self._step or step.seconds - self._printed >= REPEAT:
            self._step = step
            self._printed = step.seconds
            self._write(printable(str(step)) + "\n")

    def _erase(self) -> None:
        if self._dirty:
            self._write(ERASE_LINE)
            self._dirty = False

    def _write(self, text: str) -> None:
        # A closed or broken stream is the command's problem, not that of a progress line.
        try:
            self.out.write(text)
            self.out.flush()
        except (OSError, ValueError):
            self._ended.set()


_watches: list[StepWatch] = []


@contextmanager
def showing_steps() -> Iterator[None]:
    """Show on standard error what a block does whenever a step takes longer than two seconds."""
    with StepWatch(sys.stderr) as watch:
        _watches.append(watch)
        try:
            yield
        finally:
            _watches.remove(watch)


@contextmanager
def silent_steps() -> Iterator[None]:
    """Show no steps while a block runs: it shows its own progress, or progress is unwanted."""
    for watch in _watches:
        watch.silent += 1
    try:
        yield
    finally:
        for watch in _watches:
            watch.silent -= 1
