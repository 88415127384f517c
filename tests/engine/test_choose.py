import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Job, Reply
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.engine import choose as choose_module
from cafedcl.engine.choose import choose_engine, compiling_pays_off
from cafedcl.engine.cpu.workers import CpuEngine
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.task.build import Setup, prepare, settle_engine
from cafedcl.task.local_schedule import LocalSchedule
from cafedcl.task.resolve import resolve

Make = Callable[..., Setup]


@pytest.fixture
def make(digits: Dataset) -> Make:
    """Five clients on a CPU, of whom three take part in each of two rounds."""

    def setup(method: str = "fedavg", **engine: Any) -> Setup:
        tables = {
            "method": {"name": method},
            "model": {"name": "mlp", "width": 0.25},
            "train": {"epochs": 3, "iterations": 4},
            "federation": {"clients": 5, "rounds": 2, "participation": 0.6},
            "engine": {"device": "cpu", **engine},
        }
        return prepare(resolve(tables), digits)

    return setup


def asking_for_captures(setup: Setup, **engine: Any) -> Setup:
    """The same, as if its device could capture."""
    options = replace(setup.config.engine, name="cuda", **engine)
    return replace(setup, config=replace(setup.config, engine=options))


def with_layer(setup: Setup, layer: nn.Module) -> Setup:
    network = setup.task.network
    network.head = nn.Sequential(layer, network.head)
    initial = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return replace(setup, task=replace(setup.task, initial=initial))


def jobs(setup: Setup) -> list[Job]:
    down = Down(0, {f"model/{name}": value for name, value in setup.task.shared().items()})
    return [Job(client, down, {}, False) for client in range(len(setup.task.clients.shards))]


# on a CPU


def test_several_clients_on_a_cpu_are_given_to_workers(make: Make) -> None:
    notices: list[str] = []
    setup = make(workers=1)
    engine = choose_engine(setup, notices.append)
    assert isinstance(engine, CpuEngine)
    assert (engine.number, engine.jobs_left) == (1, 3 * 2)
    assert notices == []
    engine.close()


def test_clients_that_cannot_be_stacked_as_asked_leave_one_notice_with_the_reason(
    make: Make,
) -> None:
    notices: list[str] = []
    setup = with_layer(make(workers=1, stack=4), nn.BatchNorm1d(16))
    engine = choose_engine(setup, notices.append)
    assert isinstance(engine, CpuEngine)
    assert engine.local.size == 1
    (notice,) = notices
    assert "not side by side ('head.0.running_mean' is not trained, and a stack" in notice
    assert all(isinstance(result, Reply) for result in engine.train(jobs(setup)))


def test_clients_are_stacked_as_asked_or_as_it_pays(make: Make) -> None:
    sizes = []
    for stack in (0, 1, 4):
        engine = choose_engine(make(workers=1, stack=stack), pytest.fail)
        assert isinstance(engine, CpuEngine)
        sizes.append(engine.local.size)
    assert sizes == [10, 1, 4]


def test_one_client_is_trained_by_the_reference_engine(make: Make) -> None:
    notices: list[str] = []
    assert isinstance(choose_engine(make("central"), notices.append), ReferenceEngine)
    assert notices == []


def test_what_auto_stands_for_on_a_cpu(make: Make) -> None:
    engine = make().config.engine
    assert (engine.name, engine.precision, engine.device) == ("cpu", "fp32", "cpu")


def test_the_cuda_engine_without_a_gpu_is_refused_in_one_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        CafedclError, match=r"engine\.name = cuda: it needs a CUDA device, not 'cpu'; use cpu"
    ) as told:
        make(name="cuda", device="auto")
    assert "\n" not in str(told.value)


def test_the_cuda_engine_can_be_had_on_a_cpu_by_asking_for_both(make: Make) -> None:
    setup = make(name="cuda", device="cpu")
    assert setup.config.engine.precision == "fp32"
    assert isinstance(choose_engine(setup, pytest.fail), CudaEngine)


