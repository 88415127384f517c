"""The CPU engine: worker processes that share the data, with results identical to serial ones."""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, ClassVar

from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Job, Reply
from cafedcl.core.environment import cores, is_arm
from cafedcl.core.imports import python_command, python_path
from cafedcl.core.tensors import Tensors, nbytes, pack, prefixed
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.cpu.groups import JobGroup, stacking_obstacle
from cafedcl.engine.cpu.messages import (
    DOWN,
    JOBS,
    READY,
    RESULTS,
    Channel,
    down_message,
    group_message,
    to_group_results,
)
from cafedcl.engine.cpu.shared_memory import SharedMemory
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.cpu.worker import GONE, Forked, work_off
from cafedcl.task.cost import operations
from cafedcl.task.task import Task

ENOUGH_WORK = 8.0
ENOUGH_WORK_FORKED = 0.5
"""Seconds of remaining serial work from which starting processes is faster.

A new interpreter takes two to three seconds to start; a forked process starts at once.
"""
PEAK_OPERATIONS = 2e11
"""Floating-point operations a second that no core exceeds."""
TRIES = 2
"""How many workers a job may crash before it counts as failed."""
SHARED_BYTES = 2**22
SHARED_MODELS = 6
"""Shared memory has room for this many bytes, and this many models for every client of a group."""


