import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from benching import SMALL
from torch import nn

from cafedcl.core.contract import Failure, Job
from cafedcl.core.errors import CafedclError
from cafedcl.engine.base import Engine
from cafedcl.engine.cpu.workers import CpuEngine
from cafedcl.federation.rounds import Federation
from cafedcl.models import Network
from cafedcl.speed import measure as bench_module
from cafedcl.speed.measure import (
    WORKLOADS,
    Measurement,
    TrainingOnly,
    Workload,
    drain,
    find_workload,
    make_config,
    matrix_ceiling,
    measure,
    median_of,
    random_images,
    step_flops,
    tiny_setup,
)
from cafedcl.task.build import prepare
from cafedcl.task.task import Task

CPU = {"engine": {"device": "cpu", "workers": 1}}


# tasks and their images


@pytest.mark.parametrize(
    ("asked", "near"), [("digit", "digits"), ("cnn-5", "cnn-50"), ("resnet-251", "resnet-250")]
)
def test_an_unknown_task_suggests_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(
        CafedclError, match=rf"--tasks {asked}: there is no such task; did you mean '{near}'\?"
    ):
        find_workload(asked)


def test_a_task_like_no_other_is_answered_with_all_there_are() -> None:
    with pytest.raises(CafedclError) as told:
        find_workload("zzz")
    assert all(name in str(told.value) for name in WORKLOADS)
    assert find_workload("digits") is WORKLOADS["digits"]


def test_random_images_are_always_the_same_and_draw_from_no_shared_generator() -> None:
    before = torch.get_rng_state()
    one, other = (random_images(SMALL, 30) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (one.train_x.shape, one.test_x.shape) == ((75, 1, 8, 8), (30, 1, 8, 8))
    assert (one.train_x.dtype, one.classes) == (torch.uint8, 10)
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(one, part), getattr(other, part))
    assert one.train_x.float().std() > 60, "over all 256 values"
    assert set(one.train_y.tolist()) == set(range(10))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_tasks_config_is_what_it_says(name: str) -> None:
    workload = WORKLOADS[name]
    config = make_config(workload, "fedprox", 3, {"train": {"lr": 0.5}, "method": {"mu": 0.2}})
    assert (config.method.name, config.method.options.mu, config.model.name) == (
        "fedprox",
        0.2,
        workload.model,
    )
    assert (config.train.batch_size, config.train.epochs, config.train.lr) == (
        workload.batch,
        workload.epochs,
        0.5,
    )
    assert config.federation.clients == workload.clients
    schedule = replace(tiny_setup(CPU).task.schedule, options=config.train)
    assert schedule.steps(workload.images) == workload.epochs * math.ceil(
        workload.images / workload.batch
    )


@pytest.mark.parametrize(
    ("images", "batch", "epochs", "steps"),
    [(16, 8, 2, 4), (17, 8, 2, 6), (1, 8, 5, 5), (250, 50, 5, 25)],
)
def test_the_steps_of_a_task_by_hand(images: int, batch: int, epochs: int, steps: int) -> None:
    workload = Workload("mlp", (1, 8, 8), 3, 20, batch, epochs, "")
    assert (
        prepare(
            make_config(workload, "fedavg", 1, CPU), random_images(workload, 10)
        ).task.schedule.steps(images)
        == steps
    )


def test_settled_tells_device_and_precision() -> None:
    setup = tiny_setup(CPU)
    assert (setup.task.device.type, setup.config.engine.precision) == ("cpu", "fp32")


# measuring


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("method", ["fedavg", "cafedcl", "central"])
def test_numbers_are_positive_and_fit_together(method: str) -> None:
    found = measure("digits", method, CPU, 2, 1e9)
    assert (found.task, found.method) == ("digits", method)
    assert found.engine.endswith(" fp32")
    numbers = {
        field.name: getattr(found, field.name)
        for field in fields(Measurement)
        if field.type in (float, "float")
    }
    assert len(numbers) == 8
    assert all(math.isfinite(value) and value >= 0 for value in numbers.values()), numbers
    assert all(value > 0 for name, value in numbers.items() if name != "own_s"), numbers

    setup = prepare(make_config(SMALL, method, 2, CPU), random_images(SMALL, 20))
    sizes = [len(part) for part in setup.task.clients.shards.train]
    assert sum(sizes) <= 75
    steps = sum(2 * math.ceil(size / 8) for size in sizes)
    assert [setup.task.schedule.steps(size) for size in sizes] == [
        2 * math.ceil(n / 8) for n in sizes
    ]
    training = 2 * sum(sizes) / found.samples_per_s
    assert found.step_ms == pytest.approx(1000 * training / steps)
    assert found.overhead == pytest.approx(found.round_s / training)
    assert found.ceiling == pytest.approx(found.samples_per_s * step_flops(setup.task) / 1e9)
    assert found.start_s > found.round_s / 10


