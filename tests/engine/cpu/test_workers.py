import os
import platform
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cafedcl
from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Job, Reply, Visit
from cafedcl.core.tensors import MODEL, Tensors, prefixed
from cafedcl.engine.choose import choose_engine
from cafedcl.engine.cpu import workers as workers_module
from cafedcl.engine.cpu.workers import CpuEngine
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.models import Network
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import resolve


def make_setup(**engine: int) -> Setup:
    tables = {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "train": {"epochs": 1},
        "federation": {"clients": 6, "rounds": 3},
        "engine": {"device": "cpu", "stack": 1, **engine},
    }
    return prepare(resolve(tables))


@pytest.fixture
def setup() -> Setup:
    """Six clients, each a job of its own."""
    return make_setup()


def rounds_of(method: str, workers: int, stack: int, threads: int) -> Config:
    """Two rounds of six clients. Those of several threads have a memory each, by a calibration of
    their own, and liars hold wrong labels, which no worker may set right or split by.
    """
    hard = threads > 1
    tables = {
        "method": {"name": method, **({"inference": "own", "calibrate": 1.0} if hard else {})},
        "data": {"images": 600},
        "train": {"epochs": 1, "iterations": 2},
        "federation": {"clients": 6, "rounds": 2},
        "engine": {"workers": workers, "stack": stack, "threads": threads},
        "evaluate": {"full": False},
        "attack": {"kind": "label-flip", "clients": 2} if hard else {},
    }
    return resolve(tables)


@pytest.fixture(scope="module", params=["forked", "started anew"])
def either(request: pytest.FixtureRequest) -> Setup:
    """Both kinds of workers: those of several threads cannot be forked."""
    if request.param == "forked":
        return make_setup(threads=1)
    return prepare(rounds_of("cafedcl", 2, 2, 2))


@pytest.fixture(scope="module")
def engine(either: Setup) -> Iterator[CpuEngine]:
    """An engine with two workers. Tests share it, because new interpreters take seconds to start:
    each test finds workers that wait for jobs, whatever happened to those before.
    """
    made = CpuEngine(either.task, either.config, 2, 100)
    yield made
    made.close()


@pytest.fixture
def working(engine: CpuEngine) -> CpuEngine:
    ready(engine)
    assert len(engine.workers) == 2
    assert not any(worker.group for worker in engine.workers)
    engine.deaths.clear()
    return engine


def jobs(setup: Setup) -> list[Job]:
    state = {**prefixed(MODEL, setup.task.shared()), **setup.state}
    down = Down(0, setup.task.method.broadcast(state))
    return [Job(client, down, {}, False) for client in range(6)]


def ready(engine: CpuEngine) -> None:
    """Start the processes, and wait until they can take over."""
    engine._hire(6)
    until = time.monotonic() + 600
    while not all(worker.ready for worker in engine.workers):
        assert time.monotonic() < until, "the workers never became ready"
        engine._listen(deque(), 1.0)


def assert_same_bits(one: Federation, other: Federation) -> None:
    here, _ = one.snapshot()
    there, _ = other.snapshot()
    assert here.keys() == there.keys()
    assert all(torch.equal(value, there[name]) for name, value in here.items())


# What FedAvg sends is part of what CAFedCL sends; local keeps its weights in memories.
@pytest.mark.parametrize("method", ["cafedcl", "local"])
@pytest.mark.parametrize("stack", [1, 2])
def test_rounds_in_workers_are_bit_for_bit_the_serial_rounds(method: str, stack: int) -> None:
    done = []
    for workers in (1, 3):
        with Federation(rounds_of(method, workers, stack, 1)) as federation:
            if workers > 1:
                assert isinstance(federation.engine, CpuEngine)
                ready(federation.engine)
            federation.run()
            assert len(federation.engine.workers) == (0 if workers == 1 else 3)
            assert method == "cafedcl" or federation.memories
            done.append(federation)
    assert_same_bits(*done)


# The engine's two interpreters, which have imported PyTorch, serve the tests below too.
@pytest.mark.parametrize("either", ["started anew"], indirect=True)
def test_rounds_in_workers_started_anew_are_bit_for_bit_the_serial_rounds(
    either: Setup, working: CpuEngine
) -> None:
    with Federation(rounds_of("cafedcl", 1, 2, 2)) as serial:
        serial.run()
        assert len(serial.engine.workers) == 0
    federation = Federation(either, engine=working)
    federation.run()
    assert len(working.workers) == 2
    assert federation.memories
    assert_same_bits(serial, federation)


