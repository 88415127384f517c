"""A run of a deployment, executed by the operator's own process.

A run at Flower's SuperLink is a task for the process that holds the SuperLink's secret, which only
the operator can read. `conduct` submits a run, takes its task, and runs the federation in this
process. The SuperLink itself executes nothing (``--isolation process``), so an app that someone
else submits waits until an operator's next run refuses it.
"""

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import httpx
from flwr.supercore.constant import TaskType
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.superlink.grid import HttpGrid

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower.runtime import Runtime, RuntimeTask
from cafedcl.deploy.flower.server_app import GridHost
from cafedcl.deploy.folders import remember_run
from cafedcl.deploy.keys import refuse_expired
from cafedcl.deploy.submit import FollowedRun
from cafedcl.deploy.superlink import Address
from cafedcl.federation import runs
from cafedcl.federation.callback import Callback
from cafedcl.federation.journal import Journal
from cafedcl.federation.result import Run
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder

LOCK = "submit.lock"
"""The server's file that is locked while a run is submitted and its task is taken."""
TASK_WAIT = 30.0
"""The most seconds to wait for the task of a submitted run."""
LINK_WAIT = 60.0
"""The most seconds that a run waits for a SuperLink that does not answer."""
PAUSE = 0.2
"""Seconds between two requests for the task."""


class TaskGrid(HttpGrid):
    """Flower's grid of one task. Unlike Flower's own, it gives up when the SuperLink is gone."""

    def __init__(self, address: Address, task: RuntimeTask) -> None:
        ca = address.ca.read_bytes() if address.ca else None
        super().__init__(str(address), address.ca is None, ca, token=task.token)
        self.set_run(task.run)
        # Flower's own retries have no end, and a refusal interrupts the process.
        self._retry_invoker = RetryInvoker(
            lambda: exponential(max_delay=5), httpx.TransportError, None, LINK_WAIT
        )


def conduct(
    folder: Path,
    address: Address,
    secret: bytes,
    submit: Callable[[], int],
    config: Config | None,
    path: Path,
    callbacks: Sequence[Callback],
) -> Run:
    """Run a config at the sites of a server's folder; without a config, resume the run at ``path``.

    ``submit`` submits a run to the SuperLink and returns its number.
    """
    journal = Journal(path, resumed=config is None)
    early = FollowedRun(config or RunFolder(path).config(), RunFolder(path))

    def say(message: str) -> None:
        journal.say(message)
        for callback in callbacks:
            # Callbacks are notified of sites that connect before the federation exists.
            callback.noticed(cast(Federation, early), message)

    try:
        with _task_grid(folder, address, secret, submit, path, say) as grid:
            host = GridHost(grid, say, str(folder))
            everyone = [*callbacks, journal]
            if config is None:
                finished = runs.resume(path, everyone, say, host)
            else:
                finished = runs.start(config, path, everyone, ["cafedcl", "deploy", "run"], host)
    except BaseException as error:
        journal.end(str(error) or type(error).__name__)
        raise
    journal.end(None)
    return finished


@contextmanager
def _task_grid(
    folder: Path,
    address: Address,
    secret: bytes,
    submit: Callable[[], int],
    path: Path,
    say: Callable[[str], None],
) -> Iterator[TaskGrid]:
    """Submit a run, take its task, and yield its grid; at the end, tell Flower how it ended."""
    runtime = Runtime(str(address), secret, address.ca.read_bytes() if address.ca else None)
    try:
        with _take_task(runtime, folder, submit, path, say) as task:
            grid = TaskGrid(address, task)
            try:
                yield grid
            except BaseException as error:
                # The SuperLink may be what failed.
                with suppress(httpx.HTTPError):
                    # Ctrl-C and signals are not errors.
                    stopped = not isinstance(error, Exception)
                    task.finish(str(error) or type(error).__name__, stopped=stopped)
                raise
            finally:
                grid.close()
            task.finish()
    except httpx.HTTPError as error:
        # If a certificate expires during a run, the SuperLink seems to refuse requests.
        refuse_expired(folder)
        raise CafedclError(
            f"the SuperLink at {address} stopped the run or does not answer ({error}); if the "
            "server is down, start it again, then continue with `cafedcl resume RUN`"
        ) from None
    finally:
        runtime.close()


def _take_task(
    runtime: Runtime,
    folder: Path,
    submit: Callable[[], int],
    path: Path,
    say: Callable[[str], None],
) -> RuntimeTask:
    """Submit a run and return its task; the tasks of runs that others submitted are refused."""
    # Two operators' runs that are submitted at the same time must not take each other's task.
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = submit()
        remember_run(folder, number, path)
        until = time.monotonic() + TASK_WAIT
        while time.monotonic() < until:
            task = runtime.acquire((TaskType.SERVER_APP,))
            if task is None:
                time.sleep(PAUSE)
                continue
            if task.run.run_id == number:
                return task
            with task:
                task.finish("refused: it was not submitted with `cafedcl deploy run`")
            say(f"refused: {task.app} was not submitted with `cafedcl deploy run`")
    raise CafedclError(f"Flower gave no task for run {number} within {TASK_WAIT:g} s")
