"""How this process takes memory from the system and gives it back."""

import ctypes
import sys
from contextlib import suppress
from functools import cache

TRIM_THRESHOLD = -1
MMAP_MAX = -4
"""The numbers of these two settings of `mallopt`, from malloc.h of the GNU C library."""
KEPT_BYTES = 2**28
"""Freed memory that the process keeps at most at the end of its heap."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for the next ones.

    A training step frees its activations and allocates new ones of the same sizes in the next step.
    By default the GNU C library returns large blocks to the system in between. The system then has
    to find and clear every page again, which is a visible part of a step, above all on virtual
    machines. Other C libraries have no such setting, and are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Blocks of their own, outside of the heap, are returned as soon as they are freed.
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