def test_the_cpu_engine_runs_on_a_cpu_only() -> None:
    with pytest.raises(CafedclError, match=r"engine\.name = cpu: it runs on a CPU, not on 'cuda'"):
        settle_engine(EngineOptions(name="cpu"), torch.device("cuda"))


def test_the_reference_engine_trains_one_client_after_another(make: Make) -> None:
    assert type(choose_engine(make(name="reference"), pytest.fail)) is ReferenceEngine


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("name", ["reference", "cpu", "auto"])
def test_only_the_cuda_engine_has_a_choice_of_precision(
    make: Make, name: str, precision: str
) -> None:
    with pytest.raises(
        CafedclError, match=rf"engine\.precision = {precision}: only the cuda engine has a choice"
    ):
        make(name=name, precision=precision)


# captures


def test_captures_are_tried_and_used_without_a_notice(make: Make) -> None:
    notices: list[str] = []
    setup = asking_for_captures(make(), streams=2)
    engine = choose_engine(setup, notices.append)
    assert isinstance(engine, CudaEngine)
    assert (engine.number, engine.device_data.program.compiled) == (2, False)
    assert notices == []
    assert len(engine.slots) == 1, "the trial has captured a step"
    assert all(isinstance(result, Reply) for result in engine.train(jobs(setup)))


def test_a_trial_that_raises_leaves_the_reference_engine_and_one_notice(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CudaEngine, down: object) -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(CudaEngine, "trial", fail)
    notices: list[str] = []
    setup = asking_for_captures(make(), compile="off")
    engine = choose_engine(setup, notices.append)
    assert isinstance(engine, ReferenceEngine)
    assert len(notices) == 1
    assert "RuntimeError: operation not permitted" in notices[0]
    assert "one after another in fp32" in notices[0]
    assert "\n" not in notices[0]
    assert all(isinstance(result, Reply) for result in engine.train(jobs(setup)))


