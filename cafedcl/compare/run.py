"""Execute a plan: run everything, print the table and the best point, and list failures."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cafedcl.compare.devices import choose_launcher
from cafedcl.compare.jobs import RunOutcome
from cafedcl.compare.plan import Comparison, Tables, planned, resume_command, words_of
from cafedcl.compare.pool import Pool, polite, run_all
from cafedcl.compare.progress import choose_view
from cafedcl.compare.sweep import Point, Sweep
from cafedcl.config.format import FORMAT
from cafedcl.config.options import to_toml
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.errors import UNRESUMABLE, CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.printable import printable
from cafedcl.task.resolve import resolve
from cafedcl.terminal.console import console
from cafedcl.terminal.streams import NoReaderError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from cafedcl.compare.tune import Search
    from cafedcl.data import Dataset

BEST = "best.toml"
NO_SCORE = "no point of the sweep has a score: every run failed or diverged"
MOST_TRIALS = 10
"""Trials in the table of a search, at most."""


@dataclass(frozen=True)
class Means:
    """How runs are executed and how much is printed; this does not affect any result."""

    jobs: int | None = None
    devices: Sequence[str] = ()
    ray: str | None = None
    quiet: bool = False
    as_json: bool = False

    @property
    def silent(self) -> bool:
        """Whether tables and messages are left out."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has found."""

    plan: Sweep
    measured_on: str
    """The images that the points were scored on, in words."""
    points: Sequence[tuple[Point, float | None]]
    """All points with their scores, the best first; None for a point without a score."""
    outcomes: Sequence[RunOutcome]

    @property
    def best(self) -> Point:
        """The options of the best point, by name: settings for `cafedcl.run`."""
        return dict(self._best()[0])

    @property
    def value(self) -> float:
        """The score of the best point."""
        return self._best()[1]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per point, the best first: its options and its score."""
        import pandas as pd

        return pd.DataFrame([{**point, self.plan.score: value} for point, value in self.points])

    @property
    def has_score(self) -> bool:
        """Whether any point has a score."""
        return any(value is not None for _, value in self.points)

    def _best(self) -> tuple[Point, float]:
        point, value = self.points[0]
        if value is None:
            raise CafedclError(NO_SCORE)
        return point, value

    def _repr_html_(self) -> str:
        """Return the table and what it was measured on, for notebooks."""
        words = f"{self.plan.score}: {self.plan.mean_words}, on {self.measured_on}"
        return f"{self.table.to_html(index=False)}<p>{escape(words)}</p>"


def run_comparison(plan: Comparison, out: Path, means: Means) -> list[RunOutcome]:
    """Execute all runs that are not finished, and print the table."""
    jobs = plan.jobs(out)
    here = means.ray is None
    begun = (out / Comparison.FILE).is_file()
    check = partial(check_splits, plan) if here else lambda: None
    with planned(out, plan.to_plain(), Comparison.FILE, Comparison.COMMAND, check):
        if here and begun:
            fetch_data(
                [plan.tables(plan.methods[0], name, None, plan.first_seed) for name in plan.data]
            )
        rounds = sum(job.rounds for job in jobs)
        with scheduled(
            resume_command(Comparison.COMMAND, {}, out), (len(jobs), rounds), plan.settings, means
        ) as pool:
            outcomes = run_all(jobs, pool)
    if not means.silent:
        show_table(out)
    return outcomes


def run_sweep(plan: Sweep, out: Path, trials: int | None, means: Means) -> SweepResult:
    """Execute the grid or the search, and print its table and its best point."""
    with planned(out, plan.to_plain(), Sweep.FILE, Sweep.COMMAND):
        measured_on = plan.prepare(out)
        if not means.silent:
            console().print(f"{plan.score} is measured on {measured_on}", soft_wrap=True)
        execute = run_grid if plan.grid else partial(run_search, trials)
        result = SweepResult(plan, measured_on, *execute(plan, out, means))
        if result.has_score:
            write_best(result, out, means.silent)
    return result


def run_grid(
    plan: Sweep, out: Path, means: Means
) -> tuple[list[tuple[Point, float | None]], list[RunOutcome]]:
    """Run every point of a grid; returns the points with their scores, and how the runs ended."""
    points = [(point, plan.jobs(out, plan.place(point), point)) for point in plan.points()]
    jobs = [job for seed in zip(*(jobs for _, jobs in points), strict=True) for job in seed]
    if len({job.place for job in jobs}) < len(jobs):
        raise CafedclError("--grid: two points would have the same folder; leave one of them out")
    size = (len(jobs), sum(job.rounds for job in jobs))
    with scheduled(resume_command(Sweep.COMMAND, {}, out), size, plan.settings, means) as pool:
        outcomes = run_all(jobs, pool)
    if not means.silent:
        show_table(out)
    scored: list[tuple[Point, float | None]] = []
    for point, jobs in points:
        value = plan.value(jobs) if all(job.finished for job in jobs) else math.nan
        scored.append((point, None if math.isnan(value) else value))
    sign = -1 if plan.higher else 1
    return sorted(scored, key=lambda one: (one[1] is None, sign * (one[1] or 0.0))), outcomes


def run_search(
    trials: int | None, plan: Sweep, out: Path, means: Means
) -> tuple[list[tuple[Point, float | None]], list[RunOutcome]]:
    """Search until there are ``trials`` trials; by default the number of the last search."""
    from cafedcl.compare.tune import Search

    search = Search(plan, out)
    number = trials or int(search.study.user_attrs.get("trials", 0))
    to_do = max(0, number - len(search.finished())) * plan.seeds
    rounds = resolve(plan.tables({})).federation.rounds
    with scheduled(
        resume_command(Sweep.COMMAND, {}, out), (to_do, to_do * rounds), plan.settings, means
    ) as pool:
        search.run(number, pool)
    if not means.silent:
        console().print(trial_table(search))
    return [(point, value) for _, _, value, point in search.rows()], search.failures


@contextmanager
def scheduled(
    on: str, size: tuple[int, int], settings: Mapping[str, Any], means: Means
) -> Iterator[Pool]:
    """Yield a pool for the runs of a plan; ``size`` is the number of runs and of all their rounds.

    An interrupt saves all runs and prints ``on``, the command to resume with.
    """
    threads = int(settings.get("engine.threads", 1))
    launcher = choose_launcher(words_of(means.devices), means.jobs, threads, means.ray)
    try:
        with choose_view(console(), *size, means.quiet, means.as_json) as view:
            pool = Pool(launcher, view)
            with polite(pool):
                yield pool
    except (KeyboardInterrupt, NoReaderError):
        print(printable(f"\ninterrupted; saved. Resume with: {on}"), file=sys.stderr)
        raise KeyboardInterrupt from None


def fetch_data(tables: Sequence[Tables]) -> None:
    """Load every data set once, so that it is downloaded and decoded before many runs need it."""
    from cafedcl.data import load_dataset

    for table in tables:
        load_dataset(resolve(table).data)


def check_splits(plan: Comparison) -> None:
    """Load every data set once, and refuse splits that it does not allow."""
    from cafedcl.task.build import load_data, settle_split

    for name in plan.data:
        loaded: Dataset | None = None
        for split in plan.splits or (None,):
            config = resolve(plan.tables(plan.methods[0], name, split, plan.first_seed))
            loaded = loaded or load_data(config)
            try:
                settle_split(config, loaded)
            except CafedclError as error:
                where = f"{name}, {split}" if split else name
                raise CafedclError(f"{where}: {error}") from None


def show_table(out: Path) -> None:
    """Print the table of all runs in a folder, finished or not."""
    from cafedcl.report.printed_rich import as_rich
    from cafedcl.report.runs import read_runs
    from cafedcl.report.table import score_table

    try:
        summary = read_runs([out])
    except CafedclError:
        return
    if summary.groups:
        screen = console()
        screen.print(as_rich(score_table(summary), False, screen.width))


def trial_table(search: "Search") -> "Table":
    """Return a table of the best trials of a search."""
    from rich.table import Table

    rows = search.rows()
    names = [*search.sweep.ranges, *search.sweep.choices]
    table = Table("trial", "state", search.sweep.score, *names, box=None, header_style="bold")
    for number, state, value, point in rows[:MOST_TRIALS]:
        shown = [
            f"{point[name]:.4g}" if isinstance(point.get(name), float) else str(point.get(name))
            for name in names
        ]
        table.add_row(str(number), state, "–" if value is None else f"{value:.4f}", *shown)
    if len(rows) > MOST_TRIALS:
        table.caption = f"the best {MOST_TRIALS} of {len(rows)} trials"
    return table


def write_best(result: SweepResult, out: Path, silent: bool) -> None:
    """Write the best point as a config file, and print it."""
    plan = result.plan
    path = out / BEST
    with explained(out):
        write_atomically(path, best_toml(result).encode())
    if not silent:
        words = ", ".join(f"{name}={inner}" for name, inner in result.best.items())
        screen = console()
        screen.print(f"best: {words}", style="bold", soft_wrap=True)
        screen.print(
            f"{plan.score} {result.value:.4f}, {plan.mean_words}, on {result.measured_on}",
            soft_wrap=True,
        )
        screen.print(f"written: {path}  ({cafedcl_command('run', path)})", soft_wrap=True)


def best_toml(result: SweepResult) -> str:
    """Return the best point as a config for `cafedcl run`, with its score as a comment.

    Its format number tells what a preset means in it, in case the preset changes.
    """
    plan = result.plan
    chosen = ", ".join(f"{name} = {to_toml(value)}" for name, value in result.best.items())
    score = f"{plan.score} = {result.value:.6f}, {plan.mean_words}, on {result.measured_on}"
    config = resolve(plan.tables(result.best)).to_toml()
    return f"# {chosen}\n# {score}\n\nformat = {FORMAT}\n\n{config}"


def end_comparison(outcomes: Sequence[RunOutcome], out: Path) -> None:
    """End a command that ran a comparison."""
    end(outcomes, again(out, Comparison.COMMAND))


def end_sweep(result: SweepResult, out: Path) -> None:
    """End a command that ran a sweep."""
    if result.plan.grid:
        end(result.outcomes, again(out, Sweep.COMMAND))
    else:
        end(result.outcomes, "their trials are not part of the search")
    if not result.has_score:
        raise CafedclError(f"{out}: {NO_SCORE}")


def again(out: Path, command: str) -> str:
    """Return the advice for failed runs."""
    return f"try them again with: {resume_command(command, {}, out)}"


def failed_runs(outcomes: Sequence[RunOutcome]) -> list[RunOutcome]:
    """Return the runs that have failed."""
    return [outcome for outcome in outcomes if outcome.status == "failed"]


def end(outcomes: Sequence[RunOutcome], then: str) -> None:
    """Print the failed runs and the advice ``then`` on standard error, and exit with status 1.

    If no run has failed, it does nothing.
    """
    failed = failed_runs(outcomes)
    for outcome in failed:
        line = f"failed: {outcome.job.folder}: {outcome.error}  (log: {outcome.job.log})"
        print(printable(line), file=sys.stderr)
    if any(UNRESUMABLE in outcome.error for outcome in failed):
        advice = f"a run that {UNRESUMABLE} is trained again once you remove its folder"
        print(printable(advice), file=sys.stderr)
    if failed:
        print(printable(f"failed runs: {len(failed)}; {then}"), file=sys.stderr)
        raise SystemExit(1)
