"""NVIDIA's Multi-Process Service (MPS): processes that share a GPU compute at the same time.

Without it the GPU works for one process at a time, in turns.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from cafedcl.core.environment import cores

CONTROL = "nvidia-cuda-mps-control"
"""The program that starts and controls the service."""
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""The environment variable by which processes find the service."""
LOGS = "CUDA_MPS_LOG_DIRECTORY"
MEMORY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
"""The command that prints the memory of every GPU in MiB. PyTorch could do so too, but would open
the GPU in a process that only starts runs.
"""
MOST_RUNS = 5
"""The most runs that share a GPU by default."""
MEMORY_OF_A_RUN = 16 * 1024
"""MiB of a GPU's memory for every run that shares it by default: enough for small and
medium-sized networks.
"""
CORES_OF_A_RUN = 2
"""Cores for every run that shares a GPU by default: one prepares steps, one loads and scores."""
ANSWER_SECONDS = 30.0
"""How long the service may take to answer."""


def is_available() -> bool:
    """Return whether the user runs the service, or has the program that starts it."""
    return PIPES in os.environ or shutil.which(CONTROL) is not None


class MultiProcessService:
    """The service for the processes of one study. Where it is unavailable, nothing changes."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where the service has its pipes; None while it does not run."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of processes that use the service."""
        if self.folder is None:
            return {}
        return {PIPES: str(self.folder), LOGS: str(self.folder)}

    def start(self) -> bool:
        """Start the service, unless the user runs one; return whether there is one now."""
        if PIPES in os.environ:
            return True
        if shutil.which(CONTROL) is None:
            return False
        self.folder = Path(tempfile.mkdtemp(prefix="cafedcl-mps-"))
        try:
            self._call("-d")
            # A server that cannot start would fail every run; so start one now and look for it.
            self._call(orders=f"start_server -uid {os.getuid()}\n")
            servers = self._call(orders="get_server_list\n").split()
        except (OSError, subprocess.SubprocessError):
            servers = []
        if not servers:
            self.stop()
        return bool(servers)

    def stop(self) -> None:
        """End the service, which no process uses any more."""
        if self.folder is None:
            return
        with suppress(OSError, subprocess.SubprocessError):
            self._call(orders="quit\n")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None

    def _call(self, *arguments: str, orders: str = "") -> str:
        """Call the control program, and return what it prints."""
        environment = {**os.environ, **self.variables}
        # The service must see all GPUs, so that it numbers them as runs do.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            [CONTROL, *arguments],
            input=orders,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=ANSWER_SECONDS,
            check=True,
            # Ctrl-C in the terminal is meant for the study, which ends the service itself.
            start_new_session=True,
        )
        return done.stdout


def runs_per_gpu() -> int:
    """Return how many runs share a GPU by default, if the service is available.

    The GPU with the least memory decides.
    """
    if not is_available():
        return 1
    try:
        told = subprocess.run(
            MEMORY, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
        memory = min(int(line) for line in told.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return 1
    return max(1, min(MOST_RUNS, memory // MEMORY_OF_A_RUN, cores() // CORES_OF_A_RUN))
