"""Benchmarks this machine: time per client step, overhead per round, share of peak throughput."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from cafedcl.config.sections import Config
from cafedcl.core.contract import Failure, Job, Visit
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.tensors import Tensors
from cafedcl.data.dataset import Dataset
from cafedcl.engine.base import Engine
from cafedcl.engine.choose import choose_engine
from cafedcl.engine.cpu.workers import CpuEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods.base import Method
from cafedcl.models.base import Network
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import resolve
from cafedcl.task.task import Task

CLASS_COUNT = 10
TEST_IMAGES = 10_000


@dataclass(frozen=True)
class Workload:
    """A standard workload: a model, a number of clients, and random images for each client."""

    model: str
    shape: tuple[int, int, int]
    clients: int
    images: int
    batch: int
    epochs: int
    title: str


RGB = (3, 32, 32)
WORKLOADS = {
    "resnet-250": Workload(
        "resnet18", RGB, 20, 2500, 250, 5, "ResNet-18-GN, batch 250, 20 clients"
    ),
    "resnet-50": Workload("resnet18", RGB, 20, 500, 50, 5, "ResNet-18-GN, batch 50, 20 clients"),
    "cnn-50": Workload("cnn4", RGB, 20, 250, 50, 5, "4-layer CNN, batch 50, 20 clients"),
    "cnn-10": Workload("cnn4", RGB, 100, 50, 10, 5, "4-layer CNN, batch 10, 100 clients"),
    "digits": Workload(
        "cnn8", (1, 8, 8), 20, 80, 8, 5, "small CNN on 8×8 images, batch 8, 20 clients"
    ),
}


@dataclass(frozen=True)
class Measurement:
    """The measurements of one task, method and engine; times are medians over rounds."""

    task: str
    method: str
    engine: str
    step_ms: float
    """Milliseconds per optimizer step of a client, training only: batch, loss, gradient, update.

    On a CPU it is the time of one process, however many there are.
    """
    samples_per_s: float
    round_s: float
    """Seconds per round: training, prototypes, confidence, aggregation, and scoring the server's
    model.

    The bias loop is included only if `evaluate.loop` asks for it.
    """
    phases: dict[str, float]
    """Seconds of a round by phase: training, aggregation and scoring."""
    own_s: float
    """Extra seconds to score every client's own model on the complete test set."""
    overhead: float
    """Time of a round divided by the time of its training; on a CPU, in one process."""
    ceiling: float
    """Share of peak throughput: FLOP/s of training / FLOP/s of a large matrix product."""
    memory_mib: float
    """Peak memory, in rounds without scoring of own models."""
    start_s: float
    """Seconds from the start to the end of the first round, with captures and compilation."""


def find_workload(name: str) -> Workload:
    """Return a task by name."""
    if name not in WORKLOADS:
        raise CafedclError(
            f"--tasks {name}: there is no such task; {nearest(name, list(WORKLOADS))}"
        )
    return WORKLOADS[name]


def random_images(workload: Workload, test: int) -> Dataset:
    """Return random images for a workload."""
    made = torch.Generator().manual_seed(0)
    sizes = (workload.clients * workload.images, test)
    x = [
        torch.randint(0, 256, (n, *workload.shape), dtype=torch.uint8, generator=made)
        for n in sizes
    ]
    y = [torch.randint(0, CLASS_COUNT, (n,), generator=made) for n in sizes]
    return Dataset.of(x[0], y[0], x[1], y[1], tuple(str(c) for c in range(CLASS_COUNT)))


def make_config(
    workload: Workload, method: str, rounds: int, settings: dict[str, dict[str, Any]]
) -> Config:
    """Return the config of a workload."""
    tables: dict[str, dict[str, Any]] = {
        "method": {"name": method},
        "data": {"name": "random"},
        "split": {"kind": "iid", "validation": 0.1 if workload.images < 100 else 0.02},
        "model": {"name": workload.model},
        "train": {"batch_size": workload.batch, "epochs": workload.epochs},
        "federation": {"clients": workload.clients, "rounds": 1000 * rounds},
        "evaluate": {"own_every": 1000 * rounds, "loop": 0},
    }
    for section, table in settings.items():
        tables[section] = {**tables.get(section, {}), **table}
    return resolve(tables)


class TrainingOnly:
    """A method that trains but sends and stores nothing, to time training only."""

    replayed = True

    def __init__(self, method: Method) -> None:
        self.method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def summarize(self, _model: Network, _visit: Visit) -> tuple[Tensors, Tensors]:
        """Return nothing."""
        return {}, {}

    def remember(self, _model: Network, _visit: Visit) -> Tensors:
        """Return nothing."""
        return {}


