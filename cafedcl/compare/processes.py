"""The processes of runs on this machine, which are reused for one run after another.

So a study pays only once for importing PyTorch and for starting the GPU. A process executes one run
at a time, and ends with a run that fails or is stopped: the next run starts in a new process.
"""

import json
import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from cafedcl.compare.jobs import DeviceShare, Handle
from cafedcl.compare.mps import MultiProcessService
from cafedcl.core.imports import LOG_ENCODING, python_command

PROGRAM = python_command("cafedcl.cli.run_loop")
"""The command of a process that takes runs; `cafedcl.compare.run_loop` has the other end."""


class LocalLauncher:
    """Launches runs on this machine, in processes that are reused.

    Ctrl-C in the terminal does not reach them: the pool stops them itself, once.
    """

    def __init__(
        self, slots: Sequence[DeviceShare], service: MultiProcessService | None = None
    ) -> None:
        self.slots: Sequence[DeviceShare] = [
            replace(slot, number=number) for number, slot in enumerate(slots)
        ]
        self.service = service
        """What lets the processes share a GPU; it ends with the launcher."""
        self.idle: list[RunProcess] = []

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        """Start a run in the idle process of the share, or in a new process."""
        process = next((one for one in self.idle if one.slot == slot), None)
        if process is None:
            process = RunProcess(slot, log)
        else:
            self.idle.remove(process)
        process.begin(arguments, log)
        return LocalRun(process, self.idle)

    def close(self) -> None:
        """End all idle processes."""
        # All at the same time: each takes seconds to release a GPU.
        for process in self.idle:
            process.dismiss()
        while self.idle:
            self.idle.pop().end()
        if self.service is not None:
            self.service.stop()


class RunProcess:
    """A process that executes runs, one at a time."""

    def __init__(self, slot: DeviceShare, log: Path) -> None:
        self.slot = slot
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Errors before the first run begins go to the log of that run.
                stderr=errors,
                env={**os.environ, **LOG_ENCODING, **slot.variables},
                # A session of its own: Ctrl-C in the terminal reaches only the parent, which asks
                # the run once to save its state.
                start_new_session=True,
            )

    @property
    def orders(self) -> IO[bytes]:
        """The pipe on which the process receives its runs."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def answers(self) -> IO[bytes]:
        """The pipe on which the process reports the exit status of each run."""
        assert self.process.stdout is not None
        return self.process.stdout

    def begin(self, arguments: list[str], log: Path) -> None:
        """Tell the process to execute a run."""
        order = {"arguments": arguments, "log": str(log.resolve())}
        # If the process has died, `status` notices.
        with suppress(BrokenPipeError):
            self.orders.write(json.dumps(order).encode() + b"\n")
            self.orders.flush()

    def status(self) -> int | None:
        """Return the exit status of the run, or None while it runs."""
        ready, _, _ = select.select([self.answers], [], [], 0)
        if not ready:
            return None
        answer = self.answers.readline()
        if answer:
            return int(answer)
        # The pipe is closed: the process has died in the middle of the run.
        return self.process.wait()

    def dismiss(self) -> None:
        """Tell the idle process that no more runs follow."""
        # It may have died by itself.
        with suppress(BrokenPipeError):
            self.orders.close()

    def end(self) -> None:
        """Dismiss the process, and wait for its end."""
        self.dismiss()
        self.process.wait()
        self.answers.close()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.end()


class LocalRun:
    """A run in a process on this machine."""

    def __init__(self, process: RunProcess, idle: list[RunProcess]) -> None:
        self.process = process
        self.idle = idle
        """Where the process waits for its next run."""
        self.stopped = False
        self.status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        if self.status is None:
            self.status = self.process.status()
            if self.status == 0 and not self.stopped:
                self.idle.append(self.process)
            elif self.status is not None:
                # Whatever has gone wrong must not affect the next run; and a process that was asked
                # to stop may receive the signal only now.
                self.process.end()
        return self.status

    def stop(self) -> None:
        """Ask it to save its state and exit."""
        self.stopped = True
        self.process.process.terminate()

    def kill(self) -> None:
        """Kill it at once."""
        if self.status is None:
            self.process.kill()
            self.status = self.process.process.returncode
