from collections.abc import Callable
from math import atan, pi
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

import cafedcl
from cafedcl.compare import python
from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.core.errors import CafedclError

SETTINGS = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1, "train.iterations": 1}
GRID = {"grid": {"train.lr": [0.1]}}
QUICK = {"clients": 2, "rounds": 1, "settings": SETTINGS, "jobs": 1, "devices": ["cpu"]}


@pytest.mark.usefixtures("shared_processes")
def test_methods_are_compared_and_finished_runs_are_kept(tmp_path: Path) -> None:
    methods = ["fedavg", "local"]
    found = cafedcl.compare(methods, tmp_path / "study", seeds=2, **QUICK)
    table = found.table
    assert sorted(table["method"]) == methods
    assert {"accuracy_mean", "balanced_mean", "worst_class_mean", "recall[0]"} <= set(table)
    before = sorted(tmp_path.rglob("metrics.jsonl"))
    times = [file.stat().st_mtime_ns for file in before]
    assert cafedcl.compare(methods, tmp_path / "study", seeds=2, **QUICK).table.equals(table)
    assert [file.stat().st_mtime_ns for file in before] == times
    page = cafedcl.report(tmp_path / "study", tmp_path / "page.html")
    assert "<title>cafedcl" in page.read_text()


def accuracies(folder: Path, seeds: int) -> list[float]:
    runs = [cafedcl.load(folder / f"s{seed}") for seed in range(seeds)]
    return [100 * run.records[-1]["server"]["accuracy"] for run in runs]


@pytest.mark.usefixtures("shared_processes")
def test_the_tests_are_those_of_the_seeds(tmp_path: Path) -> None:
    """Two seeds: a t-test with one degree of freedom, whose distribution is Cauchy's."""
    quick = {**QUICK, "settings": {**SETTINGS, "train.iterations": 10}, "rounds": 2}
    found = cafedcl.compare(["fedavg", "cafedcl"], tmp_path, seeds=2, **quick)
    (row,) = found.tests.to_dict("records")
    assert (row["data"], row["clients"], row["seeds"], row["score"]) == ("digits", 2, 2, "accuracy")
    folders = {run.parents[1].name: run.parents[1] for run in tmp_path.rglob("s0/metrics.jsonl")}
    ours, theirs = (accuracies(folders[row[name]], 2) for name in ("best", "runner_up"))
    gaps = [our - their for our, their in zip(ours, theirs, strict=True)]
    assert row["difference"] == pytest.approx(mean(gaps))
    # The standard error of the mean of two numbers is half their distance.
    t = mean(gaps) / (abs(gaps[0] - gaps[1]) / 2)
    assert row["p_ttest"] == pytest.approx(1 - 2 / pi * atan(abs(t)))
    pair = f"{row['best']} against {row['runner_up']}"
    shown = found._repr_html_()
    assert "accuracy_mean" in shown
    assert pair in shown
    assert repr(found).startswith(f"<ComparisonResult: {pair}: ")
    assert len(repr(found)) < 300


