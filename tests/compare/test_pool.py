import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from comparing import Notes, jobs, outcomes_of, plan, pool, scored_line
from rich.console import Console

from cafedcl import api
from cafedcl.compare import devices as schedule_devices
from cafedcl.compare import processes
from cafedcl.compare.devices import choose_launcher, device_share
from cafedcl.compare.jobs import DeviceShare
from cafedcl.compare.pool import Pool, Tail, View, polite, run_all
from cafedcl.compare.processes import LocalLauncher
from cafedcl.compare.progress import Count, JsonView, LiveView, PlainView
from cafedcl.core.errors import CafedclError


def test_finished_runs_are_skipped_unfinished_resumed_missing_started(
    stub: Notes, tmp_path: Path
) -> None:
    work = jobs(tmp_path / "out", 3)
    outcomes_of(work[:2])
    lines = (work[1].folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (work[1].folder / "metrics.jsonl").write_text("".join(lines[:1]))
    before = len(stub())
    outcomes = outcomes_of(work)
    assert {o.job.place[-2:]: o.status for o in outcomes} == {
        "s0": "skipped",
        "s1": "finished",
        "s2": "finished",
    }
    started = {
        (Path(folder).name, command)
        for what, command, folder, *_ in stub()[before:]
        if what == "start"
    }
    assert started == {("s1", "resume"), ("s2", "run")}
    assert {o.made for o in outcomes if o.job.place.endswith("s1")} == {2}


def test_on_a_gpu_a_process_goes_on_with_code_that_it_has_compiled(
    stub: Notes, tmp_path: Path
) -> None:
    """Three methods under two splits: the second process has two methods, the first one has one."""
    methods = ("fedavg", "cafedcl", "moon")
    work = plan(methods=methods, splits=["iid", "dirichlet:1"], seeds=2).jobs(tmp_path / "out")
    work.sort(key=lambda job: job.seed)
    first, second = (job for job in work if job.seed == 0 and job.code[-1] == "fedavg")
    launcher = LocalLauncher([DeviceShare("cuda"), DeviceShare("cuda")])
    crowd = Pool(launcher, View())
    with polite(crowd):
        assert crowd.choose(work) is first
        crowd.start(first)
        left = [job for job in work if job is not first]
        chosen = crowd.choose(left)
        assert chosen is not None
        assert chosen.code[-1] == "cafedcl", "the other process has the code of FedAvg"
        crowd.start(chosen)
        left.remove(chosen)
        while len(crowd.running) > 0:
            crowd.wait()
        by_process = {slot.number: slot for slot in crowd.slots}
        crowd.slots = [by_process[0], by_process[1]]
        assert crowd.choose(left) is second
        fedavg_of_seed_1 = [job for job in left if job.seed == 1 and job.code[-1] == "fedavg"]
        moon = [job for job in left if job.seed == 0 and job.code[-1] == "moon"]
        assert crowd.choose([*moon, *fedavg_of_seed_1]) is moon[0], "seeds come one after another"
        crowd.slots.reverse()
        assert crowd.choose([second, *moon]) is moon[0], "nobody has compiled its code"
        assert crowd.choose([second]) is second, "compiled again rather than waiting"


def test_a_process_that_failed_has_compiled_nothing(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s0")
    (job,) = jobs(tmp_path / "out", 1)
    crowd = Pool(LocalLauncher([DeviceShare("cuda")]), View())
    with polite(crowd):
        crowd.start(job)
        assert crowd.compiled == {0: {job.compiled}}
        while crowd.running:
            crowd.wait()
        assert crowd.compiled == {0: set()}


def test_on_a_cpu_runs_start_in_their_order(stub: Notes, tmp_path: Path) -> None:
    work = plan(methods=("fedavg", "cafedcl"), splits=["iid", "dirichlet:1"]).jobs(tmp_path / "out")
    outcomes = outcomes_of(work, 1)
    assert [outcome.job.place for outcome in outcomes] == [job.place for job in work]


@pytest.mark.parametrize("slots", [1, 3])
def test_never_more_jobs_than_slots(
    stub: Notes, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_SECONDS", "0.02")
    outcomes_of(jobs(tmp_path / "out", 7), slots)
    events = sorted((when, 1 if what == "start" else -1) for what, _, _, when, _ in stub())
    running = [sum(step for _, step in events[: i + 1]) for i in range(len(events))]
    assert max(running) <= slots
    assert len(events) == 14


def test_a_failing_job_is_isolated(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s1")
    outcomes = {o.job.place[-2:]: o for o in outcomes_of(jobs(tmp_path / "out", 3))}
    assert {place: o.status for place, o in outcomes.items()} == {
        "s0": "finished",
        "s1": "failed",
        "s2": "finished",
    }
    assert outcomes["s1"].error == "on fire"
    assert outcomes["s0"].last is not None
    assert outcomes["s0"].last["server"]["accuracy"] == 0.7


def test_a_job_that_cannot_be_started_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROGRAM", (str(tmp_path / "nothing"),))
    with pytest.raises(CafedclError, match="the run cannot be started"):
        outcomes_of(jobs(tmp_path / "out"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_stops_the_children_politely(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("STUB_SECONDS", "600")
    crowd, handler = pool(), signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        while len(stub()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    work = jobs(tmp_path / "out", 3)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), polite(crowd):
        run_all(work, crowd)
    assert crowd.running == []
    assert [what for what, *_ in stub()] == ["start", "start", "end", "end"], (
        "the third was never started"
    )
    assert work[0].log.read_text() == "interrupted; saved\n"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_what_was_started_for_all_runs_is_ended_by_a_second_interrupt_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = pool()
    closed: list[bool] = []
    monkeypatch.setattr(crowd.launcher, "close", lambda: closed.append(True))

    def finish(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(crowd, "finish", finish)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), polite(crowd):
        pass
    assert closed == [True]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_child_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tmp_path / "deaf"
    stubborn = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(deaf)!r}).touch(); time.sleep(600)"
    )
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, "-S", "-c", stubborn))
    crowd = pool()
    crowd.start(jobs(tmp_path)[0])
    while not deaf.exists():
        time.sleep(0.01)
    (outcome,) = crowd.finish(grace=0.2)
    assert outcome.status == "stopped"
    assert crowd.running == []


def test_the_tail_follows_a_growing_file_and_one_that_is_rewound(tmp_path: Path) -> None:
    tail, file = Tail(tmp_path), tmp_path / "metrics.jsonl"
    tail.read()
    assert (tail.rounds, tail.last) == (0, None)
    first = scored_line(0, {"accuracy": 0.5})
    second = scored_line(1, None)
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second)[:20]}")
    tail.read()
    assert tail.rounds == 1
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    tail.read()
    assert tail.rounds == 2
    assert tail.last == first
    file.write_text(f"{json.dumps(first)}\n")
    tail.read()
    assert tail.rounds == 1


