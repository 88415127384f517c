"""One run on several GPUs: clients are assigned to them, and all replies go to one server."""

import queue
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from cafedcl.core.contract import Down, Failure, Job, Reply, Up
from cafedcl.core.flat import FlatModel
from cafedcl.core.tensors import Tensors, moved
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.cuda.engine import CudaEngine

Outcome = Reply | Failure | Exception | None
"""What a thread passes on: a result, the error that stopped it, or None when it is done."""


class SeveralGpus:
    """Runs the jobs of a round on several engines, each on a device of its own and in a thread.

    A client is always trained by the same engine, so that what it keeps stays on its device. The
    first engine's device is the server's; models come there to be averaged.
    """

    name: ClassVar[str] = "cuda"

    def __init__(self, engines: Sequence[CudaEngine]) -> None:
        self.engines = engines
        self.first = engines[0]

    def trial(self, down: Down) -> None:
        """Capture a first step on every device; raise whatever error prevents it."""
        for engine in self.engines:
            engine.trial(down)

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round; results come as they are done."""
        assigned = self._assigned(jobs)
        # All threads switch the same global settings on and off. They must be on before the first
        # thread starts, so that no thread switches them off while another is working.
        with self.first.arithmetic():
            results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
            stop = threading.Event()
            threads = [
                threading.Thread(target=work, args=(engine, part, results, stop))
                for engine, part in zip(self.engines, assigned, strict=True)
            ]
            for thread in threads:
                thread.start()
            try:
                busy = len(threads)
                while busy:
                    result = results.get()
                    if result is None:
                        busy -= 1
                    elif isinstance(result, Exception):
                        raise result
                    else:
                        yield self._at_server(result)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()

    def _assigned(self, jobs: Iterable[Job]) -> list[list[Job]]:
        """Return the jobs of every engine."""
        assigned: list[list[Job]] = [[] for _ in self.engines]
        for job in jobs:
            assigned[job.client % len(assigned)].append(job)
        return assigned

    def _at_server(self, result: Reply | Failure) -> Reply | Failure:
        """Return a result with all that the server reads moved to its device."""
        if isinstance(result, Failure):
            return result
        return replace(result, up=sent_to(result.up, self.first.task.device))

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model, on the server's device."""
        return self.first.predict(tensors)

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        return self.first.embed(tensors, rows)

    def close(self) -> None:
        """Free captures and memory on all devices."""
        for engine in self.engines:
            engine.close()


def work(
    engine: CudaEngine,
    jobs: Sequence[Job],
    results: "queue.SimpleQueue[Outcome]",
    stop: threading.Event,
) -> None:
    """Run an engine's jobs of a round, and pass their results on."""
    try:
        # Whether gradients are recorded is a setting of each thread.
        with torch.no_grad(), closing(engine.train(jobs)) as its:
            for result in its:
                results.put(result)
                if stop.is_set():
                    break
    except Exception as error:
        results.put(error)
    finally:
        results.put(None)


def sent_to(up: Up, device: torch.device) -> Up:
    """Return what a client sends, on another device; what is on the host stays there."""
    model = up.model
    if isinstance(model, FlatModel):
        model = FlatModel(model.vector.to(device), model.slices)
    else:
        model = moved(model, device)
    away = {name: value for name, value in up.tensors.items() if not value.is_cpu}
    return replace(up, model=model, tensors={**up.tensors, **moved(away, device)})
