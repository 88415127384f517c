import json
import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
from comparing import scored_line
from typer.testing import CliRunner

import cafedcl
from cafedcl.cli.compare import sweep as command
from cafedcl.compare import pool as schedule_pool
from cafedcl.compare.jobs import DeviceShare, Handle, RunSpec
from cafedcl.compare.pool import Pool, View
from cafedcl.compare.sweep import SWEEP_SCORES, Sweep, check_score
from cafedcl.compare.swept_values import Range
from cafedcl.compare.tune import Search
from cafedcl.config.format import FORMAT
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.federation.checkpoint import Checkpoint
from cafedcl.task.resolve import gather

ROUNDS = 6


class Ended:
    """A job that is over, or one that never ends by itself."""

    def __init__(self, status: int | None) -> None:
        self.status = status

    def poll(self) -> int | None:
        return self.status

    def stop(self) -> None:
        self.status = 130

    kill = stop


class Instant:
    """Jobs that are done at once: a score that is best at a learning rate of 0.05 and with
    method.geo = cross.
    """

    def __init__(self, slots: int = 2) -> None:
        self.slots = [DeviceShare("cpu")] * slots
        self.launched: list[str] = []
        self.broken: set[str] = set()
        self.endless = False

    def close(self) -> None:
        pass

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        out = Path(
            arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[1]
        )
        self.launched.append(f"{out.parent.name}/{out.name}")
        if self.launched[-1] in self.broken:
            log.write_text("error: on fire\n")
            return Ended(2)
        words = dict(word.split("=", 1) for word in arguments if "=" in word)
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        (out / "config.toml").touch()
        miss = math.log10(float(words.get("train.lr", 0.05)) / 0.05) ** 2 + 0.1 * (
            words.get("method.geo") == '"batch"'
        )
        rounds = ROUNDS // 3 if self.endless else ROUNDS
        scores = dict.fromkeys(("accuracy", "balanced"), 0.9 - miss)
        scores |= {"client_std": miss, "few": None}
        lines = [scored_line(t, scores) for t in range(rounds)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if self.endless:
            return Ended(None)
        Checkpoint(ROUNDS, {}).write(out / "checkpoints" / f"{ROUNDS:06d}.safetensors")
        return Ended(0)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_pool, "POLL", 0.001)


def made(**changes: Any) -> Sweep:
    plain: dict[str, Any] = {
        "settings": {"method.name": "cafedcl", "data.name": "digits", "federation.rounds": ROUNDS},
        "seeds": 1, "first_seed": 0, "score": "server.accuracy", "on": "test", "hold_out": 0.1,
        "grid": {},
        "ranges": {}, "choices": {}, "prune": False,
    }  # fmt: skip
    return Sweep.from_plain(plain | changes)


TUNED = {"ranges": {"train.lr": "0.001..0.9:log"}, "choices": {"method.geo": ["batch", "cross"]}}