def measure(
    name: str, method: str, settings: dict[str, dict[str, Any]], rounds: int, ceiling: float
) -> Measurement:
    """Measure one task with one method on the engine that the settings ask for.

    Rounds are timed before and after the training-only runs, so that a machine that slows down
    meanwhile affects both alike.
    """
    workload = find_workload(name)
    data = random_images(workload, TEST_IMAGES)
    began = time.perf_counter()
    setup = prepare(make_config(workload, method, rounds, settings), data)
    device = setup.task.device
    reset_peak(device)
    with Federation(setup) as federation:
        federation.step()
        synchronize(device)
        start = time.perf_counter() - began
        federation.step()
        sizes = setup.task.clients.shards.train.sizes.tolist()
        steps = sum(map(setup.task.schedule.steps, sizes))
        down = federation.down()
        memories = federation.memories
        jobs = [
            Job(client, down, memories.get(client, {}), False)
            for client in range(len(setup.task.clients.shards))
        ]
        scored = [replace(job, evaluate=True) for job in jobs]
        engine_name = federation.engine.name
        before = seconds_of(federation.step, -(-rounds // 2), device)
        memory = peak_memory(device)
        with closing(training_alone(setup)) as bare:
            drain(bare, jobs)
            training = median_of(lambda: drain(bare, jobs), rounds, device)
        whole = statistics.median([*before, *seconds_of(federation.step, rounds // 2, device)])
        timed = [record.seconds for record in federation.history[-rounds:]]
        visits = median_of(lambda: drain(federation.engine, jobs), 1, device)
        if device.type == "cuda":
            # The first scored visit captures CUDA graphs, which must not be timed.
            drain(federation.engine, scored)
        own = median_of(lambda: drain(federation.engine, scored), 1, device)
        serial = visits
        if isinstance(federation.engine, CpuEngine) and federation.engine.workers:
            # Training was timed in one process, so the overhead is measured in one process too.
            local = federation.engine.local
            serial = median_of(lambda: drain(local, jobs), 1, device)
    images = sum(sizes) * workload.epochs
    return Measurement(
        task=name,
        method=method,
        engine=f"{engine_name} {setup.config.engine.precision}",
        step_ms=1000 * training / steps,
        samples_per_s=images / training,
        round_s=whole,
        phases={
            phase: statistics.median(seconds[phase] for seconds in timed) for phase in timed[0]
        },
        own_s=max(own - visits, 0.0),
        overhead=(serial + whole - visits) / training,
        ceiling=images / training * step_flops(setup.task) / ceiling,
        memory_mib=memory / 2**20,
        start_s=start,
    )


def training_alone(setup: Setup) -> Engine:
    """Return an engine that only trains; on a CPU it uses one process."""
    config = replace(setup.config, engine=replace(setup.config.engine, workers=1))
    bare: Any = TrainingOnly(setup.task.method)
    return choose_engine(
        replace(setup, config=config, task=replace(setup.task, method=bare)), lambda _message: None
    )


def median_of(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the median time of a function, in seconds."""
    return statistics.median(seconds_of(work, times, device))


def seconds_of(work: Callable[[], object], times: int, device: torch.device) -> list[float]:
    """Return the time of each call of a function, in seconds."""
    took = []
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        took.append(time.perf_counter() - began)
    return took


def drain(engine: Engine, jobs: Iterable[Job]) -> None:
    """Run jobs and discard their results."""
    for result in engine.train(list(jobs)):
        if isinstance(result, Failure):
            raise CafedclError(f"client {result.client} failed: {result.reason}")


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory statistics."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of the device, or of this process on a CPU, in bytes."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    # ru_maxrss is in bytes on macOS, and in kilobytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def step_flops(task: Task) -> float:
    """Return the FLOPs of training on one image: the forward and backward pass of the network."""
    device = task.device
    shape = task.clients.inputs.shape
    counter = FlopCounterMode(display=False)
    with counter:
        task.network.features(torch.zeros(1, *shape, device=device)).sum().backward()
    task.network.zero_grad(set_to_none=False)
    return float(counter.get_total_flops())


def matrix_ceiling(device: torch.device, precision: str) -> float:
    """Return the FLOP/s of a large matrix product in a precision."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = precision == "tf32"
    try:
        a = torch.randn(size, size, device=device).to(dtype)
        b = torch.randn(size, size, device=device).to(dtype)
        for _ in range(3):  # warm-up
            a @ b
        seconds = median_of(lambda: [a @ b for _ in range(10)], 3, device) / 10
    finally:
        matmul.allow_tf32 = before
    return 2 * size**3 / seconds


def tiny_setup(settings: dict[str, dict[str, Any]]) -> Setup:
    """Return a tiny setup, which has the device and the precision that the settings give."""
    workload = replace(WORKLOADS["digits"], clients=2, images=20)
    return prepare(make_config(workload, "fedavg", 1, settings), random_images(workload, 10))
