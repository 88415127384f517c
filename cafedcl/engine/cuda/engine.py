"""The fast engine: steps captured once as CUDA graphs and replayed for every client, on several
streams at once.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Failure, Job, Reply
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, moved, nbytes, under
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.cuda.broadcast import Broadcast
from cafedcl.engine.cuda.client_slot import ClientSlot
from cafedcl.engine.cuda.device_data import DeviceData
from cafedcl.engine.cuda.step import Program
from cafedcl.engine.schedule import choose_widths
from cafedcl.task.task import Task

WIDTHS = 8
COMPILED_WIDTHS = 3
"""Into how many widths batches are padded at most; compiling takes seconds for each."""
READY_SHARE = 0.1
"""Images are kept normalised on the device if they take no more of its memory than this."""
MEMORY_SHARE = 0.3
"""Clients' memories stay on the device as long as they take no more of it than this; then they go
to the host.
"""
LANES = 12
LARGE_LANES = 4
LARGE = 5_000_000
"""Visits at a time, at most; fewer fill the device if the network has so many weights. More only
end all at once.
"""
SCORERS = 4
"""Lanes that score the server's model."""
LEARNERS = 8
"""Clients that learn at the same time what their tail augmentation needs."""
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class CudaEngine:
    """Queues whole visits on several lanes and hands out replies as they are done.

    Nothing in a visit waits for the device. It computes what the eager engine computes, in the
    precision asked for.
    """

    def __init__(
        self, task: Task, options: EngineOptions, participants: int, *, compiled: bool
    ) -> None:
        self.task = task
        self.precision = options.precision
        with self.arithmetic():
            self.device_data = make_device_data(task, DTYPES[options.precision], compiled=compiled)
        large = sum(value.numel() for value in task.initial.values()) >= LARGE
        most = options.streams or (LARGE_LANES if large else LANES)
        self.number = math.ceil(participants / math.ceil(participants / most))
        self.slots: list[ClientSlot] = []
        self.sent: Tensor | None = None
        self.laid: dict[str, tuple[Tensor, int]] = {}
        """What was laid last where lanes take it from, and its versions."""
        self.budget = MEMORY_SHARE * total_memory(task.device)
        self.ledger: dict[int, int] = {}
        self.used = 0
        several = task.device.type == "cuda" and task.tail.wanted.any()
        self.learners = ThreadPoolExecutor(LEARNERS) if several else None

    def trial(self, down: Down) -> None:
        """Capture a first step and summary; raises whatever stands in the way of it."""
        generator = (
            torch.cuda.get_rng_state(self.task.device) if self.task.device.type == "cuda" else None
        )
        with self.arithmetic(), torch.no_grad():
            slot = self._slot(0)
            job = Job(0, down, {}, False)
            with slot.lane.on():
                slot.receive(self._sent(down), job)
                plan = slot.plan(job)
                slot.prepare(plan, self.device_data.width(0))
                slot.replayed(plan, 0)
        if generator is not None and not torch.equal(
            generator, torch.cuda.get_rng_state(self.task.device)
        ):
            raise ValueError("the model or the method draws random numbers in a step")

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round.

        Training begins on all lanes before anything else is queued, then on every lane one visit is
        queued while the one before it runs, and replies are waited for as late as possible: the
        device always has work. A summary that is not replayed may wait for its lane, so those of
        all lanes wait together.
        """
        waiting = deque(self._learned(jobs))
        turn = 0
        later = 1 if self.task.method.replayed else self.number
        queued: deque[Iterator[Reply | Failure | None]] = deque()
        sent = self._sent(waiting[0].down) if waiting else torch.zeros(0)
        try:
            while waiting or queued:
                while (
                    waiting
                    and len(queued) + (size := later if turn else self.number) <= 2 * self.number
                ):
                    wave = [waiting.popleft() for _ in range(min(len(waiting), size))]
                    visits = [self._visit(job, sent, at) for at, job in enumerate(wave, turn)]
                    with self.arithmetic():
                        for visit in visits * 2:
                            next(visit)
                    queued.extend(visits)
                    turn += len(wave)
                result = next(queued.popleft())
                assert result is not None
                if isinstance(result, Reply):
                    self._note(result)
                yield result
        finally:
            if self.task.device.type == "cuda":
                torch.cuda.synchronize(self.task.device)

    def _visit(self, job: Job, sent: Tensor, turn: int) -> Iterator[Reply | Failure | None]:
        """Go through the stages of a visit on the lane whose turn it is; one that cannot be queued
        is a failure.
        """
        slot = self._slot(turn % self.number)
        if turn < self.number:
            slot.lane.follow()
        stages = slot.visit(job, sent, self._room(job.client))
        try:
            yield next(stages)
            yield next(stages)
        except Exception as error:
            failure = Failure(job.client, f"{type(error).__name__}: {error}")
            while True:
                yield failure
        yield from stages

    def _learned(self, jobs: Iterable[Job]) -> Iterable[Job]:
        """Let clients learn what their augmentation needs, several at a time; one that fails does
        so in its turn.
        """
        if self.learners is None:
            return jobs
        return list(self.learners.map(self._learn, jobs))

    def _learn(self, job: Job) -> Job:
        with suppress(Exception):
            return self.task.tail.learned(job)
        return job

    def _note(self, reply: Reply) -> None:
        """Keep account of what clients keep on the device."""
        here = {
            name: v for name, v in reply.memory.items() if v.device.type == self.task.device.type
        }
        size = nbytes(here)
        client = reply.up.client
        self.used += size - self.ledger.get(client, 0)
        self.ledger[client] = size

    def _room(self, client: int) -> float:
        """Return how many bytes a client may keep on the device."""
        return self.budget - self.used + self.ledger.get(client, 0)

    def _slot(self, index: int) -> ClientSlot:
        while len(self.slots) <= index:
            self.slots.append(ClientSlot(self.device_data))
        return self.slots[index]

    @torch.no_grad()
    def _sent(self, down: Down) -> Tensor:
        """Return the server's weights, laid with all else it tells where lanes take it from; none
        is at work now.

        What was scored at the end of a round is what the next one begins with, and lies there
        already.
        """
        news = {name: (value, value._version) for name, value in down.tensors.items()}
        if self.sent is None or not same(self.laid, news):
            self.laid = {}
            self.device_data.broadcast.lay(down.tensors)
            weights = {**self.task.initial, **moved(under(MODEL, down.tensors), self.task.device)}
            self.sent = self._slot(0).layout.lay(weights, self.sent)
            self.laid = news
        self.device_data.broadcast.date(down.round)
        return self.sent

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model; a few lanes share them."""
        with self._server(tensors) as (sent, job):
            waits = [
                self._slot(index).score(job, sent, part) for index, part in enumerate(self._shares)
            ]
        return lambda: torch.cat([wait() for wait in waits])

    @cached_property
    def _shares(self) -> tuple[Tensor, ...]:
        """The test images that each lane scores the server's model on: whole chunks, but for the
        last.
        """
        rows = self.device_data.test_rows(None)
        size = self.task.eval_batch
        chunks = max(1, -(-len(rows) // size))
        return tuple(rows.split(size * -(-chunks // min(self.number, SCORERS))))

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        slot = self._slot(0)
        with self._server(tensors) as (sent, job):
            slot.lane.follow()
            with slot.lane.on():
                slot.receive(sent, job)
                return slot.embed(rows.to(self.task.device)).cpu()

    @contextmanager
    def _server(self, tensors: Tensors) -> Iterator[tuple[Tensor, Job]]:
        """Lay the server's model where lanes take it from, for a visit without training."""
        down = Down(
            0, {name: v for name, v in tensors.items() if name.startswith((MODEL, ANCHORS))}
        )
        sent = self._sent(down)
        with self.arithmetic(), torch.no_grad():
            yield sent, Job(0, down, {}, False)

    def close(self) -> None:
        """Let go of threads, captures and memory."""
        if self.learners:
            self.learners.shutdown()
        for slot in self.slots:
            slot.close()
        self.slots.clear()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Run a block in the engine's precision, with the convolutions that measure fastest."""
        cudnn: Any = torch.backends.cudnn
        matmul: Any = torch.backends.cuda.matmul
        before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
        cudnn.allow_tf32 = matmul.allow_tf32 = self.precision == "tf32"
        cudnn.benchmark = True
        try:
            yield
        finally:
            cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def make_device_data(task: Task, dtype: torch.dtype, *, compiled: bool) -> DeviceData:
    """Lay out the images and choose the widths of a run."""
    sizes = [task.schedule.batch_size(len(rows)) for rows in task.tail.rows]
    typical = sorted(
        len(a) + len(b)
        for a, b in zip(task.clients.shards.train, task.clients.shards.validation, strict=True)
    )
    look = min(task.eval_batch, 2 ** math.ceil(math.log2(typical[len(typical) // 2])))
    device_data = DeviceData(
        task=task,
        program=Program(task.network, task.method, task.schedule.options, dtype, compiled=compiled),
        channels_last=compiled,
        train_x=task.clients.data.train_x,
        test_x=task.clients.data.train_x if task.clients.shards.test else task.clients.data.test_x,
        widths=choose_widths(sizes, COMPILED_WIDTHS if compiled else WIDTHS),
        steps=max(task.schedule.steps(len(rows)) for rows in task.tail.rows),
        look=look,
        broadcast=Broadcast(task.device, task.rounds),
    )
    ready = device_data.train_x.numel() * dtype.itemsize <= READY_SHARE * total_memory(task.device)
    train_x = device_data.lay_out(device_data.train_x, ready=ready)
    test_x = (
        train_x
        if task.clients.shards.test
        else device_data.lay_out(device_data.test_x, ready=ready)
    )
    return replace(device_data, train_x=train_x, test_x=test_x)


def same(one: dict[str, tuple[Tensor, int]], other: dict[str, tuple[Tensor, int]]) -> bool:
    """Return whether two dicts hold the very same tensors in the same versions."""
    return one.keys() == other.keys() and all(
        value is other[name][0] and version == other[name][1]
        for name, (value, version) in one.items()
    )


def total_memory(device: torch.device) -> float:
    """Return the bytes of memory of a device; without bound on a host."""
    return (
        float(torch.cuda.get_device_properties(device).total_memory)
        if device.type == "cuda"
        else math.inf
    )


def capture_obstacle(network: nn.Module) -> str | None:
    """Return why a network cannot be trained on padded batches, or None."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"'{name}' is a batch normalisation, which would see the padding"
    return None
