"""How long each phase of a round takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """Seconds per phase of a round; a phase inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        outer = self._inner
        self._inner = 0.0
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + took - self._inner
            self._inner = outer + took

    def waiting(self, phase: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items and time the wait for them."""
        while True:
            with self(phase):
                item = next(items, None)
            if item is None:
                return
            yield item