def test_training_alone_says_and_keeps_nothing_and_is_otherwise_the_method(
    tiny: Callable[..., Federation],
) -> None:
    federation = tiny("moon")
    only = TrainingOnly(federation.method)
    assert only.summarize(federation.task.network, None) == ({}, {})
    assert only.remember(federation.task.network, None) == {}
    assert (only.name, only.dim, only.personal) == (
        "moon",
        federation.method.dim,
        federation.method.personal,
    )
    assert only.loss == federation.method.loss


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_training_alone_is_what_worker_processes_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What training is timed with says nothing per class; the rounds' engine does, in workers or
    without them.
    """
    said: dict[Engine, set[str]] = {}

    def spying(engine: Engine, jobs: Iterable[Job]) -> None:
        until, jobs = time.monotonic() + 600, list(jobs)
        results = list(engine.train(jobs))
        while not all(worker.ready for worker in getattr(engine, "workers", ())):
            assert time.monotonic() < until, "the workers never became ready"
            results = list(engine.train(jobs))
        results = list(engine.train(jobs))
        said[engine] = {name for reply in results for name in reply.up.tensors}

    monkeypatch.setattr(bench_module, "drain", spying)
    measure("digits", "cafedcl", {"engine": {"device": "cpu", "workers": 2}}, 1, 1e9)
    alone, first, last = said
    assert first.local is last
    assert "prototypes" in said[first] & said[last]
    assert not any(name.startswith("prototypes") for name in said[alone])


def test_the_median_is_over_as_many_times_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, durations = [0.0], iter([5.0, 1.0, 2.0, 9.0])
    monkeypatch.setattr(bench_module.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += next(durations)

    assert median_of(work, 4, torch.device("cpu")) == statistics.median([5, 1, 2, 9]) == 3.5


@pytest.mark.usefixtures("small")
def test_rounds_are_timed_before_and_after_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen, hours = [0.0], list[str](), iter([0, 0, 7, 1, 2, 9, 8])
    monkeypatch.setattr(bench_module.time, "perf_counter", lambda: now[0])
    step, close = Federation.step, CpuEngine.close

    def timed(federation: Federation) -> Any:
        seen.append("round")
        record = step(federation)
        record.seconds.clear()
        record.seconds.update({"train": float(len(seen)), "evaluate": 0.0})
        now[0] += next(hours)
        return record

    monkeypatch.setattr(Federation, "step", timed)

    def visits(_engine: Engine, _jobs: Iterable[Job]) -> None:
        seen.append("visits")
        now[0] += 1

    monkeypatch.setattr(bench_module, "drain", visits)
    monkeypatch.setattr(CpuEngine, "close", lambda self: (seen.append("closed"), close(self))[1])
    found = measure("digits", "fedavg", CPU, 5, 1e9)
    shown = "".join(event[0] for event in seen)
    assert shown.startswith("rr" + "rrr" + "v" * 6 + "c" + "rr" + "v"), shown
    assert found.round_s == statistics.median([7, 1, 2, 9, 8])
    places = [at + 1 for at, event in enumerate(seen) if event == "round"][-5:]
    assert found.phases == {"train": float(statistics.median(places)), "evaluate": 0.0}


def test_a_client_that_fails_ends_the_measurement_with_its_reason() -> None:
    class Broken:
        def train(self, jobs: Iterable[Job]) -> Any:
            yield Failure(3, "out of memory")

    with pytest.raises(CafedclError, match="client 3 failed: out of memory"):
        drain(Broken(), [])


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_ceiling_is_a_matrix_products_operations_over_its_time(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Ten products of 1024 × 1024 matrices in two seconds."""
    before = torch.backends.cuda.matmul.allow_tf32
    monkeypatch.setattr(bench_module, "median_of", lambda work, times, device: 2.0)
    assert matrix_ceiling(torch.device("cpu"), precision) == pytest.approx(10 * 2 * 1024**3 / 2)
    assert torch.backends.cuda.matmul.allow_tf32 == before


# floating-point operations


class Convolutions(nn.Module):
    """3 × 8 × 8 → 4 × 6 × 6 → 5 × 3 × 3 → 7."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.full = (
            nn.Conv2d(3, 4, 3),
            nn.Conv2d(4, 5, 3, 2, 1),
            nn.Linear(45, 7),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.full(torch.relu(self.two(torch.relu(self.one(x)))).flatten(1))


def flops(task: Task, shape: tuple[int, int, int], encoder: nn.Module) -> float:
    data = random_images(Workload("", shape, 1, 2, 1, 1, ""), 2)
    return step_flops(
        replace(task.with_clients(data=data), network=Network(encoder, nn.Identity()))
    )


def test_operations_of_linear_layers_by_hand(tiny: Callable[..., Federation]) -> None:
    """Two per product: forward and for the weights' gradient in each layer, for the input's in all
    but the first.
    """
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    first, others = 64 * 20, 20 * 6 + 6 * 3
    assert flops(tiny("fedavg").task, (1, 8, 8), encoder) == 2 * (2 * first + 3 * others)


def test_operations_of_convolutions_by_hand(tiny: Callable[..., Federation]) -> None:
    first, others = (4 * 6 * 6) * (3 * 3 * 3), (5 * 3 * 3) * (4 * 3 * 3) + 45 * 7
    assert flops(tiny("fedavg").task, (3, 8, 8), Convolutions()) == 2 * (2 * first + 3 * others)


def test_counting_operations_changes_no_training(tiny: Callable[..., Federation]) -> None:
    one, other = tiny("fedavg"), tiny("fedavg")
    step_flops(other.task)
    for federation in (one, other):
        federation.step()
    assert all(torch.equal(value, other.state[name]) for name, value in one.state.items())
