"""Clients in parallel on a CPU: worker processes that share the data, with results identical to serial."""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from torch import Tensor

from cafedcl.config import Config
from cafedcl.contract import Down, Failure, Job, Reply
from cafedcl.engine.base import Bench, Results
from cafedcl.engine.eager import Eager
from cafedcl.engine.wire import pack_down, pack_job, unpack_result
from cafedcl.engine.worker import DOWN, JOB, READY
from cafedcl.pack import Tensors, pack

PAYS_OFF = 8.0
"""Seconds of serial work left above which starting processes (two to three seconds each) is faster."""
TRIES = 2
"""How often a job may take its worker down with it before it counts as failed."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, config: Config, shared: IO[bytes]) -> None:
        self.pipe, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cafedcl.engine.worker", str(theirs.fileno()), str(shared.fileno())],
            pass_fds=(theirs.fileno(), shared.fileno()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            start_new_session=True,
        )
        theirs.close()
        self.pipe.send_bytes(pack({}, {"config": config.to_plain()}))
        self.ready = False
        self.job: Job | None = None
        self.round: Down | None = None

    def submit(self, job: Job) -> None:
        """Send a job, and the round's Down if this worker does not have it yet."""
        self.job = job
        if self.round is not job.down:
            self.pipe.send_bytes(DOWN + pack_down(job.down))
            self.round = job.down
        self.pipe.send_bytes(JOB + pack_job(job))

    def stop(self) -> None:
        """Close the pipe, on which the process ends, and see to it that it does."""
        self.pipe.close()
        try:
            self.process.wait(0.2 if self.job is None and self.ready else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Workers:
    """Hands jobs to worker processes, and does them itself until the first is ready.

    ``number`` is how many processes; 0 starts as many as there are cores once the measured time of a job says that
    it pays. Every job gives the same bits wherever it runs, so none of this shows in the results.
    """

    def __init__(self, bench: Bench, config: Config, number: int, jobs: int) -> None:
        self.bench, self.config = bench, config
        self.local = Eager(bench)
        self.number = number
        self.jobs_left = jobs
        self.fastest = 0.0
        self.crew: list[Worker] = []
        self.deaths: dict[tuple[int, int], int] = {}
        self.shared: IO[bytes] | None = None

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round wherever there is room."""
        waiting = deque(jobs)
        try:
            while waiting or self._busy():
                self._hire(len(waiting))
                for worker in self.crew:
                    if waiting and worker.ready and worker.job is None:
                        self._submit(worker, waiting.popleft())
                if waiting and not self._busy():
                    yield self._here(waiting.popleft())
                    self._listen(waiting, 0)
                else:
                    yield from self._listen(waiting, None)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """End the workers whose jobs nobody waits for any more; the next round starts new ones."""
        for worker in [worker for worker in self.crew if worker.job]:
            worker.stop()
            self.crew.remove(worker)

    def _busy(self) -> bool:
        return any(worker.job for worker in self.crew)

    def _here(self, job: Job) -> Reply | Failure:
        began = time.perf_counter()
        result = self.local.attempt(job)
        took = time.perf_counter() - began
        self.fastest = min(self.fastest or took, took)
        self.jobs_left -= 1
        return result

    def _hire(self, waiting: int) -> None:
        """Start the processes that are missing, if it pays; one that could not even start is not tried again."""
        missing = (self.number or cores()) - len(self.crew)
        if missing < 1 or waiting < 2 or self.number == 1:
            return
        if self.number == 0 and (cores() < 2 or self.fastest * self.jobs_left < PAYS_OFF):
            return
        self.shared = self.shared or share(self.bench)
        self.crew += [Worker(self.config, self.shared) for _ in range(missing)]

    def _submit(self, worker: Worker, job: Job) -> None:
        try:
            worker.submit(job)
        except (BrokenPipeError, ConnectionResetError):
            """It died; listening finds that out and takes the job back."""

    def _listen(self, waiting: deque[Job], timeout: float | None) -> Iterator[Reply | Failure]:
        """Return the results that have come in, waiting for the first if there is no timeout."""
        by_pipe = {worker.pipe: worker for worker in self.crew if worker.job or not worker.ready}
        results: list[Reply | Failure] = []
        for pipe in wait(list(by_pipe), timeout) if by_pipe else ():
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                frame = pipe.recv_bytes()
            except (EOFError, ConnectionResetError):
                results += self._bury(worker, waiting)
                continue
            if frame == READY:
                worker.ready = True
            else:
                worker.job = None
                self.jobs_left -= 1
                results.append(unpack_result(frame))
        return iter(results)

    def _bury(self, worker: Worker, waiting: deque[Job]) -> list[Reply | Failure]:
        """Replace a dead worker and give its job another try, once."""
        assert self.shared is not None
        code = worker.process.wait()
        worker.pipe.close()
        self.crew.remove(worker)
        if worker.job is None:
            self.number = max(len(self.crew), 1)
            return []
        self.crew.append(Worker(self.config, self.shared))
        key = (worker.job.client, worker.job.down.round)
        self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths[key] < TRIES:
            waiting.append(worker.job)
            return []
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return [Failure(worker.job.client, f"its worker process died twice ({how})")]

    def predict(self, tensors: Tensors) -> Tensor:
        """Return the predictions of the server's model on the test images."""
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


def share(bench: Bench) -> IO[bytes]:
    """Write the data once into an unnamed file, in memory where there is such a place, for workers to map."""
    memory = Path("/dev/shm")
    file = tempfile.TemporaryFile(dir=memory if memory.is_dir() else None)  # noqa: SIM115
    file.write(pack(bench.data.tensors(), {"names": list(bench.data.names)}))
    file.flush()
    return file


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