def test_workers_are_not_forked_where_a_library_may_have_threads_of_its_own(
    monkeypatch: pytest.MonkeyPatch, setup: Setup
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for machine, onednn, forked in (
        ("aarch64", True, False),
        ("aarch64", False, True),
        ("x86_64", True, True),
    ):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        workers = CpuEngine(replace(setup.task, onednn=onednn), setup.config, 2, 4)
        assert workers.forks is forked, (machine, onednn)


def test_onednn_in_workers_does_not_wait_forever() -> None:
    settings = {"engine.workers": 2, "engine.onednn": "on", "engine.stack": 4, "train.epochs": 1}
    run = cafedcl.run("fedavg", data="digits", clients=4, rounds=2, settings=settings)
    assert run.records[-1]["failed"] == []


def test_a_worker_that_dies_is_replaced_and_its_job_done_again(
    either: Setup, working: CpuEngine
) -> None:
    busy = working.workers[0]
    os.kill(busy.process.pid, signal.SIGSTOP)
    results = working.train(jobs(either))
    first = next(results)
    assert busy.group
    os.kill(busy.process.pid, signal.SIGKILL)
    rest = list(results)
    assert sorted(r.up.client for r in [first, *rest] if isinstance(r, Reply)) == list(range(6))
    assert busy not in working.workers


# The engine counts deaths alike for both kinds; that either kind is replaced is tested above.
@pytest.mark.parametrize("either", ["forked"], indirect=True)
def test_a_job_that_kills_its_worker_twice_is_a_failure_with_the_reason(
    either: Setup, working: CpuEngine
) -> None:
    working.deaths[3, 0] = 1
    victim = working.workers[0]
    os.kill(victim.process.pid, signal.SIGSTOP)
    results = working.train([jobs(either)[3], jobs(either)[0]])
    outcome = [next(results)]
    os.kill(victim.process.pid, signal.SIGKILL)
    outcome += results
    failures = [r for r in outcome if isinstance(r, Failure)]
    assert [f.client for f in failures] == [3]
    assert "died twice (signal 9)" in failures[0].reason


# Workers of a given-up round are ended like all of a closed engine, which both kinds are below.
@pytest.mark.parametrize("either", ["forked"], indirect=True)
def test_results_of_a_round_that_was_given_up_never_reach_the_next(
    either: Setup, working: CpuEngine
) -> None:
    results = working.train(jobs(either))
    next(results)
    results.close()
    assert not any(worker.group for worker in working.workers)
    later = list(working.train(jobs(either)))
    assert sorted(r.up.client for r in later if isinstance(r, Reply)) == list(range(6))


@pytest.mark.parametrize("either", ["started anew"], indirect=True)
def test_workers_that_are_started_anew_map_the_data_and_do_not_copy_them(
    working: CpuEngine,
) -> None:
    assert working.shared is not None
    inode = os.fstat(working.shared.fileno()).st_ino
    for worker in working.workers:
        maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
        assert any(channel.split()[4] == str(inode) for channel in maps.splitlines()), (
            "the data file is not mapped"
        )


def test_closing_ends_the_processes(either: Setup, working: CpuEngine) -> None:
    processes = [worker.process for worker in working.workers]
    working.close()
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize("price", ["ENOUGH_WORK", "ENOUGH_WORK_FORKED"])
def test_short_work_stays_in_this_process_and_long_work_does_not(
    monkeypatch: pytest.MonkeyPatch, price: str
) -> None:
    """Six jobs take less than a thousand seconds, and a million million take more."""
    monkeypatch.setattr(workers_module, "cores", lambda: 2)
    monkeypatch.setattr(workers_module, price, 1000.0)
    setup = make_setup(threads=1 if price == "ENOUGH_WORK_FORKED" else 2)
    hired = {}
    for number, left in ((0, 6), (0, 10**12), (1, 10**12)):
        engine = CpuEngine(setup.task, setup.config, number, jobs=left)
        try:
            list(engine.train(jobs(setup)))
            hired[number, left] = len(engine.workers)
        finally:
            engine.close()
    assert hired == {(0, 6): 0, (0, 10**12): 2, (1, 10**12): 0}


def test_work_that_is_long_on_any_core_is_handed_out_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "cores", lambda: 2)
    setup = make_setup(threads=1)
    for fastest, at_once in ((1e30, False), (1e3, True)):
        monkeypatch.setattr(workers_module, "PEAK_OPERATIONS", fastest)
        engine = CpuEngine(setup.task, setup.config, 0, jobs=6)
        try:
            replies = list(engine.train(jobs(setup)))
            assert len(replies) == 6
            assert (engine.shortest_job == 0.0) is at_once, "whether a job was tried out here"
        finally:
            engine.close()