def test_a_grid_is_every_combination_in_folders_of_their_own(tmp_path: Path) -> None:
    grid = {"method.lam_geo": [0, 0.1, 1], "method.gamma": [0.2, 0.6]}
    plan = made(grid=grid, seeds=2)
    points = plan.points()
    assert len(points) == 6
    assert points[0] == {"method.lam_geo": 0, "method.gamma": 0.2}
    assert [plan.place(point) for point in points][3] == "lam_geo=0.1,gamma=0.6"
    job = plan.jobs(tmp_path, plan.place(points[3]), points[3])[1]
    assert job.folder == tmp_path / "lam_geo=0.1,gamma=0.6" / "s1"
    assert "method.lam_geo=0.1" in job.arguments
    assert "engine.workers=1" in job.arguments
    both = made(grid={"train.momentum": [0.0], "train.lr": [0.1], "evaluate.shots": [[100, 20]]})
    assert both.place(both.points()[0]) == "momentum=0.0,lr=0.1,shots=100,-20"
    signs = made(grid={"method.lam": [-0.7, 0.7]}, settings={"method.name": "fedrcl"})
    assert [signs.place(point) for point in signs.points()] == ["lam=-0.7", "lam=0.7"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train.lr", "0.1", r"low\.\.high"),
        ("train.lr", "0.1..0.5:cube", r"low\.\.high"),
        ("train.lr", "a..0.5", "numbers are expected"),
        ("train.lr", "0.5..0.1", "the first number must be smaller"),
        ("train.lr", "0.1..inf", "the first number must be smaller"),
        ("train.momentum", "0..0.5:log", "greater than 0"),
        ("train.lr", "-1..0.5", "it must be greater than 0"),
        ("train.epochs", "1..2.5", "whole numbers are expected"),
        ("train.epoch", "1..2", "did you mean 'epochs'"),
        ("method.geo", "1..2", "use --choice method.geo"),
        ("store.notes", "0..1", "use --choice store.notes"),
    ],
)
def test_ranges_that_cannot_be_are_one_line(name: str, text: str, said: str) -> None:
    with pytest.raises(CafedclError, match=said):
        made(ranges={name: text})


def test_ranges_have_the_type_of_their_option() -> None:
    plan = made(ranges={"train.lr": "0.1..0.5:log", "train.epochs": "1..5"})
    assert plan.space == [
        Range("train.lr", 0.1, 0.5, True, False),
        Range("train.epochs", 1, 5, False, True),
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "server.acuracy"}, "did you mean 'server.accuracy'"),
        ({"on": "train"}, "validation or test"),
        ({"hold_out": 1.0}, "between 0 and 1"),
        ({"grid": {"method.lam_geoo": [1]}}, "did you mean 'lam_geo'"),
        ({"choices": {"method.geo": ["batch", "cros"]}}, "did you mean 'cross'"),
        ({"seeds": 0}, "--seeds 0"),
        ({"grid": {"run.seed": [5, 6]}}, "every point has the same seeds; use --seeds"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CafedclError, match=said):
        made(**changes)


def test_images_are_not_held_out_in_vain() -> None:
    with pytest.raises(CafedclError, match=r"hold_out: .* on the test set .*; add on validation"):
        cafedcl.sweep("fedavg", grid={"train.lr": [0.1]}, out="sweep", hold_out=0.5)


def test_the_search_finds_the_optimum_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan, launcher = made(**TUNED, seeds=2), Instant()
    Search(plan, tmp_path).run(12, Pool(launcher, View()))
    first = list(launcher.launched)
    assert len(first) == 24
    search = Search(plan, tmp_path)
    search.run(30, Pool(launcher, View()))
    assert len(launcher.launched) == 60, "nothing was done twice"
    assert not set(first) & set(launcher.launched[24:])
    rates = {frozen.params["train.lr"] for frozen in search.study.get_trials()}
    assert len(rates) == 30, "no point was proposed twice"
    _, _, value, point = search.rows()[0]
    assert point["method.geo"] == "cross"
    assert 0.03 < point["train.lr"] < 0.08
    assert value == search.study.best_value > 0.88


def test_a_score_of_spread_is_made_small(tmp_path: Path) -> None:
    search = Search(made(**TUNED, score="server.client_std"), tmp_path)
    search.run(8, Pool(Instant(), View()))
    assert search.rows()[0][2] == min(row[2] for row in search.rows() if row[2] is not None)


def test_an_interrupted_trial_is_gone_on_with(tmp_path: Path) -> None:
    launcher = Instant(1)
    launcher.endless = True
    search, pool = Search(made(**TUNED), tmp_path), Pool(launcher, View())
    pool.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        search.run(2, pool)
    pool.finish()
    launcher.endless = False
    again = Search(made(**TUNED), tmp_path)
    again.run(2, Pool(launcher, View()))
    assert launcher.launched == ["trial-0000/s0", "trial-0000/s0", "trial-0001/s0"]
    assert [row[1] for row in again.rows()] == ["complete", "complete"]


