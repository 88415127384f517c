"""A lane of a device: a stream that work is queued on, and captures that are replayed there.

On a device without streams a lane is plain execution in order, so that whatever is built on lanes
runs, and is tested, everywhere.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors
from cafedcl.device.capture import WARM_UP, capture
from cafedcl.device.packed_bytes import PackedBytes


class Mark:
    """A point in a lane's work."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.event = None if stream is None else torch.cuda.Event(enable_timing=True)
        if self.event:
            self.event.record(stream)
        self.passed = time.perf_counter()

    def wait(self) -> None:
        """Wait until the work before it is done."""
        if self.event:
            self.event.synchronize()

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two points that have been waited for."""
        if self.event and earlier.event:
            return float(earlier.event.elapsed_time(self.event)) / 1000
        return self.passed - earlier.passed


@dataclass(frozen=True)
class Replay:
    """A captured piece of work: with it are kept the tensors that only the work refers to, which
    the graph reads.
    """

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Queue the work once more."""
        self.graph.replay()


class Lane:
    """Work in order; other lanes run beside it."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pool: Any = None

    def on(self) -> AbstractContextManager[object]:
        """Queue what the block does on this lane."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self) -> None:
        """Let what is queued from now on wait for all that the caller has queued so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def capture(
        self,
        work: Callable[[], None],
        before: Callable[[], object] | None = None,
        *,
        warm: bool = True,
    ) -> Callable[[], None]:
        """Return a call that repeats the work on the tensors it was captured with.

        To ``warm`` it up, the work is run a few times first, each time after ``before``, so it
        changes those tensors already; what only repeats a captured work needs none. They are kept
        as long as the call is. All captures of a lane share one pool of memory: they never overlap,
        and leave nothing in it that is read later.
        """
        for _ in range((WARM_UP if self.stream else 1) if warm else 0):
            if before:
                before()
            work()
        if self.stream is None:
            return work
        graph = capture(work, self.stream, self.pool)
        self.pool = graph.pool()
        return Replay(graph, work)

    def mark(self) -> "Mark":
        """Mark the end of all that has been queued so far."""
        return Mark(self.stream)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors made on this lane, and whatever are parts of them, be used and let go by the
        caller's queue.
        """
        if self.stream is not None:
            queue = torch.cuda.current_stream(self.stream.device)
            for value in tensors:
                if value.is_cuda:
                    value.record_stream(queue)


def to_host(tensors: Tensors) -> Tensors:
    """Return tensors on the host; on a stream, they are there once the lane's mark has been waited
    for.
    """
    away = {name: value for name, value in tensors.items() if not value.is_cpu}
    if not away:
        return tensors
    parcel = PackedBytes(away)
    return {**tensors, **parcel.unwrap(parcel.wrap(away).to("cpu", non_blocking=True))}
