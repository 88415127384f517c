import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest
import torch

from cafedcl.config import resolve
from cafedcl.contract import Down, Failure, Job, Reply
from cafedcl.engine import workers as workers_module
from cafedcl.engine.choose import choose_engine
from cafedcl.engine.eager import Eager
from cafedcl.engine.workers import Workers
from cafedcl.federation import Federation
from cafedcl.setup import Setup, prepare


@pytest.fixture
def setup() -> Setup:
    tables = {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "train": {"epochs": 1},
        "federation": {"clients": 6, "rounds": 3},
    }
    return prepare(resolve(tables))


def jobs(setup: Setup) -> list[Job]:
    state = {f"model/{name}": value for name, value in setup.bench.shared().items()}
    down = Down(0, state)
    return [Job(client, down, {}, False) for client in range(6)]


def ready(engine: Workers, setup: Setup) -> None:
    """Work until the processes have taken over."""
    until = time.monotonic() + 60
    while not (engine.crew and all(worker.ready for worker in engine.crew)):
        assert time.monotonic() < until, "the workers never became ready"
        list(engine.train(jobs(setup)))


@pytest.mark.parametrize("method", ["fedavg", "cafedcl"])
def test_rounds_in_workers_are_bit_for_bit_the_serial_rounds(method: str) -> None:
    states = []
    for workers in (1, 3):
        tables = {
            "method": {"name": method},
            "train": {"epochs": 1},
            "federation": {"clients": 6, "rounds": 3},
            "engine": {"workers": workers},
        }
        with Federation(resolve(tables)) as federation:
            if workers > 1:
                assert isinstance(federation.engine, Workers)
                federation.engine._hire(6)
                wait_for(federation.engine)
            federation.run()
            states.append(federation.state)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def wait_for(engine: Workers) -> None:
    """Wait until all processes are ready."""
    until = time.monotonic() + 60
    while not all(worker.ready for worker in engine.crew):
        assert time.monotonic() < until, "the workers never became ready"
        engine._listen(deque(), 1.0)


def test_workers_share_the_data_without_copying_it(setup: Setup) -> None:
    engine = Workers(setup.bench, setup.config, 2, 100)
    try:
        ready(engine, setup)
        assert engine.shared is not None
        inode = os.fstat(engine.shared.fileno()).st_ino
        for worker in engine.crew:
            maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
            assert any(line.split()[4] == str(inode) for line in maps.splitlines()), "the data file is not mapped"
    finally:
        engine.close()


def test_closing_ends_the_processes(setup: Setup) -> None:
    engine = Workers(setup.bench, setup.config, 2, 100)
    list(engine.train(jobs(setup)))
    processes = [worker.process for worker in engine.crew]
    assert len(processes) == 2
    engine.close()
    assert all(process.returncode is not None for process in processes)


def test_a_worker_that_dies_is_replaced_and_its_job_done_again(setup: Setup) -> None:
    engine = Workers(setup.bench, setup.config, 2, 100)
    try:
        ready(engine, setup)
        busy = engine.crew[0]
        os.kill(busy.process.pid, signal.SIGSTOP)
        results = engine.train(jobs(setup))
        first = next(results)
        assert busy.job
        os.kill(busy.process.pid, signal.SIGKILL)
        rest = list(results)
        assert sorted(r.up.client for r in [first, *rest] if isinstance(r, Reply)) == list(range(6))
        assert busy not in engine.crew
    finally:
        engine.close()


def test_a_job_that_kills_its_worker_twice_is_a_failure_with_the_reason(setup: Setup) -> None:
    engine = Workers(setup.bench, setup.config, 2, 100)
    try:
        ready(engine, setup)
        engine.deaths[3, 0] = 1
        victim = engine.crew[0]
        os.kill(victim.process.pid, signal.SIGSTOP)
        results = engine.train([jobs(setup)[3], jobs(setup)[0]])
        outcome = [next(results)]
        os.kill(victim.process.pid, signal.SIGKILL)
        outcome += results
        failures = [r for r in outcome if isinstance(r, Failure)]
        assert [f.client for f in failures] == [3]
        assert "died twice (signal 9)" in failures[0].reason
    finally:
        engine.close()


def test_results_of_a_round_that_was_given_up_never_reach_the_next(setup: Setup) -> None:
    engine = Workers(setup.bench, setup.config, 2, 100)
    try:
        ready(engine, setup)
        results = engine.train(jobs(setup))
        next(results)
        results.close()
        assert not any(worker.job for worker in engine.crew)
        later = list(engine.train(jobs(setup)))
        assert sorted(r.up.client for r in later if isinstance(r, Reply)) == list(range(6))
    finally:
        engine.close()


def test_short_work_stays_in_this_process_and_long_work_does_not(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "cores", lambda: 2)
    short = Workers(setup.bench, setup.config, 0, jobs=6)
    list(short.train(jobs(setup)))
    assert short.crew == []
    long = Workers(setup.bench, setup.config, 0, jobs=10**6)
    try:
        list(long.train(jobs(setup)))
        assert len(long.crew) == 2
    finally:
        long.close()
    single = Workers(setup.bench, setup.config, 1, jobs=10**6)
    list(single.train(jobs(setup)))
    assert single.crew == []


def test_one_client_needs_no_workers() -> None:
    tables = {"method": {"name": "central"}, "model": {"name": "mlp"}}
    assert isinstance(choose_engine(prepare(resolve(tables)), pytest.fail), Eager)


def test_workers_end_when_the_run_is_killed(tmp_path: Path) -> None:
    small = ["--set", "model.name=mlp", "--set", "train.epochs=1", "--set", "engine.workers=2", "--rounds", "100000"]
    command = [sys.executable, "-m", "cafedcl", "run", "--clients", "6", *small, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def children() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if "cafedcl.engine.worker" in (entry / "cmdline").read_text() and parent_of(entry) in (
                        process.pid,
                        1,
                    ):
                        found.append(int(entry.name))
        return found

    before = set(children())
    until = time.monotonic() + 60
    while len(mine := set(children()) - before) < 2 or not (tmp_path / "run" / "metrics.jsonl").exists():
        assert time.monotonic() < until, "the workers never started"
        time.sleep(0.05)
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/cmdline").exists() and not is_zombie(pid) for pid in mine):
        assert time.monotonic() < until, "the workers outlived their run"
        time.sleep(0.05)


def parent_of(entry: Path) -> int:
    return int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
