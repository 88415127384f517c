"""Small helpers shared by the tests: a tiny federation on the digits, and a visit made by hand."""

import functools
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# OpenMP reads this when PyTorch is imported. By default a thread without work keeps a core busy
# for a while, and several test processes would take the cores from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The same for NumPy's threads, which wait like this and cannot be told otherwise.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# With more, PyTorch's compiler starts processes that import all of it: seconds for each.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch
import typer.testing
from benching import SMALL
from hypothesis import HealthCheck, settings
from quick import QUICK
from torch import Tensor

from cafedcl.config.sections import Config, DataOptions
from cafedcl.core.contract import Census, Client, Visit
from cafedcl.data import Dataset, load_dataset
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.speed import measure
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

# Tensors in tests are small: a second thread costs more than it saves.
torch.set_num_threads(1)
# Typer makes the command line anew for every call, which takes longer than most commands.
typer.testing._get_command = functools.cache(typer.main.get_command)
# Nearly all that is made while tests are collected stays to the end: there is no garbage to find.
gc.disable()

# In a shell's background SIGINT is ignored, and under `nohup` SIGHUP; children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def data_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Caches are written here, and not into the home folder of whoever runs the tests."""
    os.environ["CAFEDCL_DATA"] = str(tmp_path_factory.mktemp("data-folder"))


TINY = {
    "split": {"kind": "pathological", "classes": 2},
    "model": {"name": "mlp", "width": 0.25},
    "train": {"epochs": 1, "iterations": 2},
    "federation": {"clients": 5, "rounds": 2, "participation": 0.6},
    "engine": {"device": "cpu", "workers": 1},
    # The scores of probabilities have tests of their own.
    "evaluate": {"full": False},
}


def tiny_config(method: str, settings: Mapping[str, Any]) -> Config:
    tables: dict[str, Any] = {name: dict(table) for name, table in TINY.items()} | {
        "method": {"name": method, **QUICK.get(method.partition(":")[0], {})}
    }
    for path, value in settings.items():
        section, _, key = path.partition(".")
        tables.setdefault(section, {})[key] = value
    return resolve(tables)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset(DataOptions())


@pytest.fixture(scope="session")
def tiny(digits: Dataset) -> Callable[..., Federation]:
    """Five clients with two classes each, three of them in a round; settings by their names in the
    config.
    """

    def make(method: str = "cafedcl", **settings: Any) -> Federation:
        config = tiny_config(
            method, {name.replace("__", "."): value for name, value in settings.items()}
        )
        setup = prepare(config, None if config.evaluate.protocol == "pfllib" else digits)
        return Federation(setup, engine=ReferenceEngine(setup.task))

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workload for 8×8 images, with few clients and images and a ceiling that is given."""
    monkeypatch.setitem(measure.WORKLOADS, "digits", SMALL)
    monkeypatch.setattr(measure, "TEST_IMAGES", 20)
    monkeypatch.setattr(measure, "matrix_ceiling", lambda device, precision: 2e9)


@pytest.fixture(scope="session")
def idle_processes() -> Iterator[list[Any]]:
    """Processes of comparisons that wait for the next run; they end with the tests."""
    idle: list[Any] = []
    yield idle
    while idle:
        idle.pop().end()


@pytest.fixture
def shared_processes(monkeypatch: pytest.MonkeyPatch, idle_processes: list[Any]) -> list[Any]:
    """Lets a comparison take processes that earlier ones have left, since each takes seconds to
    start; returns those that wait.
    """
    from cafedcl.compare.processes import LocalLauncher

    begin = LocalLauncher.__init__

    def begin_with_idle(self: LocalLauncher, *words: Any) -> None:
        begin(self, *words)
        self.idle = idle_processes

    monkeypatch.setattr(LocalLauncher, "__init__", begin_with_idle)
    monkeypatch.setattr(LocalLauncher, "close", lambda _: None)
    return idle_processes


@pytest.fixture(scope="session")
def visit_with() -> Callable[..., Visit]:
    """A visit with what a test needs; the rest is empty."""

    def nothing(part: str, weights: str) -> tuple[Tensor, Tensor]:
        raise AssertionError(f"nobody should embed the {part} part")

    def make(counts: Any, **parts: Any) -> Visit:
        counts = torch.as_tensor(counts)
        told = [parts.pop(name, counts) for name in ("most", "total", "images")]
        empty = {"received": {}, "anchors": {}, "memory": {}, "scratch": {}, "embed": nothing}
        times = {
            "round": torch.tensor(parts.pop("round", 0), dtype=counts.dtype),
            "progress": counts.new_zeros(()),
        }
        holds = counts.nonzero().flatten()
        client = Client(0, int(counts.sum()), counts, holds, Census(*told))
        return Visit(client=client, **{**empty, **times, **parts})

    return make


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among hundreds of thousands of objects that stay, and more
    seldom than by default: libraries that tests import add as many, and most garbage has no cycles.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files of what takes longest, so that no process waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
