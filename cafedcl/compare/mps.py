"""NVIDIA's Multi-Process Service (MPS): processes that share a GPU compute at the same time.

Without it the GPU works for one process at a time, in turns.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
"""The program that starts the service, and that it is controlled with."""
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""The environment variable by which processes find the service."""
LOGS = "CUDA_MPS_LOG_DIRECTORY"
ANSWER_SECONDS = 30.0
"""How long the service may take to answer."""


class MultiProcessService:
    """The service for the processes of one study. Where it cannot be had, nothing changes."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where the service has its pipes; None while it does not run."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of processes that use the service."""
        if self.folder is None:
            return {}
        return {PIPES: str(self.folder), LOGS: str(self.folder)}

    def start(self) -> None:
        """Start the service, unless the user runs one or this machine has none."""
        if PIPES in os.environ or shutil.which(CONTROL) is None:
            return
        self.folder = Path(tempfile.mkdtemp(prefix="cafedcl-mps-"))
        try:
            self._call("-d")
            # A server that cannot start would fail every run; so start one now, and ask for it.
            self._call(orders=f"start_server -uid {os.getuid()}\n")
            servers = self._call(orders="get_server_list\n").split()
        except (OSError, subprocess.SubprocessError):
            servers = []
        if not servers:
            self.stop()

    def stop(self) -> None:
        """End the service; no process uses it any more."""
        if self.folder is None:
            return
        with suppress(OSError, subprocess.SubprocessError):
            self._call(orders="quit\n")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None

    def _call(self, *arguments: str, orders: str = "") -> str:
        """Call the control program, and return what it prints."""
        environment = {**os.environ, **self.variables}
        # The service sees all GPUs, so that a run's number of a GPU means the same to both.
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
            # Ctrl-C in the terminal is for the study, which ends the service itself.
            start_new_session=True,
        )
        return done.stdout
