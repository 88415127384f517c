"""A client's visit on the GPU, in three stages: training, summary, and waiting for the reply.

A lane is a CUDA stream with its captures, and a slot is a copy of the network on a lane, on which
clients train in turn.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.contract import Failure, Job, Reply, Up
from cafedcl.core.errors import in_words
from cafedcl.core.tensors import (
    AUGMENT,
    MODEL,
    Tensors,
    nbytes,
    prefixed,
    under,
)
from cafedcl.device.lane import to_host
from cafedcl.engine.cuda.client_slot import LOSSES, NOTE, SENT, STEP, VALID, ClientSlot
from cafedcl.engine.schedule import make_schedule
from cafedcl.functional.metrics import KINDS, count_correct


class QueuedVisit:
    """Queues a visit on the lane of a slot. Call each stage once, in order.

    ``server_weights`` is the vector of the server's weights, and ``memory_bytes`` is how much of
    its memory the client may keep on the device. If a stage raises, the reply is a failure, and
    later stages do nothing.
    """

    def __init__(
        self, slot: ClientSlot, job: Job, server_weights: Tensor, memory_bytes: float
    ) -> None:
        self.slot = slot
        self.job = job
        self.server_weights = server_weights
        self.memory_bytes = memory_bytes
        self.failure: Failure | None = None

    def start_training(self) -> None:
        """Queue the client's training."""
        try:
            # An augmentation may train a generator, so this is not under `no_grad`.
            self.job = self.slot.task.tail.learn(self.job)
            with self.slot.lane.on(), torch.no_grad():
                self._train()
        except Exception as error:
            self.failure = Failure(self.job.client, in_words(error))

    def queue_summary(self) -> None:
        """Queue the summary, and the scoring of the client's own model if it is due."""
        if self.failure is not None:
            return
        try:
            with self.slot.lane.on(), torch.no_grad():
                self._summarize()
        except Exception as error:
            self.failure = Failure(self.job.client, in_words(error))

    def wait(self) -> Reply | Failure:
        """Wait for the device and return the reply."""
        if self.failure is not None:
            return self.failure
        self.done.wait()
        return self._reply()

    def _train(self) -> None:
        slot = self.slot
        task = slot.task
        client = self.job.client
        self.began = slot.lane.mark()
        width = slot.device_data.width(client)
        self.captures = slot.captures_for(self.job)
        self.captures.visit.client.counts.copy_(task.clients.client(client).counts)
        # Capturing moves the weights, so it comes before they are received.
        slot.prepare(self.captures, width)
        slot.receive(self.server_weights, self.job)
        self.synthetic = task.tail.synthetic_images(self.job, lambda: slot.features(client))
        slot.device_data.load_synthetic(self.synthetic, slot.synthetic)
        assert self.captures.constants is not None
        self.captures.constants.load(self._rows())
        self.schedule = make_schedule(
            task, task.tail.rows[client], client, self.job.down.round, width
        )
        slot.batch_tables(width).fill(self.schedule)
        self.captures.repeat(STEP, width, self.schedule.steps)

    def _rows(self) -> Tensor:
        """Return the rows of the client's images; synthetic ones come after the training set."""
        clients = self.slot.task.clients
        own = clients.shards.train[self.job.client]
        first = len(clients.data.train_y)
        made = torch.arange(first, first + len(self.synthetic), device=own.device)
        return torch.cat([own, made])

    def _summarize(self) -> None:
        slot = self.slot
        client = self.job.client
        self.result = slot.summarize(self.captures, self.job, self.synthetic)
        self.trained = slot.flat.clone()
        self.rest = slot.unshared(slot.changing)
        self.shared, own = slot.split_personal(self.trained, self.rest)
        self.predicted: Tensor | None = None
        if self.job.evaluate:
            rows = slot.device_data.test_rows(client)
            prior = slot.task.prior(client)
            self.predicted = slot.predict(self.captures, rows, self.result.kept, prior)
        memory = {**prefixed(MODEL, own), **self.result.kept, **self._augmentation_memory()}
        if nbytes(memory) > self.memory_bytes:
            memory = to_host(memory)
        self.memory = memory
        self.notes = to_host(self.synthetic.notes)
        self.done = slot.lane.mark()

    def _augmentation_memory(self) -> Tensors:
        if not self.slot.task.tail.augmented[self.job.client]:
            return {}
        return prefixed(AUGMENT, under(AUGMENT, self.job.memory))

    def _reply(self) -> Reply:
        slot = self.slot
        task = slot.task
        client = task.clients.client(self.job.client)
        arrays = self.result.packed.read(self.result.to_host)
        per_class = as_tensors(SENT, arrays)
        if self.result.captured and "classes" in per_class and not task.method.sends_absent:
            held = torch.isin(per_class["classes"], task.clients.holds[self.job.client])
            if not held.all():
                per_class = {name: value[held] for name, value in per_class.items()}
        up = Up(
            client=client.index,
            samples=client.samples,
            tensors={**self.result.sent, **per_class},
            model=self.shared,
            notes={**as_tensors(NOTE, arrays), **self.notes},
            losses=self.schedule.losses(self.captures.loss_names, arrays[LOSSES]),
            seconds=self.done.seconds_since(self.began),
        )
        correct: Tensors = {}
        if self.predicted is not None:
            by_kind = dict(zip(KINDS, self.predicted.T, strict=True))
            labels = task.clients.test_labels(client.index)
            correct = count_correct(by_kind, labels, task.method.classes)
        made_here = [self.trained, *self.rest.values(), *self.result.sent.values()]
        slot.lane.hand_over([*made_here, *self.memory.values()])
        # The device has not checked the numbers that an augmentation keeps.
        valid = bool(arrays[VALID]) and not task.tail.augmented[client.index]
        return Reply(up, self.memory, correct, valid_numbers=valid)


def as_tensors(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Tensors:
    """Return the arrays below ``prefix`` as tensors, without the prefix."""
    chosen = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return under(prefix, {name: torch.from_numpy(array) for name, array in chosen.items()})