def test_a_trial_that_raises_only_when_compiled_leaves_plain_captures_and_one_notice(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = CudaEngine.trial

    def fail(self: CudaEngine, down: Any) -> None:
        if self.device_data.program.compiled:
            raise RuntimeError("no compiler\nwas found")
        trial(self, down)

    monkeypatch.setattr(CudaEngine, "trial", fail)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    notices: list[str] = []
    engine = choose_engine(asking_for_captures(make(), compile="on"), notices.append)
    assert isinstance(engine, CudaEngine)
    assert not engine.device_data.program.compiled
    assert len(notices) == 1
    assert "cannot be compiled" in notices[0]
    assert "RuntimeError: no compiler" in notices[0]
    assert "\n" not in notices[0]


def test_compiled_captures_are_used_if_asked_for_and_possible(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compiling(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", compiling)
    notices: list[str] = []
    setup = asking_for_captures(make(), compile="on")
    engine = choose_engine(setup, notices.append)
    assert isinstance(engine, CudaEngine)
    assert engine.device_data.program.compiled
    assert notices == []
    assert compiled
    assert all(isinstance(result, Reply) for result in engine.train(jobs(setup)))


def test_batch_normalisation_leaves_the_reference_engine_and_one_notice_that_names_it(
    make: Make,
) -> None:
    notices: list[str] = []
    engine = choose_engine(
        asking_for_captures(with_layer(make(), nn.BatchNorm1d(16))), notices.append
    )
    assert isinstance(engine, ReferenceEngine)
    assert len(notices) == 1
    assert "'head.0' is a batch normalisation" in notices[0]


def test_a_method_that_cannot_be_captured_leaves_the_reference_engine_and_the_reason(
    make: Make,
) -> None:
    setup = make()

    class ReadsANumber(type(setup.task.method)):
        def loss(self, model, batch, visit):
            return {"ce": super().loss(model, batch, visit)["ce"] / visit.client.samples}

    method = ReadsANumber(None, 10, setup.task.method.dim)
    notices: list[str] = []
    engine = choose_engine(
        asking_for_captures(replace(setup, task=replace(setup.task, method=method))), notices.append
    )
    assert isinstance(engine, ReferenceEngine)
    assert len(notices) == 1
    assert "samples" in notices[0]


# whether compiling pays


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds to compile; half a second saved per step, and a quarter per image where there is
    normalisation.
    """
    for name, value in {
        "COMPILE_SECONDS": 10.0,
        "COMPILE_SECONDS_OF_SLOW_LAYERS": 10.0,
        "SECONDS_SAVED_PER_STEP": 0.5,
        "SECONDS_SAVED_PER_IMAGE": 0.25,
    }.items():
        monkeypatch.setattr(choose_module, name, value)


@pytest.mark.usefixtures("prices")
def test_compiling_pays_off_from_so_many_steps(make: Make) -> None:
    task = make().task
    assert not compiling_pays_off(task, 20)
    assert compiling_pays_off(task, 21)


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize("layer", [nn.GroupNorm(4, 16), nn.LayerNorm(16)])
def test_images_count_where_there_are_layers_that_plain_kernels_are_slow_at(
    make: Make, layer: nn.Module
) -> None:
    """A batch of 6 makes a step worth 0.5 + 6 × 0.25 = 2 seconds."""
    task = with_layer(make(), layer).task
    options = replace(task.schedule.options, batch_size=6)
    task = replace(task, schedule=replace(task.schedule, options=options))
    assert not compiling_pays_off(task, 5)
    assert compiling_pays_off(task, 6)


@pytest.mark.parametrize(
    ("typical", "iterations", "batch_size", "epochs", "steps"),
    [
        (95, 10, 0, 5, 50),
        (100, 10, 0, 5, 50),
        (7, 10, 0, 2, 14),
        (101, 10, 50, 2, 6),
        (1, 1, 0, 1, 1),
    ],
)
def test_steps_of_an_average_visit(
    make: Make, typical: int, iterations: int, batch_size: int, epochs: int, steps: int
) -> None:
    task = make().task
    train = replace(
        task.schedule.options, iterations=iterations, batch_size=batch_size, epochs=epochs
    )
    assert LocalSchedule(train, typical, pooled=False, rounds=1).steps(typical) == steps


@pytest.mark.parametrize(("worth", "alike"), [(False, 1), (True, 1), (True, 5)])
def test_auto_compiles_if_the_steps_of_all_runs_that_share_the_code_are_worth_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, worth: bool, alike: int
) -> None:
    """Three clients in each of two rounds with three epochs of four steps: 72 for each run."""
    asked: list[int] = []

    def asking(task: object, steps: int) -> bool:
        asked.append(steps)
        return worth

    monkeypatch.setattr(choose_module, "compiling_pays_off", asking)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    engine = choose_engine(asking_for_captures(make(), alike=alike), pytest.fail)
    assert isinstance(engine, CudaEngine)
    assert engine.device_data.program.compiled == worth
    assert asked == [72 * alike]


@pytest.mark.parametrize("choice", ["on", "off"])
def test_on_and_off_do_not_ask_whether_it_pays(
    make: Make, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setattr(
        choose_module, "compiling_pays_off", lambda *_: pytest.fail("nobody should ask")
    )
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    engine = choose_engine(asking_for_captures(make(), compile=choice), pytest.fail)
    assert isinstance(engine, CudaEngine)
    assert engine.device_data.program.compiled == (choice == "on")


def test_the_compilers_advice_to_use_tf32_is_neither_shown_nor_a_failure_to_compile(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advise(engine: CudaEngine, down: Down) -> None:
        warnings.warn("TensorFloat32 tensor cores … available but not enabled.", stacklevel=1)

    monkeypatch.setattr(CudaEngine, "trial", advise)
    notices: list[str] = []
    engine = choose_engine(asking_for_captures(make(), compile="on"), notices.append)
    assert isinstance(engine, CudaEngine)
    assert notices == []
    engine.close()


def test_the_first_step_is_compiled_for_the_threads_of_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the compiler compiles everything again in the first round."""
    seen: list[int] = []
    monkeypatch.setattr(CudaEngine, "trial", lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    setup = asking_for_captures(make())
    threads = before + 1
    choose_engine(replace(setup, task=replace(setup.task, threads=threads)), pytest.fail)
    assert seen == [threads]
    assert torch.get_num_threads() == before
