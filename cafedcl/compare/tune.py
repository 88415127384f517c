"""A search for the best options: Optuna proposes points, and the runs of all seeds score them."""

import math
import sqlite3
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.pool import Pool, skipped
from cafedcl.compare.sweep import Point, Sweep
from cafedcl.config.options import to_toml
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.federation.run_folder import CONFIG

if TYPE_CHECKING:
    import optuna

STUDY = "study.db"
TRIALS_BEFORE_PRUNING = 4
"""Finished trials before any is pruned."""


@dataclass(frozen=True)
class Trial:
    """A proposed point, and its runs."""

    number: int
    point: Point
    jobs: tuple[RunSpec, ...]


class Search:
    """A search that can be stopped and resumed.

    Optuna's database keeps the proposed points, and the run folders keep their scores.
    """

    def __init__(self, sweep: Sweep, out: Path) -> None:
        self.optuna = optional("optuna", "tune", "--tune")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.sweep = sweep
        self.out = out
        self.study: optuna.Study = self._open()
        self.active: dict[int, Trial] = {}
        self.queue: deque[RunSpec] = deque()
        self.failures: list[RunOutcome] = []

    def _open(self) -> "optuna.Study":
        name = "sweep"
        path = (self.out / STUDY).resolve()

        def connect() -> sqlite3.Connection:
            # SQLAlchemy uses a file's connection in several threads, one after another.
            return sqlite3.connect(path, check_same_thread=False)

        direction = "maximize" if self.sweep.higher else "minimize"
        try:
            # In an address of SQLAlchemy, `?`, `%` and `{` in a folder's name would be special.
            storage = self.optuna.storages.RDBStorage(
                f"sqlite:///{STUDY}", engine_kwargs={"creator": connect}
            )
            study: optuna.Study = self.optuna.create_study(
                study_name=name, storage=storage, direction=direction, load_if_exists=True
            )
        except Exception as error:  # a damaged database can raise anything
            raise CafedclError(
                f"{self.out / STUDY}: cannot be opened: {_reason(error)}; make it writable, "
                "restore it from a backup, or choose another --out"
            ) from None
        # With the same seed after an interruption, the sampler would draw the same points again.
        study.sampler = self.optuna.samplers.TPESampler(
            seed=self.sweep.first_seed + len(study.trials)
        )
        return study

    def run(self, trials: int, pool: Pool) -> None:
        """Run trials until there are ``trials`` of them; interrupted trials come first."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._run(trials, pool)
        except (SQLAlchemyError, self.optuna.exceptions.StorageInternalError) as error:
            raise CafedclError(
                f"{self.out / STUDY}: cannot be written: {_reason(error)}; finished runs are kept: "
                "repeat the command to resume the search"
            ) from None

    def _run(self, trials: int, pool: Pool) -> None:
        self.study.set_user_attr("trials", trials)
        for frozen in self.study.get_trials(states=(self.optuna.trial.TrialState.RUNNING,)):
            if frozen.params.keys() == {*self.sweep.ranges, *self.sweep.choices}:
                self.begin(frozen.number, dict(frozen.params), pool)
            else:
                self.tell(frozen.number, "FAIL")
        while True:
            # A point is proposed only when a slot is free, so that it can use all earlier scores.
            while pool.free and (self.queue or self.proposed() < trials):
                if self.queue:
                    pool.start(self.queue.popleft())
                else:
                    self.ask(pool)
            if not pool.running and not self.queue:
                return
            for outcome in pool.wait():
                self.take(outcome, pool)
            if self.sweep.prune:
                self.prune(pool)

    def proposed(self) -> int:
        """Return the number of points proposed so far."""
        waiting = self.optuna.trial.TrialState.WAITING
        return sum(frozen.state != waiting for frozen in self.study.get_trials(deepcopy=False))

    def ask(self, pool: Pool) -> None:
        """Propose a point."""
        trial = self.study.ask()
        point: Point = {}
        for one in self.sweep.space:
            if one.whole:
                point[one.name] = trial.suggest_int(
                    one.name, int(one.low), int(one.high), log=one.log
                )
            else:
                point[one.name] = trial.suggest_float(one.name, one.low, one.high, log=one.log)
        for name, values in self.sweep.choices.items():
            point[name] = trial.suggest_categorical(name, values)
        self.begin(trial.number, point, pool)

    def begin(self, number: int, point: Point, pool: Pool) -> None:
        """Queue the runs of a trial that are not finished."""
        trial = self.trial(number, point)
        self.active[number] = trial
        for job in trial.jobs:
            self.check_options(job, point)
            job.check()
            if job.finished:
                pool.view.ended(skipped(job))
            else:
                self.queue.append(job)
        self.settle(trial)

    def check_options(self, job: RunSpec, point: Point) -> None:
        """Raise CafedclError if an existing run's options differ from those proposed for it.

        If a search lost its file, scores would be assigned to wrong points.
        """
        if not job.begun:
            return
        stored = read_file(job.folder / CONFIG)
        for name, value in point.items():
            section, _, key = name.partition(".")
            found = stored.get(section, {}).get(key)
            # A choice such as `auto` is stored as what it resolves to.
            if found not in (None, value) and found in self.sweep.choices.get(name, [found]):
                raise CafedclError(
                    f"{job.folder}: it has {name} = {to_toml(found)}, and {STUDY} proposes "
                    f"{to_toml(value)}: the file was lost or exchanged; restore it, or start the "
                    "search in a new folder"
                )

    def trial(self, number: int, point: Point) -> Trial:
        """Return a trial and its runs."""
        jobs = self.sweep.jobs(self.out, f"trial-{number:04d}", point)
        alike = int(self.study.user_attrs.get("trials", 1)) * self.sweep.seeds
        return Trial(number, point, tuple(replace(job, alike=alike) for job in jobs))

    def take(self, outcome: RunOutcome, pool: Pool) -> None:
        """Handle the end of a run; if it failed, its trial has failed and its other runs stop."""
        trial = next((trial for trial in self.active.values() if outcome.job in trial.jobs), None)
        if outcome.status == "failed":
            self.failures.append(outcome)
            if trial is not None:
                self.drop(trial, "FAIL", pool)
        elif trial is not None:
            self.settle(trial)

    def settle(self, trial: Trial) -> None:
        """Score a trial once all its runs are finished; a trial that diverged has failed."""
        if all(job.finished for job in trial.jobs):
            del self.active[trial.number]
            value = self.sweep.value(trial.jobs)
            if math.isfinite(value):
                self.study.tell(trial.number, value)
            else:
                self.tell(trial.number, "FAIL")

    def drop(self, trial: Trial, state: str, pool: Pool) -> None:
        """Stop a trial."""
        del self.active[trial.number]
        self.queue = deque(job for job in self.queue if job not in trial.jobs)
        pool.stop(trial.jobs)
        self.tell(trial.number, state)

    def tell(self, number: int, state: str) -> None:
        """Record how a trial without a score ended."""
        self.study.tell(number, state=self.optuna.trial.TrialState[state])

    def prune(self, pool: Pool) -> None:
        """Stop trials that are worse than the median of finished ones after a third of the rounds.

        Only the first seed of a trial is compared.
        """
        for trial in list(self.active.values()):
            first = trial.jobs[0]
            third = math.ceil(first.rounds / 3)
            tail = next((one.tail for one in pool.running if one.job == first), None)
            if tail is None or tail.rounds < third:
                continue
            now = self.sweep.score_at(first, third)
            before = [self.sweep.score_at(other.jobs[0], third) for other in self.finished()]
            others = [value for value in before if value is not None]
            if now is None or len(others) < TRIALS_BEFORE_PRUNING:
                continue
            worse = now < median(others) if self.sweep.higher else now > median(others)
            if worse:
                self.drop(trial, "PRUNED", pool)

    def finished(self) -> list[Trial]:
        """Return the trials that have a score."""
        states = (self.optuna.trial.TrialState.COMPLETE,)
        return [
            self.trial(frozen.number, dict(frozen.params))
            for frozen in self.study.get_trials(states=states)
        ]

    def rows(self) -> list[tuple[int, str, float | None, Point]]:
        """Return number, state, score and point of all trials, the best first."""
        sign = -1 if self.sweep.higher else 1
        rows = [
            (f.number, f.state.name.lower(), f.value, dict(f.params))
            for f in self.study.get_trials()
        ]
        return sorted(rows, key=lambda row: (row[2] is None, sign * (row[2] or 0.0), row[0]))


def _reason(error: BaseException) -> str:
    """Return SQLite's message, which SQLAlchemy and Optuna wrap in longer texts."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]
