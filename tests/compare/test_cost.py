import math
import time
from pathlib import Path

import pytest
from comparing import jobs, outcomes_of, pool
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.compare.cost import MEASURED_ROUNDS, Costs, RunCost, parse_duration, short_run
from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.pool import polite, run_all
from cafedcl.core.errors import CafedclError
from cafedcl.task.resolve import resolve


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800), ("2d", 172800)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5 m", "10x", "m", "0", "1h 30"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(CafedclError, match="such as 90s, 30m or 1h30m"):
        parse_duration(text, "--budget")


def planned(folder: Path, place: str = "fedavg/s0") -> RunSpec:
    tables = {
        "method": {"name": place.partition("/")[0]},
        "federation": {"rounds": 40, "clients": 3},
        "evaluate": {"own_every": 10},
        "train": {"epochs": 5},
    }
    return RunSpec.of(folder, place, tables)


def test_a_cost_is_that_of_the_start_of_all_rounds_and_of_all_scorings(tmp_path: Path) -> None:
    """The second of three rounds counts, with five epochs in place of one; four are scored."""
    spent = [(7.0, 1.0, 0.0), (2.0, 0.5, 0.0), (3.0, 0.5, 4.0)]
    lines = [
        {"seconds": {"train": train, "aggregate": aggregate, "evaluate": evaluate}}
        for train, aggregate, evaluate in spent
    ]
    cost = RunCost.of(lines, 30.0, epochs=5)  # type: ignore[arg-type]
    assert cost == RunCost(start=12.0, round=10.5, scoring=4.0)
    assert cost.seconds(planned(tmp_path)) == 12.0 + 40 * 10.5 + 4 * 4.0


def test_a_short_run_has_three_rounds_of_one_epoch_and_is_scored_once(tmp_path: Path) -> None:
    job = planned(tmp_path / "study")
    short = short_run(job, tmp_path / "short", 2)
    config = resolve(short.tables)
    assert (short.rounds, config.train.epochs) == (MEASURED_ROUNDS, 1)
    assert config.evaluate.every == config.evaluate.own_every == MEASURED_ROUNDS

    assert config.federation.clients == 3
    assert short.folder == tmp_path / "short" / "2" / "s0"
    assert resolve(job.tables).federation.rounds == 40, "the planned run stays as it was"


def test_a_run_that_scores_no_own_models_costs_the_scoring_of_the_servers(tmp_path: Path) -> None:
    tables = {"federation": {"rounds": 20}, "evaluate": {"every": 5, "own_every": 0}}
    job = RunSpec.of(tmp_path, "one/s0", tables)
    short = short_run(job, tmp_path / "short", 0)
    assert resolve(short.tables).evaluate.own_every == 0
    assert RunCost(start=1.0, round=0.0, scoring=2.0).seconds(job) == 1.0 + 4 * 2.0


def ended(job: RunSpec, seconds: float, made: int = 40) -> RunOutcome:
    return RunOutcome(job, "finished", seconds=seconds, made=made)


def test_what_runs_took_corrects_those_of_their_method_and_until_then_all_others(
    tmp_path: Path,
) -> None:
    one, same, other = (
        planned(tmp_path, place) for place in ("fedavg/s0", "fedavg/s1", "fedprox/s0")
    )
    costs = Costs({one.folder: 10.0, same.folder: 10.0, other.folder: 20.0})
    assert (costs.seconds(same), costs.seconds(other)) == (10.0, 20.0)
    costs.learn(ended(one, 30.0))
    assert (costs.seconds(same), costs.seconds(other)) == (30.0, 60.0)
    costs.learn(ended(other, 20.0))
    assert (costs.seconds(same), costs.seconds(other)) == (30.0, 20.0)
    assert costs.total([one, same, other], 2) == 40.0


def test_runs_that_failed_or_were_resumed_teach_nothing(tmp_path: Path) -> None:
    job = planned(tmp_path)
    costs = Costs({job.folder: 10.0})
    costs.learn(ended(job, 1.0, made=7))
    costs.learn(RunOutcome(job, "failed", "no", 1.0, 40))
    assert costs.seconds(job) == 10.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_run_fits_if_it_ends_before_the_deadline(seconds: float, left: float) -> None:
    job = planned(Path("study"))
    now = time.monotonic()
    costs = Costs({job.folder: seconds}).until(now + left)
    if abs(seconds - left) > 60:
        assert costs.fits(job) == (seconds < left)
    assert costs.until(math.inf).fits(job)


class Small:
    """An allowance for so many runs, none of the second seed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: list[RunOutcome] = []

    def fits(self, job: RunSpec) -> bool:
        return job.seed != 1 and len(self.seen) < self.number

    def learn(self, outcome: RunOutcome) -> None:
        self.seen.append(outcome)


@pytest.mark.usefixtures("stub")
def test_runs_that_do_not_fit_are_passed_over_and_left_for_later(tmp_path: Path) -> None:
    work = jobs(tmp_path / "out", 5)
    allowance = Small(3)
    crowd = pool(1)
    with polite(crowd):
        outcomes = run_all(work, crowd, allowance)
    assert [outcome.job.seed for outcome in outcomes] == [0, 2, 3]
    assert allowance.seen == outcomes
    rest = outcomes_of(work)
    assert {outcome.job.seed: outcome.status for outcome in rest} == {
        0: "skipped",
        1: "finished",
        2: "skipped",
        3: "skipped",
        4: "finished",
    }