@pytest.mark.usefixtures("shared_processes")
def test_a_sweep_names_its_best_point(tmp_path: Path) -> None:
    grid = {"train.lr": [1e-9, 0.2]}
    quick = {**QUICK, "settings": {**SETTINGS, "train.iterations": 20}, "rounds": 2}
    found = cafedcl.sweep("fedavg", tmp_path, grid=grid, on="validation", **quick)
    assert found.best == {"train.lr": 0.2}
    assert list(found.table["train.lr"]) == [0.2, 1e-9]
    values = found.table["server.balanced"]
    assert values[0] == found.value > values[1]
    assert "the test set was not used" in found.measured_on
    assert "held out of the training set" in found._repr_html_()
    (run,) = tmp_path.glob("lr=0.2/s0")
    assert cafedcl.load(run).records[-1]["server"]["balanced"] == found.value


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, r"^sweep: give grid=\{'train.lr': \[0.03, 0.1\]\}, or tune=20"),
        ({**GRID, "tune": 2}, "^grid: it cannot be combined with tune, ranges, choices or prune$"),
        ({"tune": 2}, "^tune: name what to search with ranges"),
        ({"grid": {"train.lr": [-1.0]}}, r"train\.lr = -1\.0"),
        ({"grid": {"train.lr": 0.1}}, "^grid: train.lr: a list of values is expected, not 0.1$"),
        ({"grid": {"train.lr": []}}, "^train.lr: there are no values to try$"),
        ({"grid": {"lr": [0.1]}}, "^grid: 'lr': did you mean 'train.lr'"),
        ({"grid": "train.lr=0.1"}, "^grid = 'train.lr=0.1': expected {"),
        ({**GRID, "seeds": [0, 1]}, r"^seeds = \[0, 1\]: a whole number"),
        ({**GRID, "seeds": 0}, "^seeds 0: it must be at least 1$"),
        ({**GRID, "score": "acc"}, "^score acc: there is no such score"),
        ({"tune": 2, "ranges": {"train.lr": (0.3,)}}, r"^ranges: train.lr: \(low, high\) or"),
        ({"tune": 2, "ranges": {"train.lr": 0.3}}, r"^ranges: train.lr: \(low, high\) or"),
        ({"tune": 2, "ranges": ["train.lr=0.1..0.2"]}, r"^ranges = \['train.+: expected"),
        ({"tune": -1, "ranges": {"train.lr": (0.1, 0.2)}}, "^tune = -1: it must be at least 1$"),
        ({"tune": 1.5, "ranges": {"train.lr": (0.1, 0.2)}}, "^tune = 1.5: a whole number"),
        ({**GRID, "jobs": "2"}, "^jobs = '2': a whole number is expected"),
        ({"tune": 2, "ranges": {"train.lr": (0.3, 0.01)}}, "the first number must be smaller"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(CafedclError, match=said):
        cafedcl.sweep("fedavg", tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "asked", "said"),
    [
        ([], {}, r"^methods: name at least one, such as \['fedavg', 'cafedcl'\]$"),
        ("fedavg,fedavg", {}, "^methods: 'fedavg' is given twice"),
        ("fedvag", {}, "did you mean 'fedavg'"),
        ("fedavg", {"data": Path("nowhere")}, "nowhere"),
        ("fedavg", {"settings": {"train": {"lr": 0.1}}}, "^settings: 'train': a name such as"),
    ],
)
def test_a_mistake_in_a_comparison_is_one_line(
    tmp_path: Path, methods: Any, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(CafedclError, match=said):
        cafedcl.compare(methods, tmp_path / "out", **asked)


@pytest.mark.usefixtures("shared_processes")
def test_numbers_of_numpy_are_numbers_and_a_device_may_be_one_word(tmp_path: Path) -> None:
    numbers = {"seeds": np.int64(1), "first_seed": np.uint8(2)}
    cafedcl.compare("fedavg", tmp_path / "a", **QUICK | numbers | {"devices": "cpu"})
    assert (tmp_path / "a/digits/auto/fedavg/s2").is_dir()
    choices = {"train.batch_size": [np.int64(16)], "train.lr": np.array([0.1])}
    result = cafedcl.sweep("fedavg", tmp_path / "b", tune=np.int64(1), choices=choices, **QUICK)
    assert result.best == {"train.batch_size": 16, "train.lr": 0.1}


def test_ranges_can_be_numbers() -> None:
    given = {"train.lr": (0.01, 0.3, "log"), "train.momentum": (0, 0.9), "method.mu": "0..1"}
    expected = {"train.lr": "0.01..0.3:log", "train.momentum": "0..0.9", "method.mu": "0..1"}
    assert python.ranges_by_name(given) == expected


def fail(job: RunSpec) -> RunOutcome:
    return RunOutcome(job, "failed", "on fire")


@pytest.mark.parametrize(
    "call",
    [
        lambda out: cafedcl.compare(["fedavg"], out, **QUICK),
        lambda out: cafedcl.sweep("fedavg", out, grid={"train.lr": [0.1]}, **QUICK),
    ],
    ids=["compare", "sweep"],
)
def test_failed_runs_are_an_error_and_not_the_end_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], Any]
) -> None:
    run_all = lambda jobs, _: [fail(job) for job in jobs]  # noqa: E731
    monkeypatch.setattr("cafedcl.compare.run.run_all", run_all)
    with pytest.raises(CafedclError, match=r"1 of 1 runs failed; the first is .*: on fire"):
        call(tmp_path)


def test_an_interrupt_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cafedcl.compare.run.run_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cafedcl.compare(["fedavg"], tmp_path, **QUICK)


def test_a_search_whose_trials_all_failed_has_no_best_point() -> None:
    plan = python.Sweep.make(
        {"method.name": "fedavg", "data.name": "digits"},
        tune=1, grid={}, ranges={"train.lr": "0.1..0.2"}, choices={}, score=None, on=None,
        hold_out=None, prune=False, seeds=None, first_seed=None,
    )  # fmt: skip
    result = python.SweepResult(plan, "images", [({"train.lr": 0.1}, None)], [])
    assert not result.has_score
    with pytest.raises(CafedclError, match="no point of the sweep has a score"):
        result.best  # noqa: B018


def test_names_of_classes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "method,worst_class_name,accuracy_mean\nfedavg,01,5\ncafedcl,NA,\n"
    monkeypatch.setattr(python, "as_csv", lambda scores: text)
    table = python.ComparisonResult(None).table
    assert list(table["worst_class_name"]) == ["01", "NA"]
    assert table["accuracy_mean"].isna().tolist() == [False, True]