class Worker:
    """One process and the channel to it."""

    def __init__(
        self, channel: Channel, process: "Forked | subprocess.Popen[bytes]", *, ready: bool
    ) -> None:
        self.channel = channel
        self.process = process
        self.ready = ready
        self.group: JobGroup = ()
        self.round: Down | None = None

    def submit(self, group: JobGroup) -> None:
        """Send a group of jobs, with the round's Down if this worker does not have it yet."""
        self.group = group
        down = group[0].down
        if self.round is not down:
            self.channel.send(DOWN, down_message(down))
            self.round = down
        self.channel.send(JOBS, group_message(group))

    def stop(self) -> None:
        """Close the pipe, which ends the process, and make sure that it ends."""
        self.channel.pipe.close()
        is_idle = self.ready and not self.group
        try:
            self.process.wait(0.2 if is_idle else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class CpuEngine:
    """Hands groups of jobs to worker processes, and works itself until the first is ready.

    ``number`` is the number of processes. With 0, one per core is started once the cost of a job,
    estimated or measured, shows that it pays. A group gives the same bits wherever it runs, so none
    of this affects the results.
    """

    name: ClassVar[str] = "cpu"

    def __init__(self, task: Task, config: Config, number: int, jobs: int) -> None:
        self.task = task
        self.config = config
        stack = 1 if stacking_obstacle(task) else max(1, config.engine.stack)
        self.local = StackedClients(task, stack)
        self.number = number
        self.jobs_left = jobs
        self.shortest_job = 0.0
        """The fewest seconds that a job has taken here; 0 before the first."""
        self.workers: list[Worker] = []
        self.deaths: dict[tuple[int, int], int] = {}
        """How many workers a job, named by client and round, has crashed."""
        self.shared: IO[bytes] | None = None

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round wherever there is room."""
        waiting = deque(self.local.groups(jobs))
        try:
            while waiting or self._busy():
                self._hire(len(waiting))
                for worker in self.workers:
                    if waiting and worker.ready and not worker.group:
                        self._submit(worker, waiting.popleft())
                if waiting and not self._busy() and not self._is_deadly(waiting[0]):
                    yield from self._work_here(waiting.popleft())
                    # No worker has a job: this only checks which ones have become ready.
                    self._listen(waiting, 0)
                else:
                    yield from self._listen(waiting, None)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """End the workers whose jobs are abandoned; the next round starts new ones."""
        for worker in [worker for worker in self.workers if worker.group]:
            worker.stop()
            self.workers.remove(worker)

    def _is_deadly(self, group: JobGroup) -> bool:
        """Return whether a worker died running a group's jobs, so that another should try them."""
        died = any((job.client, job.down.round) in self.deaths for job in group)
        return died and bool(self.workers)

    def _busy(self) -> bool:
        return any(worker.group for worker in self.workers)

    def _work_here(self, group: JobGroup) -> list[Reply | Failure]:
        """Run a group in this process, and measure how long it takes."""
        began = time.perf_counter()
        results = list(self.local.together(group))
        took = (time.perf_counter() - began) / len(group)
        self.shortest_job = min(self.shortest_job or took, took)
        self.jobs_left -= len(group)
        return results

    @cached_property
    def estimated_job(self) -> float:
        """The fewest seconds that a typical job takes, from its number of operations."""
        return least_seconds(self.task)

    @property
    def forks(self) -> bool:
        """Whether workers are forked from this process.

        They cannot be forked once this process has used threads in its kernels. On ARM, oneDNN may
        have started threads, whatever number is set; after a fork it waits for them forever.
        """
        has_threads = self.task.threads > 1 or (self.task.onednn and is_arm())
        return sys.platform == "linux" and not has_threads

    def _hire(self, waiting: int) -> None:
        """Start the processes that are missing, if it pays."""
        missing = (self.number or cores()) - len(self.workers)
        fewest = 1 if self.forks else 2
        if self.number == 1 or missing < 1 or waiting < fewest:
            return
        if self.number == 0:
            seconds_left = max(self.shortest_job, self.estimated_job) * self.jobs_left
            enough = ENOUGH_WORK_FORKED if self.forks else ENOUGH_WORK
            if cores() < 2 or seconds_left < enough:
                return
        for _ in range(missing):
            self.workers.append(self._new_worker())

    def _new_worker(self) -> Worker:
        return self._fork() if self.forks else self._start()

    def _fork(self) -> Worker:
        """Return a worker that is forked from this process, with its data and its engine."""
        ours, theirs = Pipe()
        memories = self._shared_memories()

        def work() -> None:
            # If the child kept a pipe open, others could not see that its end was closed.
            for pipe in (ours, *(worker.channel.pipe for worker in self.workers)):
                pipe.close()
            work_off(Channel(theirs, memories), self.local)

        process = Forked(work)
        theirs.close()
        return Worker(Channel(ours, memories), process, ready=True)

    def _shared_memories(self) -> dict[bytes, SharedMemory]:
        """Return memory to share with a worker; none if it cannot be allocated.

        The system provides only the pages that are used.
        """
        data = self.task.clients.data
        model = nbytes(self.task.initial) + 4 * (len(data.test_y) + len(data.train_y))
        clients = {DOWN: 1, JOBS: self.local.size, RESULTS: self.local.size}
        try:
            return {
                kind: SharedMemory(SHARED_BYTES + number * SHARED_MODELS * model)
                for kind, number in clients.items()
            }
        except OSError:
            return {}

    def _start(self) -> Worker:
        """Return a worker in a new interpreter, which maps the data and builds the rest itself."""
        self.shared = self.shared or share_data(self.task)
        ours, theirs = Pipe()
        descriptors = (theirs.fileno(), self.shared.fileno())
        command = python_command("cafedcl.engine.cpu.worker")
        process = subprocess.Popen(
            [*command, *(str(descriptor) for descriptor in descriptors)],
            pass_fds=descriptors,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
        theirs.close()
        ours.send_bytes(pack({}, {"config": self.config.to_plain()}))
        return Worker(Channel(ours, {}), process, ready=False)

    def _submit(self, worker: Worker, group: JobGroup) -> None:
        # If the worker has died, `_listen` notices and takes the jobs back.
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.submit(group)

    def _listen(self, waiting: deque[JobGroup], timeout: float | None) -> list[Reply | Failure]:
        """Return the results that have come in; without a timeout, wait for the first."""
        expected = [worker for worker in self.workers if worker.group or not worker.ready]
        by_pipe = {worker.channel.pipe: worker for worker in expected}
        if not by_pipe:
            return []
        results: list[Reply | Failure] = []
        for pipe in wait(list(by_pipe), timeout):
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                kind, message = worker.channel.receive(copied=True)
            except GONE:
                results += self._replace_dead(worker, waiting)
                continue
            if kind == READY:
                worker.ready = True
            else:
                self.jobs_left -= len(worker.group)
                worker.group = ()
                results += to_group_results(message)
        return results

    def _replace_dead(self, worker: Worker, waiting: deque[JobGroup]) -> list[Reply | Failure]:
        """Replace a dead worker; try its jobs again, each alone, to find the deadly one."""
        code = worker.process.wait()
        worker.channel.pipe.close()
        self.workers.remove(worker)
        if not worker.group:
            # It could not even start, so no other worker is tried.
            self.number = max(len(self.workers), 1)
            return []
        self.workers.append(self._new_worker())
        failures: list[Reply | Failure] = []
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        for job in worker.group:
            key = (job.client, job.down.round)
            self.deaths[key] = self.deaths.get(key, 0) + 1
            if self.deaths[key] < TRIES:
                waiting.append((job,))
            else:
                failures.append(Failure(job.client, f"its worker process died twice ({how})"))
        return failures

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model."""
        return self.local.predict(tensors)

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        return self.local.embed(tensors, rows)

    def close(self) -> None:
        """End the worker processes."""
        for worker in self.workers:
            worker.stop()
        self.workers = []
        if self.shared is not None:
            self.shared.close()


def least_seconds(task: Task) -> float:
    """Return the fewest seconds that a typical client's training takes on any core.

    If that is already long, no job has to be timed here first.
    """
    images = task.schedule.typical * task.schedule.options.epochs
    # A backward pass takes about twice the operations of a forward pass.
    forward = operations(task.network.encoder, task.clients.inputs.shape)
    return 3 * forward * images / PEAK_OPERATIONS


def share_data(task: Task) -> IO[bytes]:
    """Write data and shards into an unnamed file, in memory where possible, for workers to map.

    The shards are included: a worker must not split the images itself, because lying clients'
    labels may already be wrong.
    """
    memory = Path("/dev/shm")
    file = tempfile.TemporaryFile(dir=memory if memory.is_dir() else None)  # noqa: SIM115
    data = task.clients.inputs
    shards = task.clients.shards
    tensors = {**prefixed("data/", data.tensors()), **prefixed("shards/", shards.tensors())}
    file.write(pack(tensors, {"plain": data.plain(), "clients": shards.names}))
    file.flush()
    return file
