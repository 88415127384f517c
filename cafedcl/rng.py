"""One seed makes everything: a named stream of random numbers per purpose and per client.

A stream is addressed by (seed, purpose, keys…), never by how many numbers were drawn before it. So the order
of execution, the engine, a resume, or a client that drops out changes no other draw.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(crc32(purpose.encode()), *keys))


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the numpy generator of one purpose, e.g. ``stream(seed, "batches", client, round)``."""
    return np.random.default_rng(_sequence(seed, purpose, keys))


@contextmanager
def torch_stream(seed: int, purpose: str, *keys: int) -> Iterator[None]:
    """Run a block with PyTorch's global generators on one named stream, and put them back afterwards."""
    number = int(_sequence(seed, purpose, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))
    with torch.random.fork_rng():
        torch.manual_seed(number)
        yield