def kill_for(setup: Setup, victim: int) -> None:
    """Let one client's summary end its process, unless it is this one."""
    here = os.getpid()

    def summarize(_model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        if visit.client.index == victim:
            assert os.getpid() != here, (
                "a job that killed a worker is not done in the run's own process"
            )
            os.kill(os.getpid(), signal.SIGKILL)
        return {}, {}

    setup.task.method.summarize = summarize  # type: ignore[method-assign]


def test_the_job_that_kills_a_groups_worker_is_found_and_the_others_are_done() -> None:
    setup = make_setup(stack=3)
    kill_for(setup, 4)
    engine = CpuEngine(setup.task, setup.config, 2, 100)
    try:
        engine._hire(2)
        results = list(engine.train(jobs(setup)))
        assert sorted(r.up.client for r in results if isinstance(r, Reply)) == [0, 1, 2, 3, 5]
        assert [r for r in results if isinstance(r, Failure)] == [
            Failure(4, "its worker process died twice (signal 9)")
        ]
        assert {client: n for (client, _), n in engine.deaths.items() if n > 1} == {4: 2}
    finally:
        engine.close()


def test_forked_workers_hold_no_pipe_but_their_own(setup: Setup) -> None:
    """Else they would not notice that the run has ended."""
    engine = CpuEngine(setup.task, setup.config, 3, 100)
    try:
        engine._hire(2)
        first = engine.workers[0]
        first.channel.pipe.close()
        assert first.process.wait(600) == 0
    finally:
        engine.workers = engine.workers[1:]
        engine.close()


def test_one_client_needs_no_workers() -> None:
    tables = {"method": {"name": "central"}, "model": {"name": "mlp"}}
    assert isinstance(choose_engine(prepare(resolve(tables)), pytest.fail), ReferenceEngine)


def children_of(process: int) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def is_alive(process: int) -> bool:
    """A process that nobody waits for stays in the list as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool], what: str, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.05)


ENDLESS = '''
import os
from pathlib import Path
from cafedcl.methods.fedavg import FedAvg

class Endless(FedAvg):
    """In a worker, which leads a session of its own, it leaves a file when it begins, and never
    ends once both workers have begun.

    Before that it trains quickly: else the first worker could take a round's last job and keep it,
    and there would never be a job for the second.
    """

    name = "endless"

    def loss(self, model, batch, visit):
        if os.getsid(0) == os.getpid():
            begun = Path(os.environ["BEGUN"])
            (begun / str(os.getpid())).touch()
            while len(list(begun.iterdir())) == 2:
                pass
        return super().loss(model, batch, visit)
'''


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("threads", [1, 2], ids=["forked", "started anew"])
def test_workers_end_with_a_killed_run_and_do_not_keep_its_folder_locked(
    tmp_path: Path, threads: int
) -> None:
    """The run is killed while both workers train."""
    path = tmp_path / "run"
    begun = tmp_path / "begun"
    begun.mkdir()
    (tmp_path / "endless.py").write_text(ENDLESS)
    settings = [
        "federation.rounds=1000000",
        "train.epochs=1",
        "train.iterations=1",
        "evaluate.every=1000000",
        "evaluate.own_every=1000000",
        "engine.workers=2",
        "engine.stack=1",
        f"engine.threads={threads}",
    ]
    command = [sys.executable, "-m", "cafedcl", "run", "--method", "endless:Endless"]
    command += ["--out", str(path)]
    command += [word for setting in settings for word in ("--set", setting)]
    places = [str(tmp_path), *sys.path]
    environment = {**os.environ, "BEGUN": str(begun), "PYTHONPATH": os.pathsep.join(places)}
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)

    def training() -> list[int]:
        return [worker for worker in children_of(run.pid) if (begun / str(worker)).exists()]

    try:
        wait_until(lambda: len(training()) == 2, "the workers never began to train")
        workers = training()
    finally:
        run.kill()
        run.wait()
    folder = RunFolder(path)
    folder.lock()
    folder.unlock()
    wait_until(lambda: not any(map(is_alive, workers)), "the workers live on")
