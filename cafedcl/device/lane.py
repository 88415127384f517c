"""A lane: a CUDA stream that work is queued on, and the captures that are replayed there.

On a device without streams a lane runs everything at once and in order, so that what is built on
lanes works, and is tested, everywhere.
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
        if self.event is not None:
            self.event.record(stream)
        self.passed = time.perf_counter()

    def wait(self) -> None:
        """Wait until the work before it is done."""
        if self.event is not None:
            self.event.synchronize()

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two points that have been waited for."""
        if self.event is not None and earlier.event is not None:
            return float(earlier.event.elapsed_time(self.event)) / 1000
        return self.passed - earlier.passed


@dataclass(frozen=True)
class Replay:
    """A captured piece of work.

    The graph reads tensors that nothing but the work refers to, so the work is kept with it.
    """

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Queue the work once more."""
        self.graph.replay()


class Lane:
    """Work that runs in order, in parallel with the work of other lanes."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pool: Any = None

    def on(self) -> AbstractContextManager[object]:
        """Queue what the block does on this lane."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self) -> None:
        """Make later work of this lane wait for all that the caller has queued so far."""
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

        To ``warm`` it up, the work first runs a few times, each time after ``before``, so its
        tensors already change. Work that only repeats warm work need not be warmed up.
        """
        runs = 0
        if warm:
            runs = WARM_UP if self.stream else 1
        for _ in range(runs):
            if before:
                before()
            work()
        if self.stream is None:
            return work
        # Captures of a lane never overlap, and nothing in their memory is read later, so all of
        # them share one pool.
        graph = capture(work, self.stream, self.pool)
        self.pool = graph.pool()
        return Replay(graph, work)

    def mark(self) -> "Mark":
        """Mark the end of all that has been queued so far."""
        return Mark(self.stream)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Let the caller's stream use and free tensors that were made on this lane.

        PyTorch's allocator must know of every stream that reads a tensor, or it would reuse the
        memory too early.
        """
        if self.stream is None:
            return
        caller = torch.cuda.current_stream(self.stream.device)
        for value in tensors:
            if value.is_cuda:
                value.record_stream(caller)


def to_host(tensors: Tensors) -> Tensors:
    """Return tensors on the host; they are valid once the lane's next mark has been waited for."""
    away = {name: value for name, value in tensors.items() if not value.is_cpu}
    if not away:
        return tensors
    packed = PackedBytes.like(away)
    return {**tensors, **packed.unwrap(packed.wrap(away).to("cpu", non_blocking=True))}
