"""Clients in parallel on a CPU: worker processes that share the data, with results identical to
serial.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Job, Reply
from cafedcl.core.environment import cores, is_arm
from cafedcl.core.tensors import Tensors, nbytes, pack
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.cpu.groups import JobGroup, stacking_obstacle
from cafedcl.engine.cpu.messages import (
    DOWN,
    JOBS,
    READY,
    RESULTS,
    Channel,
    down_parts,
    group_parts,
    to_group_results,
)
from cafedcl.engine.cpu.shared_memory import SharedMemory
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.cpu.worker import GONE, Forked, serve
from cafedcl.task.cost import operations
from cafedcl.task.task import Task

PAYS_OFF = 8.0
PAYS_OFF_FORKED = 0.5
"""Seconds of serial work left above which starting processes is faster: anew takes two to three
seconds each.
"""
FASTEST = 2e11
"""Floating-point operations a second that no core exceeds."""
TRIES = 2
"""How often a job may take its worker down with it before it counts as failed."""
ROOM = 2**22
MODELS = 6
"""Bytes of shared memory besides the models, and how many models it holds for every client of a
group.
"""


class Worker:
    """One process and the line to it."""

    def __init__(
        self, channel: Channel, process: "Forked | subprocess.Popen[bytes]", *, ready: bool
    ) -> None:
        self.channel = channel
        self.process = process
        self.ready = ready
        self.group: JobGroup = ()
        self.round: Down | None = None

    def submit(self, group: JobGroup) -> None:
        """Send a group of jobs, and the round's Down if this worker does not have it yet."""
        self.group = group
        down = group[0].down
        if self.round is not down:
            self.channel.send(DOWN, down_parts(down))
            self.round = down
        self.channel.send(JOBS, group_parts(group))

    def stop(self) -> None:
        """Close the pipe, on which the process ends, and see to it that it does."""
        self.channel.pipe.close()
        try:
            self.process.wait(0 if self.group or not self.ready else 0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class CpuEngine:
    """Hands groups of jobs to worker processes, and does them itself until the first is ready.

    ``number`` is how many processes; 0 starts as many as there are cores once a job's number of
    operations, or its measured time, says that it pays. Every group gives the same bits wherever it
    runs, so none of this shows in the results.
    """

    def __init__(self, task: Task, config: Config, number: int, jobs: int) -> None:
        self.task = task
        self.config = config
        self.local = StackedClients(
            task, 1 if stacking_obstacle(task) else max(1, config.engine.stack)
        )
        self.number = number
        self.jobs_left = jobs
        self.fastest = 0.0
        self.crew: list[Worker] = []
        self.deaths: dict[tuple[int, int], int] = {}
        self.shared: IO[bytes] | None = None

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round wherever there is room."""
        waiting = deque(self.local.groups(jobs))
        try:
            while waiting or self._busy():
                self._hire(len(waiting))
                for worker in self.crew:
                    if waiting and worker.ready and not worker.group:
                        self._submit(worker, waiting.popleft())
                if waiting and not self._busy() and not (self.crew and self._deadly(waiting[0])):
                    yield from self._here(waiting.popleft())
                    self._listen(waiting, 0)
                else:
                    yield from self._listen(waiting, None)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """End the workers whose jobs nobody waits for any more; the next round starts new ones."""
        for worker in [worker for worker in self.crew if worker.group]:
            worker.stop()
            self.crew.remove(worker)

    def _deadly(self, group: JobGroup) -> bool:
        """Return whether a worker has died of a group's jobs, which are better not done in this
        process.
        """
        return any((job.client, job.down.round) in self.deaths for job in group)

    def _busy(self) -> bool:
        return any(worker.group for worker in self.crew)

    def _here(self, group: JobGroup) -> Iterator[Reply | Failure]:
        began = time.perf_counter()
        results = list(self.local.together(group))
        took = (time.perf_counter() - began) / len(group)
        self.fastest = min(self.fastest or took, took)
        self.jobs_left -= len(group)
        return iter(results)

    @cached_property
    def least(self) -> float:
        """The least seconds that a typical job takes."""
        return least_seconds(self.task)

    @property
    def forks(self) -> bool:
        """Whether workers go on from this process. They cannot where it has had threads at work in
        its kernels.

        On ARM oneDNN may have started threads of its own, whatever number it is asked for; after a
        fork it waits for them forever.
        """
        return (
            sys.platform == "linux"
            and self.task.threads == 1
            and not (self.task.onednn and is_arm())
        )

    def _hire(self, waiting: int) -> None:
        """Start the processes that are missing, if it pays; one that could not even start is not
        tried again.
        """
        missing = (self.number or cores()) - len(self.crew)
        if missing < 1 or waiting < (1 if self.forks else 2) or self.number == 1:
            return
        enough = PAYS_OFF_FORKED if self.forks else PAYS_OFF
        if self.number == 0 and (
            cores() < 2 or max(self.fastest, self.least) * self.jobs_left < enough
        ):
            return
        for _ in range(missing):
            self.crew.append(self._fork() if self.forks else self._start())

    def _fork(self) -> Worker:
        """Return a worker that goes on from this process, with its data and its engine."""
        (ours, theirs) = Pipe()
        memories = self._slabs()

        def work() -> None:
            for pipe in (ours, *(worker.channel.pipe for worker in self.crew)):
                pipe.close()
            serve(Channel(theirs, memories), self.local)

        process = Forked(work)
        theirs.close()
        return Worker(Channel(ours, memories), process, ready=True)

    def _slabs(self) -> dict[bytes, SharedMemory]:
        """Return memory to share with a worker, of which only what is used is taken; none if it
        cannot be had.
        """
        model = nbytes(self.task.initial) + 4 * (
            len(self.task.clients.data.test_y) + len(self.task.clients.data.train_y)
        )
        clients = {DOWN: 1, JOBS: self.local.size, RESULTS: self.local.size}
        try:
            return {
                kind: SharedMemory(ROOM + number * MODELS * model)
                for kind, number in clients.items()
            }
        except OSError:
            return {}

    def _start(self) -> Worker:
        """Return a worker in a new interpreter, which maps the data and builds the rest by itself."""
        self.shared = self.shared or share(self.task)
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cafedcl.engine.cpu.worker",
                str(theirs.fileno()),
                str(self.shared.fileno()),
            ],
            pass_fds=(theirs.fileno(), self.shared.fileno()),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            },
            start_new_session=True,
        )
        theirs.close()
        ours.send_bytes(pack({}, {"config": self.config.to_plain()}))
        return Worker(Channel(ours, {}), process, ready=False)

    def _submit(self, worker: Worker, group: JobGroup) -> None:
        try:
            worker.submit(group)
        except (BrokenPipeError, ConnectionResetError):
            """It died; listening finds that out and takes the jobs back."""

    def _listen(self, waiting: deque[JobGroup], timeout: float | None) -> Iterator[Reply | Failure]:
        """Return the results that have come in, waiting for the first if there is no timeout."""
        by_pipe = {
            worker.channel.pipe: worker for worker in self.crew if worker.group or not worker.ready
        }
        results: list[Reply | Failure] = []
        for pipe in wait(list(by_pipe), timeout) if by_pipe else ():
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                kind, parts = worker.channel.receive(copied=True)
            except GONE:
                results += self._bury(worker, waiting)
                continue
            if kind == READY:
                worker.ready = True
            else:
                self.jobs_left -= len(worker.group)
                worker.group = ()
                results += to_group_results(parts)
        return iter(results)

    def _bury(self, worker: Worker, waiting: deque[JobGroup]) -> list[Reply | Failure]:
        """Take leave of a dead worker and give its jobs another try, each alone, so that the killer
        is found.
        """
        code = worker.process.wait()
        worker.channel.pipe.close()
        self.crew.remove(worker)
        if not worker.group:
            self.number = max(len(self.crew), 1)
            return []
        self.crew.append(self._fork() if self.forks else self._start())
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
        for worker in self.crew:
            worker.stop()
        self.crew = []
        if self.shared is not None:
            self.shared.close()


def least_seconds(task: Task) -> float:
    """Return the least that a typical client's training takes: what is long on any core need not be
    tried out first.
    """
    images = task.schedule.typical * task.schedule.options.epochs
    return 3 * operations(task.network, task.clients.data.shape) * images / FASTEST


def share(task: Task) -> IO[bytes]:
    """Write the data once into an unnamed file, in memory where there is such a place, for workers
    to map.
    """
    memory = Path("/dev/shm")
    file = tempfile.TemporaryFile(dir=memory if memory.is_dir() else None)  # noqa: SIM115
    file.write(pack(task.clients.data.tensors(), {"names": list(task.clients.data.names)}))
    file.flush()
    return file
