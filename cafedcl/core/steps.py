"""Long steps report what they do and how far they are; other code shows it.

Code that works calls `step` or `tracked`. Code that shows progress polls `current`. Nothing is
printed here, so the same code runs in a terminal, in a notebook and in a worker.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
WORTH_SHOWING = 2.0
"""Seconds after which a person wants to know what takes so long."""


@dataclass
class Step:
    """A step in progress."""

    what: str
    total: int = 0
    """How many things there are to do; 0 if they are not counted."""
    unit: str = ""
    expected: float = 0.0
    """Seconds that it usually takes; 0 if that is not known."""
    done: int = 0
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
        return time.perf_counter() - self.began

    def left(self) -> float | None:
        """Return the seconds left, or None if they are not known."""
        if self.total and self.done:
            return self.seconds / self.done * (self.total - self.done)
        if self.expected:
            return max(0.0, self.expected - self.seconds)
        return None

    def __str__(self) -> str:
        words = [self.what]
        if self.total:
            words.append(f"{self.done:,} of {self.total:,} {self.unit}".rstrip())
        left = self.left()
        if left is None:
            words.append(f"{spoken(self.seconds)} so far")
        else:
            words.append(f"about {spoken(left)} left")
        return ", ".join(words)


def spoken(seconds: float) -> str:
    """Return a time as people say it, such as ``45 s`` or ``12 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


_active: list[Step] = []


def current() -> Step | None:
    """Return the innermost step in progress, or None."""
    # A copy: another thread may end a step between a look at the length and one at the element.
    steps = _active[:]
    return steps[-1] if steps else None


@contextmanager
def step(what: str, total: int = 0, unit: str = "", expected: float = 0.0) -> Iterator[Step]:
    """Report what a block does while it runs; the block counts ``done`` up to ``total``."""
    begun = Step(what, total, unit, expected)
    _active.append(begun)
    try:
        yield begun
    finally:
        _active.remove(begun)


def tracked(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield items, and count them as the things done in a step."""
    with step(what, total, unit) as begun:
        for item in items:
            yield item
            begun.done += 1
