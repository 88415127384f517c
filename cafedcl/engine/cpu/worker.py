"""A worker process: runs groups of client jobs until its pipe is closed."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from cafedcl.core.contract import Down
from cafedcl.core.interrupts import stop_signals_end_process
from cafedcl.core.tensors import map_file, under, unpack
from cafedcl.data.dataset import Dataset
from cafedcl.data.shards import Shards
from cafedcl.engine.cpu.messages import (
    DOWN,
    READY,
    RESULTS,
    Channel,
    group_result_message,
    to_down,
    to_group,
)
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.task.build import assemble
from cafedcl.task.resolve import resolve

GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""Errors of using a pipe whose other end is closed."""


def die_with_parent(pipe: Connection) -> None:
    """End this process as soon as the other end of its pipe is closed, even during a job.

    That happens when the parent closes it, and when the parent is killed.
    """

    def watch() -> None:
        poll = select.poll()
        # No event is requested, so only the closing of the other end is reported.
        poll.register(pipe.fileno(), 0)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def work_off(channel: Channel, engine: StackedClients) -> None:
    """Run groups of jobs as they come, until closing the channel raises an error of GONE."""
    die_with_parent(channel.pipe)
    down = Down(-1, {})
    while True:
        kind, message = channel.receive(copied=False)
        if kind == DOWN:
            down = to_down(message)
        else:
            results = list(engine.together(to_group(message, down)))
            channel.send(RESULTS, group_result_message(results))


class Forked:
    """A process forked from this one to do some work; it can be waited for like a subprocess."""

    def __init__(self, work: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # Python warns that threads do not survive a fork; the child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        self.returncode: int | None = None
        if self.pid == 0:
            _run(work)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code; a signal's number is negative."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if until is None else os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            else:
                time.sleep(0.002)
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(work: Callable[[], None]) -> None:
    """Do some work and end the process, whatever happens.

    It must never return: the child would continue with its parent's code.
    """
    code = 1
    try:
        # An interrupt in the terminal is meant for the parent, which ends its workers itself.
        os.setsid()
        stop_signals_end_process()
        # The garbage collector writes to every object it visits, which would copy the memory.
        gc.freeze()
        work()
        code = 0
    except GONE:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def start_worker(pipe: Connection, shared: int) -> None:
    """Build an engine and run jobs; ``shared`` is the file with the data, mapped, not copied."""
    tensors, header = map_file(f"/dev/fd/{shared}")
    data = Dataset.from_tensors(under("data/", tensors), header["plain"])
    shards = Shards.from_tensors(under("shards/", tensors), header["clients"])
    _, begin = unpack(pipe.recv_bytes())
    setup = assemble(resolve(begin["config"]), data, shards, torch.device("cpu"))
    pipe.send_bytes(READY)
    work_off(Channel(pipe, {}), StackedClients(setup.task, setup.config.engine.stack))


if __name__ == "__main__":
    try:
        start_worker(Connection(int(sys.argv[1])), int(sys.argv[2]))
    except GONE:
        sys.exit(0)
