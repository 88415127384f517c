"""All randomness comes from one seed: a named stream of numbers per purpose and per client.

A stream is addressed by (seed, purpose, keys…), never by how many numbers were drawn before it. So
the order of execution, the engine, a resume, or a client that drops out changes no other draw.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

Labels = npt.NDArray[np.int64]


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    """Return the seeds of a stream: those of ``seed`` with the purpose and the keys as spawn key.

    For 32-bit numbers the words are built here, exactly as NumPy does it, but faster.
    """
    spawn = (crc32(purpose.encode()), *keys)
    if max(seed, *spawn) >> 32:
        return np.random.SeedSequence(seed, spawn_key=spawn)
    return np.random.SeedSequence(np.array((seed, 0, 0, 0, *spawn), np.uint32))


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. ``stream(seed, "batches", client, round)``."""
    return np.random.default_rng(_sequence(seed, purpose, keys))


def draw_by_class(labels: Labels, keep: Labels, rng: np.random.Generator) -> Labels:
    """Draw ``keep`` images of every class, or all if it has fewer; return sorted indices."""
    members = (
        rng.permutation(np.flatnonzero(labels == label))[:number]
        for label, number in enumerate(keep)
    )
    return np.sort(np.concatenate(list(members)))


@contextmanager
def torch_stream(seed: int, purpose: str, *keys: int) -> Iterator[None]:
    """Run a block with PyTorch's global generators on one named stream, and restore them after.

    The generators are those of the CPU and of CUDA devices in use.
    """
    # Not torch.manual_seed: it also records a stack trace for every kind of device that is absent,
    # which takes longer than a small client's whole visit.
    number = int(_sequence(seed, purpose, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))
    cuda = torch.cuda.is_initialized()
    before = torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if cuda else []
    torch.default_generator.manual_seed(number)
    if cuda:
        torch.cuda.manual_seed_all(number)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if cuda:
            torch.cuda.set_rng_state_all(devices)