def test_a_failed_trial_is_left_out(tmp_path: Path) -> None:
    launcher = Instant(1)
    launcher.broken = {"trial-0001/s0"}
    search = Search(made(**TUNED, seeds=2), tmp_path)
    search.run(3, Pool(launcher, View()))
    assert [(number, state) for number, state, _, _ in search.rows()][-1] == (1, "fail")
    assert [outcome.error for outcome in search.failures] == ["on fire"]
    assert "trial-0001/s1" not in launcher.launched, "its other seeds are not run"


def test_what_is_below_the_median_is_given_up(tmp_path: Path) -> None:
    plan, launcher = made(ranges=TUNED["ranges"], prune=True), Instant(1)
    search = Search(plan, tmp_path)
    search.run(5, Pool(launcher, View()))
    launcher.endless = True
    search.study.enqueue_trial({"train.lr": 0.9})
    search.run(6, Pool(launcher, View()))
    assert [(number, state) for number, state, _, _ in search.rows()][-1] == (5, "pruned")


def test_a_score_that_a_run_does_not_have_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CafedclError, match=r"this run has no server.few; choose another --score"):
        Search(made(**TUNED, score="server.few"), tmp_path).run(1, Pool(Instant(), View()))


def test_without_optuna_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        CafedclError, match="--tune: optuna is not installed; install the extra tune: pip"
    ):
        Search(made(**TUNED), tmp_path)


def call(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(command)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_the_command_searches_says_on_what_and_writes_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, out = Instant(), tmp_path / "out"
    monkeypatch.setattr("cafedcl.compare.run.choose_launcher", lambda *_: launcher)
    asked = [
        "--tune",
        4,
        "--range",
        "train.lr=0.01..0.3:log",
        "--rounds",
        ROUNDS,
        "--split",
        "iid",
        "--out",
        out,
    ]
    done = call(*asked)
    assert done.exit_code == 0, done.output
    assert (
        "server.balanced is measured on 143 images held out of the training set of digits"
        in done.stdout
    )
    assert "the test set was not used" in done.stdout
    assert "best: train.lr=" in done.stdout
    best = gather(out / "best.toml")
    assert read_file(out / "best.toml")["format"] == FORMAT
    assert best.data.name == "digits"
    assert best.federation.rounds == ROUNDS
    assert 0.01 < best.train.lr < 0.3
    assert "mean over 1 seed, on 143 images held out" in (out / "best.toml").read_text()
    again = call("--resume", out, "--quiet")
    assert (again.exit_code, again.output) == (0, "")
    assert len(launcher.launched) == 4
    assert "holds another plan (ranges: train.lr is" in str(
        call(*asked[:3], "train.lr=0.1..0.3", *asked[4:]).exception
    )


def test_the_command_runs_a_grid_and_says_that_it_looks_at_the_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, out = Instant(), tmp_path / "out"
    launcher.broken = {"lr=0.2/s1"}
    monkeypatch.setattr("cafedcl.compare.run.choose_launcher", lambda *_: launcher)
    monkeypatch.setattr("cafedcl.compare.run.show_table", lambda _: print("the table"))
    done = call("--grid", "train.lr=0.04,0.1,0.2", "--seeds", 2, "--rounds", ROUNDS, "--out", out)
    assert done.exit_code == 1
    assert "server.balanced is measured on the test set" in done.stdout
    assert "the table" in done.stdout
    assert f"failed: {out}/lr=0.2/s1: on fire" in done.stderr
    assert read_file(out / "best.toml")["train"]["lr"] == 0.04


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --grid"),
        (["--tune", 3], "--tune: name what to search"),
        (["--grid", "train.lr=1,2", "--tune", 3], "--grid: it cannot be combined with --tune"),
        (["--range", "train.lr=1..2"], "give --grid"),
    ],
)
def test_a_sweep_is_a_grid_or_a_search(arguments: list[object], said: str) -> None:
    assert said in str(call(*arguments, "--out", "x").exception)


