import os
import sys
from pathlib import Path
from typing import Any

import pytest
from comparing import Notes, jobs, outcomes_of, pool

from cafedcl.compare.jobs import DeviceShare
from cafedcl.compare.pool import polite, run_all
from cafedcl.compare.processes import LocalLauncher, RunProcess

WAITS_FOR_THE_OTHER = """
import os, sys, time
sys.stdin.read()
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
until = time.monotonic() + 20
while len(os.listdir(sys.argv[1])) < 2:
    if time.monotonic() > until:
        sys.exit("the other one was not dismissed meanwhile")
    time.sleep(0.01)
"""
"""A process that, once dismissed, ends only after another one has been dismissed, too."""


def processes_of(notes: list[list[Any]]) -> list[int]:
    return [process for what, *_, process in notes if what == "start"]


def test_a_process_takes_run_after_run(stub: Notes, tmp_path: Path) -> None:
    outcomes_of(jobs(tmp_path / "out", 4), 1)
    assert len(stub()) == 8
    assert len(set(processes_of(stub()))) == 1


def test_all_processes_end_with_the_pool(stub: Notes, tmp_path: Path) -> None:
    outcomes_of(jobs(tmp_path / "out", 3), 2)
    for process in processes_of(stub()):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize("fault", ["STUB_BROKEN", "STUB_DYING"])
def test_a_fault_costs_one_run_and_its_process(
    stub: Notes, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fault, "/s1")
    outcomes = outcomes_of(jobs(tmp_path / "out", 4), 1)
    assert [o.status for o in outcomes] == ["finished", "failed", "finished", "finished"]
    first, second, third, fourth = processes_of(stub())
    assert first == second
    assert third == fourth
    assert third != second
    expected = "on fire" if fault == "STUB_BROKEN" else "killed by signal 9"
    assert outcomes[1].error == expected


def test_each_run_has_a_log_of_its_own(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s1")
    work = jobs(tmp_path / "out", 3)
    outcomes_of(work, 1)
    assert [bool(job.log.read_text()) for job in work] == [False, True, False]


def test_a_process_whose_run_was_stopped_takes_no_other(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv("STUB_HELD", str(held))
    first, second = jobs(tmp_path / "out", 2)
    crowd = pool(1)
    with polite(crowd):
        crowd.start(first)
        while not stub():
            crowd.wait()
        crowd.stop([first])
        while crowd.running:
            crowd.wait()
        held.unlink()
        (outcome,) = run_all([second], crowd)
    assert outcome.status == "finished"
    assert len(set(processes_of(stub()))) == 2


def test_idle_processes_end_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dismissed").mkdir()
    command = (sys.executable, "-S", "-c", WAITS_FOR_THE_OTHER, str(tmp_path / "dismissed"))
    monkeypatch.setattr("cafedcl.compare.processes.PROGRAM", command)
    launcher = LocalLauncher([])
    launcher.idle += [RunProcess(DeviceShare("cpu"), tmp_path / name) for name in ("a", "b")]
    started = [one.process for one in launcher.idle]
    launcher.close()
    assert [process.returncode for process in started] == [0, 0]
