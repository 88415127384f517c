"""Repeated work, which is captured once as a graph on a CUDA device and then replayed."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

WARM_UP = 2
"""Runs before a capture, in which libraries choose their kernels and allocate their workspaces."""
CHAIN = 10
"""Steps in one capture: fewer, larger launches."""


def capture(
    work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """Return the graph of what the work queues on a stream.

    Capturing does not do the work, which must have been warmed up before.
    """
    stream.synchronize()
    with torch.cuda.stream(stream), no_garbage_collection():
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device at the same time; their calls do not disturb a capture.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from running in a block.

    It might free an old graph, which CUDA does not permit during a capture.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def repeat(step: Callable[[], object], times: int, device: torch.device) -> None:
    """Take a step the given number of times; all have been taken when this returns.

    A step writes its results in place, advances a counter on the device, and never waits for the
    device: only what it queues is replayed. The first few steps run uncaptured, as a warm-up.
    """
    chains = 0
    if device.type == "cuda":
        chains = max(times - WARM_UP, 0) // CHAIN
    if not chains:
        _take(step, times)
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        _take(step, times - chains * CHAIN)
        graph = capture(lambda: _take(step, CHAIN), stream)
        for _ in range(chains):
            graph.replay()
    stream.synchronize()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all calls: libraries keep a workspace for every stream."""
    return torch.cuda.Stream(device)


def _take(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()
