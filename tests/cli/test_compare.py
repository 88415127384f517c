import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from cafedcl import api
from cafedcl.cli.compare import compare
from cafedcl.compare import devices as schedule_devices
from cafedcl.compare import jobs as schedule_jobs
from cafedcl.compare import pool as schedule_pool
from cafedcl.compare.devices import choose_launcher, device_share
from cafedcl.compare.jobs import DeviceShare, LocalLauncher, RunOutcome, RunSpec
from cafedcl.compare.plan import Comparison, planned, split_names
from cafedcl.compare.pool import Pool, Tail, View, polite, run_all
from cafedcl.compare.progress import Count, JsonView, LiveView, PlainView
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.core.slug import slug
from cafedcl.federation.run_folder import RunFolder

STUB = """
import json, os, signal, sys, time
from pathlib import Path

def word(flag, default=None):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default

def stop(*_):
    print("interrupted; saved", file=sys.stderr)
    note("end")
    sys.exit(130)

def note(what):
    with open(os.environ["STUB_NOTES"], "a") as notes:
        notes.write(json.dumps([what, sys.argv[1], str(out), time.time()]) + "\\n")

signal.signal(signal.SIGTERM, stop)
out = Path(word("--out") or sys.argv[2])
note("start")
if os.environ.get("STUB_BROKEN", "nobody") in str(out):
    print("Traceback, of many lines\\nerror: on fire", file=sys.stderr)
    note("end")
    sys.exit(2)
(out / "checkpoints").mkdir(parents=True, exist_ok=True)
(out / "config.toml").touch()
file = out / "metrics.jsonl"
done = len(file.read_text().splitlines()) if file.exists() else 0
for number in range(done, 3):
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    with file.open("a") as lines:
        server = {"accuracy": 0.5 + number / 10}
        lines.write(json.dumps({"round": number, "status": "ok", "server": server}) + "\\n")
(out / "checkpoints" / "000003.safetensors").touch()
note("end")
"""