@pytest.mark.parametrize(("gpus", "jobs", "threads"), [(1, 12, "1"), (1, 4, "4"), (2, 1, "8")])
def test_processes_that_compile_share_the_cores(
    gpus: int, jobs: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("cafedcl.compare.devices.cores", lambda: 16)
    monkeypatch.delenv(name, raising=False)
    slots = choose_launcher([], jobs, 1, None).slots
    assert len(slots) == gpus * jobs
    assert {slot.variables[name] for slot in slots} == {threads}
    monkeypatch.setenv(name, "3")
    assert all(name not in slot.variables for slot in choose_launcher([], jobs, 1, None).slots)
    monkeypatch.delenv(name)
    assert all(name not in slot.variables for slot in choose_launcher(["cuda:0"], 1, 1, None).slots)


def test_devices_become_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    slots = choose_launcher([], 2, 1, None).slots
    assert [slot.variables["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1", "0", "1"]
    assert {slot.variables["CUDA_DEVICE_MAX_CONNECTIONS"] for slot in slots} == {"8"}
    assert all(
        "CUDA_DEVICE_MAX_CONNECTIONS" not in slot.variables
        for slot in choose_launcher([], 1, 1, None).slots
    )
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    assert all(
        "CUDA_DEVICE_MAX_CONNECTIONS" not in slot.variables
        for slot in choose_launcher([], 2, 1, None).slots
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    assert device_share("cuda:1") == DeviceShare("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-7"})
    with pytest.raises(CafedclError, match="this machine has 2 CUDA devices"):
        device_share("cuda:2")
    with pytest.raises(CafedclError, match="there is no such device"):
        device_share("cuda:x")
    with pytest.raises(CafedclError, match="--jobs 0"):
        choose_launcher([], 0, 1, None)
    monkeypatch.setattr(schedule_devices, "cores", lambda: 6)
    slots = choose_launcher(["cpu"], None, 2, None).slots
    assert slots == [DeviceShare("cpu", number=number) for number in range(3)]


def test_without_ray_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        CafedclError, match="--ray: ray is not installed; install the extra ray: pip"
    ):
        choose_launcher([], None, 1, "auto")


def test_the_views(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s1")
    work = jobs(tmp_path / "out", 3)
    outcomes_of(work, 1, PlainView(sys.stdout, Count(3, 9)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "started   digits/auto/fedavg/s0"
    assert lines[1].startswith("finished  digits/auto/fedavg/s0  1/3  accuracy 70.0")
    assert lines[3].startswith("failed    digits/auto/fedavg/s1  2/3  on fire")
    assert lines[5].endswith("0:00 left")
    outcomes_of(work, 1, JsonView(sys.stdout))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["status"] for one in said] == ["skipped", "skipped", "failed"]
    with LiveView(Console(force_terminal=True, width=120), Count(3, 9)) as view:
        outcomes_of(jobs(tmp_path / "other", 3), 1, view)
        view.live.refresh()
        crowd = pool(1, view)
        (tmp_path / "other" / work[0].place / "metrics.jsonl").unlink()
        held = tmp_path / "held"
        held.touch()
        monkeypatch.setenv("STUB_HELD", str(held))
        crowd.start(jobs(tmp_path / "other")[0])
        (one,) = crowd.running
        while one.tail.rounds < 2:
            crowd.wait()
        view.live.refresh()
        assert one.left is not None
        held.unlink()
        crowd.finish()
    drawn = capsys.readouterr().out
    assert "failed: digits/auto/fedavg/s1: on fire" in drawn
    assert "3/3" in drawn
    assert "2 finished, 1 failed, 0 running, 0 waiting" in drawn
    assert "2/3" in drawn
    assert "60.0 %" in drawn


def test_a_run_whose_rounds_were_all_skipped_has_failed(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, 1)
    settings = {
        **{"model.name": "mlp", "engine.workers": 1},
        "federation.drop": ["0:0,1", "1:0,1", "2:0,1"],
    }
    with pytest.raises(CafedclError, match="has learned nothing"):
        api.run("fedavg", clients=2, rounds=3, device="cpu", settings=settings, out=job.folder)
    (outcome,) = outcomes_of([job])
    assert outcome.status == "failed"
    assert "no round was aggregated" in outcome.error


@pytest.mark.parametrize("line", ["[]", "{}", "null", "3", '{"server": [1]}'])
def test_progress_ignores_a_damaged_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    tail = Tail(tmp_path)
    tail.read()
    assert (tail.rounds, tail.last) == (0, None)


def test_progress_of_metrics_that_are_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    tail = Tail(tmp_path)
    tail.read()
    assert tail.rounds == 0
