"""Freed memory is kept: a step that allocates what the last one freed asks the system for none."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
from cafedcl.core.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    # Larger than what the C library keeps by default.
    return [b"1" * 2**26 for _ in range(2)]

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can do it")
def test_freed_memory_is_used_again() -> None:
    # A step writes 128 MiB. Some systems get several pages with one fault, but not 64.
    assert page_faults("by default") > 5 * 2**27 / os.sysconf("SC_PAGE_SIZE") / 64
    assert page_faults("kept") < 100