def test_a_run_that_aggregated_nothing_has_no_score(tmp_path: Path) -> None:
    sweep = Sweep(
        settings={},
        seeds=1,
        first_seed=0,
        score="server.accuracy",
        on="test",
        hold_out=0.1,
        grid={},
        ranges={},
        choices={},
        prune=False,
    )
    job = RunSpec(tmp_path, "run", (), 1)
    job.folder.mkdir()
    for status, expected in (("ok", 0.5), ("skipped", math.nan)):
        line = {**scored_line(0, {"accuracy": 0.5}), "status": status}
        (job.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        assert sweep.score_of(job) == pytest.approx(expected, nan_ok=True)


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("junk")
    with pytest.raises(CafedclError, match=r"study\.db: cannot be opened: .*another --out$"):
        Search(made(**TUNED), tmp_path)


@pytest.mark.parametrize("name", ["lr?mode=ro", "{lr}", "50%25", "a b,c#d"])
def test_the_folder_of_a_search_may_have_any_name(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    out.mkdir()
    Search(made(**TUNED), out).run(1, Pool(Instant(1), View()))
    assert (out / "study.db").is_file()
    assert list(tmp_path.iterdir()) == [out]
    assert len(Search(made(**TUNED), out).rows()) == 1


def test_a_database_that_cannot_be_written_is_one_line_and_nothing_is_lost(tmp_path: Path) -> None:
    launcher = Instant(1)
    Search(made(**TUNED), tmp_path).run(1, Pool(launcher, View()))
    search = Search(made(**TUNED), tmp_path)
    with closing(sqlite3.connect(tmp_path / "study.db")) as other:
        refuse = "BEGIN SELECT RAISE(ABORT, 'full'); END"
        other.execute(f"CREATE TRIGGER full BEFORE INSERT ON trials {refuse}")
        other.commit()
        with pytest.raises(CafedclError, match=r"study\.db: cannot be written: full; .*repeat"):
            search.run(2, Pool(launcher, View()))
        other.execute("DROP TRIGGER full")
        other.commit()
    again = Search(made(**TUNED), tmp_path)
    again.run(2, Pool(launcher, View()))
    assert launcher.launched == ["trial-0000/s0", "trial-0001/s0"]


@pytest.mark.parametrize(
    ("method", "score", "said"),
    [
        ("fedproto", "server.accuracy", "fedproto has no server model; .*own.client_mean"),
        ("central", "own.client_mean", "central has no clients' own models; .*server.accuracy"),
    ],
)
def test_a_score_that_a_method_cannot_have_is_refused_before_training(
    method: str, score: str, said: str
) -> None:
    with pytest.raises(CafedclError, match=f"--score {score}: {said}"):
        check_score(score, method)
    check_score("own.client_mean", "fedproto")
    check_score("server.accuracy", "fedrod")


def test_a_score_of_own_models_needs_them_to_be_scored(tmp_path: Path) -> None:
    with pytest.raises(
        CafedclError, match=r"own.client_mean: evaluate.own_every = 0, .* at least 1"
    ):
        cafedcl.sweep(
            "fedavg",
            tmp_path / "sweep",
            grid={"train.lr": [0.1]},
            score="own.client_mean",
            settings={"evaluate.own_every": 0},
        )


def test_every_score_of_a_run_can_be_chosen() -> None:
    run = cafedcl.run("fedavg", rounds=1, clients=3, callbacks=[])
    parts = {part: run.records[-1][part] for part in ("server", "own")}
    names = {f"{part}.{name}" for part, scores in parts.items() for name in scores}
    counts = {name for name in names if name.endswith("missing")}
    assert names - counts <= set(SWEEP_SCORES)