Notes = Callable[[], list[list[Any]]]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Jobs that only write three lines of metrics; gives what they noted: start or end, command,
    folder, time.
    """
    program, notes = tmp_path / "stub.py", tmp_path / "notes.jsonl"
    program.write_text(STUB)
    monkeypatch.setattr(schedule_jobs, "PROGRAM", (sys.executable, "-S", str(program)))
    monkeypatch.setattr(schedule_pool, "POLL", 0.01)
    monkeypatch.setenv("STUB_NOTES", str(notes))
    return lambda: (
        [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    )


def plan(**changes: Any) -> Comparison:
    asked: dict[str, Any] = {
        "methods": ["fedavg", "cafedcl"], "data": [], "splits": [], "seeds": 1, "first_seed": 0,
        "tables": {}, "settings": ["federation.rounds=3"],
    }  # fmt: skip
    return Comparison.make(**(asked | changes))


def jobs(out: Path, number: int = 2) -> list[RunSpec]:
    return plan(methods=["fedavg"], seeds=number).jobs(out)


def pool(slots: int = 2, view: View | None = None) -> Pool:
    return Pool(LocalLauncher([DeviceShare("cpu")] * slots), view or View())


def test_a_plan_is_methods_times_data_times_splits_times_seeds(tmp_path: Path) -> None:
    made = plan(
        splits=["dirichlet:0.1,pathological:2,ir=10"],
        data=["digits", "mnist"],
        seeds=3,
        first_seed=5,
    )
    places = [job.place for job in made.jobs(tmp_path)]
    assert len(places) == len(set(places)) == 2 * 2 * 2 * 3
    assert places[0] == "digits/dirichlet-0.1/fedavg/s5"
    assert places[3] == "digits/pathological-2,ir=10/cafedcl/s5"
    assert places[-1] == "mnist/pathological-2,ir=10/cafedcl/s7"
    first = made.jobs(tmp_path)[0]
    assert first.rounds == 3
    command = " ".join(first.command("cpu"))
    assert command.startswith("run --method fedavg --data digits --seed 5")
    assert '--set split.kind="dirichlet" --set split.alpha=0.1' in command
    assert "--set engine.workers=1" in command
    assert command.endswith(f"--device cpu --out {tmp_path}/{first.place} --quiet")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["iid"], ["iid"]),
        (["dirichlet:0.1,pathological:2"], ["dirichlet:0.1", "pathological:2"]),
        (
            ["pathological:2,ir=10,dirichlet:1", "iid"],
            ["pathological:2,ir=10", "dirichlet:1", "iid"],
        ),
    ],
)
def test_splits_may_have_commas_of_their_own(given: list[str], names: list[str]) -> None:
    assert split_names(given) == names


def test_names_of_folders_are_plain() -> None:
    assert slug("cafedcl:no-geo") == "cafedcl-no-geo"
    assert slug("../a b/ü") == "a-b-ü"
    assert slug("//") == "-"


def test_options_go_to_the_methods_that_have_them() -> None:
    tables = {
        "method": {"name": "cafedcl", "lam_geo": 0.5},
        "train": {"lr": 0.2},
        "engine": {"device": "cpu"},
    }
    made = plan(
        methods=["fedavg", "fedprox", "cafedcl:no-geo", "cafedcl"],
        tables=tables,
        settings=["method.mu=0.3"],
    )
    assert made.options == {
        "fedavg": {},
        "fedprox": {"method.mu": 0.3},
        "cafedcl:no-geo": {"method.lam_geo": 0.5},
        "cafedcl": {"method.lam_geo": 0.5},
    }
    assert made.settings == {"train.lr": 0.2}, "the device is not part of the plan"


def test_augmentations_are_part_of_a_methods_name_and_their_options_go_to_those_that_have_them(
    tmp_path: Path,
) -> None:
    made = plan(
        methods=["fedavg", "fedproto+gan", "cafedcl:no-geo+none"],
        tables={"augment": {"name": "mixup", "alpha": 0.3}},
        settings=["augment.steps=7"],
    )
    assert made.options == {
        "fedavg+mixup": {"augment.alpha": 0.3},
        "fedproto+gan": {"augment.steps": 7},
        "cafedcl:no-geo+none": {},
    }
    places = [job.place for job in made.jobs(tmp_path)]
    assert places == [
        f"digits/auto/{name}/s0" for name in ("fedavg+mixup", "fedproto+gan", "cafedcl-no-geo+none")
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["fedavg", "fedavg"]}, "'fedavg' is given twice"),
        ({"methods": ["fedvg"]}, "did you mean 'fedavg'"),
        ({"splits": ["dirichlt:0.1"]}, "did you mean 'dirichlet'"),
        ({"splits": ["iid,iid"]}, "given twice"),
        ({"seeds": 0}, "--seeds 0"),
        ({"first_seed": -1}, "--first-seed -1"),
        ({"settings": ["method.lam_geoo=1"]}, "none of fedavg, cafedcl has such an option"),
        (
            {"settings": ["augment.steps=1"]},
            "--set augment.steps: none of fedavg, cafedcl has such an option",
        ),
        ({"methods": ["fedavg+gna"]}, "did you mean 'gan'"),
        ({"settings": ["train.lr=-1"]}, "train.lr = -1: it must be greater than 0"),
        ({"tables": {"trian": {}}}, "[trian]: there is no such section"),
        ({"tables": {"train": 3}}, "a section is expected"),
        ({"data": ["a/x.npz", "b/x.npz"]}, "two runs would share the folder x/auto/cafedcl/s0"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CafedclError) as error:
        plan(**changes).jobs(tmp_path)
    assert said in str(error.value)


def hold(out: Path, made: Comparison) -> AbstractContextManager[None]:
    return planned(out, made.to_plain(), "compare.toml", "compare")


def test_the_plan_is_kept_and_another_one_is_refused(tmp_path: Path) -> None:
    made, out = plan(splits=["iid"], settings=["train.lr=0.2", "method.tau=0.3"]), tmp_path / "out"
    with (
        hold(out, made),
        pytest.raises(CafedclError, match="in use by another run"),
        hold(out, made),
    ):
        pass
    with hold(out, made):
        assert Comparison.from_plain(read_file(out / "compare.toml")) == made
    other = plan(splits=["iid"], settings=["train.lr=0.3", "method.tau=0.3"])
    said = r"settings: train.lr is 0.2 there and 0.3 here\); resume it with"
    with pytest.raises(CafedclError, match=said), hold(out, other):
        pass
    with pytest.raises(CafedclError, match="not a plan of `cafedcl compare`"):
        Comparison.from_plain({"methods": []})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(CafedclError, match="holds no plan"), hold(tmp_path / "full", other):
        pass


def test_finished_runs_are_skipped_unfinished_resumed_missing_started(
    stub: Notes, tmp_path: Path
) -> None:
    work = jobs(tmp_path / "out", 3)
    run_all(work[:2], pool())
    lines = (work[1].folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (work[1].folder / "metrics.jsonl").write_text("".join(lines[:1]))
    before = len(stub())
    outcomes = run_all(work, pool())
    assert {o.job.place[-2:]: o.status for o in outcomes} == {
        "s0": "skipped",
        "s1": "finished",
        "s2": "finished",
    }
    started = {
        (Path(folder).name, command)
        for what, command, folder, _ in stub()[before:]
        if what == "start"
    }
    assert started == {("s1", "resume"), ("s2", "run")}
    assert {o.made for o in outcomes if o.job.place.endswith("s1")} == {2}


@pytest.mark.parametrize("slots", [1, 3])
def test_never_more_jobs_than_slots(
    stub: Notes, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_SECONDS", "0.02")
    run_all(jobs(tmp_path / "out", 7), pool(slots))
    events = sorted((when, 1 if what == "start" else -1) for what, _, _, when in stub())
    running = [sum(step for _, step in events[: i + 1]) for i in range(len(events))]
    assert max(running) <= slots
    assert len(events) == 14


def test_a_failing_job_is_isolated(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s1")
    outcomes = {o.job.place[-2:]: o for o in run_all(jobs(tmp_path / "out", 3), pool())}
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
    monkeypatch.setattr(schedule_jobs, "PROGRAM", (str(tmp_path / "nothing"),))
    with pytest.raises(CafedclError, match="the run cannot be started"):
        run_all(jobs(tmp_path / "out"), pool())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_stops_the_children_politely(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("STUB_SECONDS", "20")
    crowd, handler = pool(), signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        while len(stub()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    work = jobs(tmp_path / "out", 3)
    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), polite(crowd):
        run_all(work, crowd)
    assert time.monotonic() - began < 10
    assert crowd.running == []
    assert [what for what, *_ in stub()] == ["start", "start", "end", "end"], (
        "the third was never started"
    )
    assert work[0].log.read_text() == "interrupted; saved\n"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_child_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(schedule_jobs, "PROGRAM", (sys.executable, "-S", "-c", stubborn))
    crowd = pool()
    crowd.start(jobs(tmp_path)[0])
    time.sleep(0.3)
    (outcome,) = crowd.finish(grace=0.2)
    assert outcome.status == "stopped"
    assert crowd.running == []


def test_the_tail_follows_a_growing_file_and_one_that_is_rewound(tmp_path: Path) -> None:
    tail, file = Tail(tmp_path), tmp_path / "metrics.jsonl"
    tail.read()
    assert (tail.rounds, tail.last) == (0, None)
    file.write_text('{"round": 0, "server": {"accuracy": 0.5}}\n{"round": 1, "ser')
    tail.read()
    assert tail.rounds == 1
    file.write_text(
        '{"round": 0, "server": {"accuracy": 0.5}}\n{"round": 1, "server": null, "own": null}\n'
    )
    tail.read()
    assert tail.rounds == 2
    assert tail.last == {"round": 0, "server": {"accuracy": 0.5}}
    file.write_text('{"round": 0, "server": {"accuracy": 0.5}}\n')
    tail.read()
    assert tail.rounds == 1


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
    assert device_share("cuda:1") == DeviceShare("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-7"})
    with pytest.raises(CafedclError, match="this machine has 2 CUDA devices"):
        device_share("cuda:2")
    with pytest.raises(CafedclError, match="there is no such device"):
        device_share("cuda:x")
    with pytest.raises(CafedclError, match="--jobs 0"):
        choose_launcher([], 0, 1, None)
    monkeypatch.setattr(schedule_devices, "cores", lambda: 6)
    assert choose_launcher(["cpu"], None, 2, None).slots == [DeviceShare("cpu")] * 3


def test_without_ray_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        CafedclError, match="--ray: ray is not installed; install it with: pip install ray"
    ):
        choose_launcher([], None, 1, "auto")


def test_the_views(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "/s1")
    work = jobs(tmp_path / "out", 3)
    run_all(work, pool(1, PlainView(sys.stdout, Count(3, 9))))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "started   digits/auto/fedavg/s0"
    assert lines[1].startswith("finished  digits/auto/fedavg/s0  1/3  accuracy 70.0")
    assert lines[3].startswith("failed    digits/auto/fedavg/s1  2/3  on fire")
    assert lines[5].endswith("0:00 left")
    run_all(work, pool(1, JsonView(sys.stdout)))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["status"] for one in said] == ["skipped", "skipped", "failed"]
    with LiveView(Console(force_terminal=True, width=120), Count(3, 9)) as view:
        run_all(jobs(tmp_path / "other", 3), pool(1, view))
        view.live.refresh()
        crowd = pool(1, view)
        (tmp_path / "other" / work[0].place / "metrics.jsonl").unlink()
        monkeypatch.setenv("STUB_SECONDS", "0.1")
        crowd.start(jobs(tmp_path / "other")[0])
        (one,) = crowd.running
        while one.tail.rounds < 2:
            crowd.wait()
        view.live.refresh()
        assert one.left is not None
        crowd.finish()
    drawn = capsys.readouterr().out
    assert "failed: digits/auto/fedavg/s1: on fire" in drawn
    assert "3/3" in drawn
    assert "2 finished, 1 failed, 0 running, 0 waiting" in drawn
    assert "2/3" in drawn
    assert "60.0 %" in drawn


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(compare)
    made.callback()(lambda: None)
    return made


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app(), ["compare", *map(str, arguments)])


def test_the_command_lists_failures_and_its_status_is_one(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "cafedcl/s0")
    out = tmp_path / "out"
    asked = [
        "--methods",
        "fedavg,cafedcl",
        "--rounds",
        3,
        "--out",
        out,
        "--jobs",
        2,
        "--devices",
        "cpu",
    ]
    done = call(*asked, "--quiet")
    assert done.exit_code == 1
    assert f"failed: {out}/digits/auto/cafedcl/s0: on fire" in done.stderr
    assert f"failed runs: 1; try them again with: cafedcl compare --resume {out}" in done.stderr
    assert done.stdout == ""
    monkeypatch.delenv("STUB_BROKEN")
    again = call("--resume", out, "--json", "--devices", "cpu")
    assert again.exit_code == 0, again.output
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == [
        "skipped",
        "finished",
    ]
    assert "holds another plan (seeds is 1 there and 2 here)" in str(
        call(*asked, "--seeds", 2).exception
    )
    assert "--resume: the folder holds the plan" in str(
        call("--resume", out, "--rounds", 3).exception
    )
    assert "there is no plan to resume" in str(call("--resume", tmp_path).exception)
    assert "--out: name the folder" in str(call("--methods", "fedavg").exception)


def test_an_interrupted_command_says_how_to_go_on(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> list[RunOutcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr("cafedcl.compare.run.run_all", interrupt)
    done = call("--methods", "fedavg", "--out", tmp_path / "out", "--devices", "cpu")
    assert done.exit_code == 130
    assert (
        f"interrupted; saved. Resume with: cafedcl compare --resume {tmp_path}/out" in done.stderr
    )


@pytest.mark.slow
def test_a_run_of_a_comparison_is_the_single_run(tmp_path: Path) -> None:
    settings = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    asked = [
        "--methods",
        "fedavg,fedproto",
        "--splits",
        "iid",
        "--first-seed",
        3,
        "--clients",
        3,
        "--rounds",
        2,
    ]
    done = call(*asked, *words, "--out", tmp_path / "out", "--devices", "cpu")
    assert done.exit_code == 0, done.output
    assert "2/2" in done.stdout
    assert "Acc." in done.stdout
    settings["engine.workers"] = 1
    alone = api.run(
        "fedavg", split="iid", clients=3, rounds=2, seed=3, device="cpu", settings=settings
    )
    lines = RunFolder(tmp_path / "out" / "digits" / "iid" / "fedavg" / "s3").metrics()
    for line in [*lines, *alone.records]:
        line.pop("seconds")
    assert lines == json.loads(json.dumps(alone.records))
