"""The CUDA engine: steps are captured once and replayed for every client, on several streams."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Job, Reply
from cafedcl.core.sizes import power_of_two
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, moved, nbytes, under
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.cuda.broadcast import Broadcast
from cafedcl.engine.cuda.client_slot import ClientSlot
from cafedcl.engine.cuda.device_data import DeviceData
from cafedcl.engine.cuda.queued_visit import QueuedVisit
from cafedcl.engine.cuda.step import Program
from cafedcl.engine.schedule import choose_widths
from cafedcl.models.base import FIXED_STATISTICS
from cafedcl.task.task import Task

WIDTHS = 8
COMPILED_WIDTHS = 3
"""The most widths that batches are padded to; compiling takes seconds for each."""
COMPILED_WIDTH_STEP = 8
"""Compiled widths are multiples of this, so that runs of other seeds and splits share them."""
NORMALISED_SHARE = 0.1
"""Images are stored normalised if they take no more than this share of the device's memory."""
MEMORY_SHARE = 0.3
"""The share of the device's memory for what clients keep; the rest goes to the host."""
LANES = 12
"""The most visits at a time: more would only make all of them end later."""
LARGE_MODEL = 5_000_000
LARGE_MODEL_LANES = 4
"""A network with this many weights fills the device with fewer visits."""
SCORING_LANES = 4
"""Lanes that score the server's model."""
LEARNERS = 8
"""Clients that train for their tail augmentation, such as a generator, at the same time."""
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class CudaEngine:
    """Queues whole visits on several lanes and yields replies as they are done.

    Nothing in a visit waits for the device. It computes what the reference engine computes, in the
    precision asked for. On a device without streams the same code runs uncaptured.
    """

    name: ClassVar[str] = "cuda"

    def __init__(
        self, task: Task, options: EngineOptions, participants: int, *, compiled: bool
    ) -> None:
        self.task = task
        self.precision = options.precision
        with self.arithmetic():
            self.device_data = make_device_data(task, DTYPES[options.precision], compiled=compiled)
        self.number = choose_lanes(task, participants, options.streams)
        self.slots: list[ClientSlot] = []
        self.server_weights: Tensor | None = None
        self.last_sent: dict[str, tuple[Tensor, int]] = {}
        """The tensors that all lanes currently read, with their versions."""
        self.memory_budget = MEMORY_SHARE * total_memory(task.device)
        self.memory_of: dict[int, int] = {}
        """Bytes that each client keeps on the device."""
        self.memory_used = 0
        self.learners: ThreadPoolExecutor | None = None
        if task.device.type == "cuda" and task.tail.synthetic_counts.any():
            self.learners = ThreadPoolExecutor(LEARNERS)

    def trial(self, down: Down) -> None:
        """Capture a first step and summary; raise whatever error prevents it."""
        on_cuda = self.task.device.type == "cuda"
        generator = torch.cuda.get_rng_state(self.task.device) if on_cuda else None
        with self.arithmetic(), torch.no_grad():
            slot = self._slot(0)
            job = Job(0, down, {}, False)
            server_weights = self._place(down)
            # The images may still be being copied into the memory that the lane reads. Worse, the
            # lane may write to memory that the caller's stream has freed but still uses.
            slot.lane.follow()
            with slot.lane.on():
                slot.receive(server_weights, job)
                captures = slot.captures_for(job)
                slot.prepare(captures, self.device_data.width(0))
                slot.replay_summary(captures, 0)
        if generator is None:
            return
        # Later work may use memory that the lane has written to.
        torch.cuda.synchronize(self.task.device)
        if not torch.equal(generator, torch.cuda.get_rng_state(self.task.device)):
            raise ValueError("the model or the method draws random numbers in a step")

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs of one round.

        The device should always have work. So the first wave starts training on every lane before
        anything else is queued; from then on every lane has one visit that runs and one queued
        behind it, and the host waits for a reply only when no other visit can be queued.
        """
        waiting = deque(self._learned(jobs))
        if not waiting:
            return
        server_weights = self._place(waiting[0].down)
        queued: deque[QueuedVisit] = deque()
        started = 0
        # A summary that is not captured may wait for its lane. Then visits start in waves on all
        # lanes, so that the lanes wait together.
        later_wave = 1 if self.task.method.replayed else self.number
        try:
            while waiting or queued:
                wave_size = later_wave if started else self.number
                if waiting and len(queued) + wave_size <= 2 * self.number:
                    wave = [waiting.popleft() for _ in range(min(len(waiting), wave_size))]
                    queued.extend(self._start(wave, server_weights, started))
                    started += len(wave)
                    continue
                result = queued.popleft().wait()
                if isinstance(result, Reply):
                    self._account(result)
                yield result
        finally:
            if self.task.device.type == "cuda":
                torch.cuda.synchronize(self.task.device)

    def _start(self, wave: list[Job], server_weights: Tensor, turn: int) -> list[QueuedVisit]:
        """Queue visits on the lanes whose turn it is: first all trainings, then all summaries."""
        visits = []
        with self.arithmetic():
            for index, job in enumerate(wave, turn):
                slot = self._slot(index % self.number)
                if index < self.number:
                    # The server's weights were put in place on the caller's stream.
                    slot.lane.follow()
                visits.append(QueuedVisit(slot, job, server_weights, self._free_memory(job.client)))
            for visit in visits:
                visit.start_training()
            for visit in visits:
                visit.queue_summary()
        return visits

    def _learned(self, jobs: Iterable[Job]) -> Iterable[Job]:
        """Let clients learn what their augmentation needs, several at a time."""
        if self.learners is None:
            return jobs
        return list(self.learners.map(self._learn, jobs))

    def _learn(self, job: Job) -> Job:
        # A client whose learning fails here fails again in its visit, which reports the failure.
        with suppress(Exception):
            return self.task.tail.learn(job)
        return job

    def _account(self, reply: Reply) -> None:
        """Track how many bytes clients keep on the device."""
        device = self.task.device.type
        here = {name: v for name, v in reply.memory.items() if v.device.type == device}
        client = reply.up.client
        self.memory_used += nbytes(here) - self.memory_of.get(client, 0)
        self.memory_of[client] = nbytes(here)

    def _free_memory(self, client: int) -> float:
        """Return how many bytes a client may keep on the device."""
        return self.memory_budget - self.memory_used + self.memory_of.get(client, 0)

    def _slot(self, index: int) -> ClientSlot:
        while len(self.slots) <= index:
            self.slots.append(ClientSlot(self.device_data))
        return self.slots[index]

    @torch.no_grad()
    def _place(self, down: Down) -> Tensor:
        """Copy what the server sends to where all lanes read it; return the vector of its weights.

        No lane is working at this moment. The model that was scored at the end of a round is the
        one that the next round begins with, so it is often already in place: the same tensors,
        unchanged since.
        """
        sent = {name: (value, value._version) for name, value in down.tensors.items()}
        if self.server_weights is None or not are_same_tensors(self.last_sent, sent):
            # If a copy fails, what is in place is unknown.
            self.last_sent = {}
            self.device_data.broadcast.place(down.tensors)
            model = moved(under(MODEL, down.tensors), self.task.device)
            weights = {**self.task.initial, **model}
            flat = self._slot(0).network_weights
            self.server_weights = flat.flatten(weights, self.server_weights)
            self.last_sent = sent
        self.device_data.broadcast.set_round(down.round)
        return self.server_weights

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model; a few lanes share them."""
        with self._server_model(tensors) as (server_weights, job):
            waits = [
                self._slot(index).score(job, server_weights, rows)
                for index, rows in enumerate(self._shares)
            ]
        return lambda: torch.cat([wait() for wait in waits])

    @cached_property
    def _shares(self) -> tuple[Tensor, ...]:
        """The test images that each lane scores: whole batches, except for the last."""
        rows = self.device_data.test_rows(None)
        size = self.task.eval_batch
        batches = max(1, math.ceil(len(rows) / size))
        lanes = min(self.number, SCORING_LANES)
        return tuple(rows.split(size * math.ceil(batches / lanes)))

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        slot = self._slot(0)
        with self._server_model(tensors) as (server_weights, job):
            slot.lane.follow()
            with slot.lane.on():
                slot.receive(server_weights, job)
                return slot.embed(rows.to(self.task.device)).cpu()

    @contextmanager
    def _server_model(self, tensors: Tensors) -> Iterator[tuple[Tensor, Job]]:
        """Put the server's model in place for a visit without training."""
        sent = {name: v for name, v in tensors.items() if name.startswith((MODEL, ANCHORS))}
        down = Down(0, sent)
        server_weights = self._place(down)
        with self.arithmetic(), torch.no_grad():
            yield server_weights, Job(0, down, {}, False)

    def close(self) -> None:
        """Free threads, captures and memory."""
        if self.learners is not None:
            self.learners.shutdown()
        if self.task.device.type == "cuda":
            # After an error lanes may still be working, and their memory must not be reused yet.
            torch.cuda.synchronize(self.task.device)
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


