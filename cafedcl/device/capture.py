"""The same work many times over: on a CUDA device it is captured once as a graph and replayed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

WARM_UP = 2
"""Runs before a capture: libraries choose their kernels and allocate their workspaces in them."""
CHAIN = 10
"""Steps in one capture: fewer, larger launches."""


def capture(
    work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """Return the graph of what the work queues on a stream. The work is not done by that, and must
    be warmed up.
    """
    stream.synchronize()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def repeat(step: Callable[[], object], times: int, device: torch.device) -> None:
    """Take a step so many times; all have been taken when this returns.

    A step writes its results in place, moves on by a counter on the device, and never waits for the
    device: only what it queues is replayed. The first few are taken plainly, which warms them up.
    """
    chains = max(times - WARM_UP, 0) // CHAIN if device.type == "cuda" else 0
    if not chains:
        _take(step, times)
        return
    stream = _beside(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        _take(step, times - chains * CHAIN)
        graph = capture(lambda: _take(step, CHAIN), stream)
        for _ in range(chains):
            graph.replay()
    stream.synchronize()


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """Return one stream for all: libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream(device)


def _take(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()