def choose_lanes(task: Task, participants: int, streams: int) -> int:
    """Return the number of lanes for which the last wave of clients nearly fills them."""
    weights = sum(value.numel() for value in task.initial.values())
    most = streams or (LARGE_MODEL_LANES if weights >= LARGE_MODEL else LANES)
    waves = math.ceil(participants / most)
    return math.ceil(participants / waves)


def make_device_data(task: Task, dtype: torch.dtype, *, compiled: bool) -> DeviceData:
    """Store the images as the engine reads them, and choose the widths of batches."""
    numbers = task.tail.sizes.tolist()
    sizes = [task.schedule.batch_size(number) for number in numbers]
    if compiled and not task.schedule.options.batch_size:
        step = COMPILED_WIDTH_STEP
        sizes = [step * math.ceil(size / step) for size in sizes]
    shards = task.clients.shards
    images = sorted((shards.train.sizes + shards.validation.sizes).tolist())
    median = images[len(images) // 2]
    data = task.clients.inputs
    test_x = data.train_x if shards.test else data.test_x
    all_test_rows = torch.arange(len(test_x), device=test_x.device)
    if shards.test:
        all_test_rows = shards.test.indices
    device_data = DeviceData(
        task=task,
        program=Program(
            task.network,
            task.method,
            task.schedule.options,
            task.transforms,
            dtype,
            compiled=compiled,
        ),
        channels_last=compiled,
        train_x=data.train_x,
        test_x=test_x,
        widths=choose_widths(sizes, COMPILED_WIDTHS if compiled else WIDTHS),
        # Powers of two, so that other splits and seeds have the same compiled shapes.
        steps=power_of_two(max(map(task.schedule.steps, numbers))),
        embed_batch=min(task.eval_batch, power_of_two(median)),
        broadcast=Broadcast(task.device, task.rounds),
        all_test_rows=all_test_rows,
    )
    stored = device_data.train_x.numel() * dtype.itemsize
    normalised = stored <= NORMALISED_SHARE * total_memory(task.device)
    train_x = device_data.as_stored(device_data.train_x, normalised=normalised)
    test_x = train_x
    if not shards.test:
        test_x = device_data.as_stored(device_data.test_x, normalised=normalised)
    return replace(device_data, train_x=train_x, test_x=test_x)


def are_same_tensors(
    one: dict[str, tuple[Tensor, int]], other: dict[str, tuple[Tensor, int]]
) -> bool:
    """Return whether two dicts hold the very same tensors in the same versions."""
    return one.keys() == other.keys() and all(
        value is other[name][0] and version == other[name][1]
        for name, (value, version) in one.items()
    )


def total_memory(device: torch.device) -> float:
    """Return the bytes of memory of a device; infinity on a host."""
    if device.type != "cuda":
        return math.inf
    return float(torch.cuda.get_device_properties(device).total_memory)


def capture_obstacle(network: nn.Module) -> str | None:
    """Return why a network cannot be trained on padded batches, or None."""
    for name, module in network.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        # With fixed statistics, an image's result does not depend on the others.
        if not getattr(module, FIXED_STATISTICS, False):
            return f"'{name}' is a batch normalisation, which would see the padding"
    return None
