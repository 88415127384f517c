"""From a plan to its end: the runs, the table, the best point, and what failed."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cafedcl.compare.devices import choose_launcher
from cafedcl.compare.jobs import Pool, RunOutcome, polite, run_all
from cafedcl.compare.plan import Comparison, Tables, planned, way_on, words_of
from cafedcl.compare.progress import choose_view
from cafedcl.compare.sweep import Point, Sweep
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.task.resolve import resolve
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from rich.table import Table

    from cafedcl.compare.tune import Search

BEST = "best.toml"
MOST_TRIALS = 10
"""Trials in the table of a search, at most."""


@dataclass(frozen=True)
class Means:
    """How runs are run, and how much is said about it; no part of any result."""

    jobs: int | None = None
    devices: Sequence[str] = ()
    ray: str | None = None
    quiet: bool = False
    as_json: bool = False

    @property
    def silent(self) -> bool:
        """Whether nothing is said besides what was asked for."""
        return self.quiet or self.as_json


def run_comparison(plan: Comparison, out: Path, means: Means) -> None:
    """Run what is not finished, and end with the table."""
    jobs = plan.jobs(out)
    with planned(out, plan.to_plain(), Comparison.FILE, Comparison.COMMAND):
        if means.ray is None:
            fetch_data(
                [plan.tables(plan.methods[0], name, None, plan.first_seed) for name in plan.data]
            )
        rounds = sum(job.rounds for job in jobs)
        with scheduled(
            way_on(Comparison.COMMAND, {}, out), (len(jobs), rounds), plan.settings, means
        ) as pool:
            outcomes = run_all(jobs, pool)
    if not means.silent:
        show_table(out)
    end(outcomes, again(out, Comparison.COMMAND))


def run_sweep(plan: Sweep, out: Path, trials: int | None, means: Means) -> None:
    """Run the grid or the search, and end with its table and its best point."""
    with planned(out, plan.to_plain(), Sweep.FILE, Sweep.COMMAND):
        measured_on = plan.prepare(out)
        if not means.silent:
            console().print(f"{plan.score} is measured on {measured_on}", soft_wrap=True)
        if plan.grid:
            outcomes, best = run_grid(plan, out, means)
        else:
            outcomes, best = run_search(plan, out, trials, means)
        if best is not None:
            write_best(plan, out, *best, measured_on, means.silent)
    end(
        outcomes,
        again(out, Sweep.COMMAND) if plan.grid else "their trials were left out of the search",
    )


def run_grid(
    plan: Sweep, out: Path, means: Means
) -> tuple[list[RunOutcome], tuple[Point, float] | None]:
    """Run every point of a grid; returns how the runs ended, and the best point among the finished
    ones.
    """
    points = [(point, plan.jobs(out, plan.place(point), point)) for point in plan.points()]
    jobs = [job for seed in zip(*(jobs for _, jobs in points), strict=True) for job in seed]
    size = len(jobs), sum(job.rounds for job in jobs)
    with scheduled(way_on(Sweep.COMMAND, {}, out), size, plan.settings, means) as pool:
        outcomes = run_all(jobs, pool)
    if not means.silent:
        show_table(out)
    scored = [
        (point, plan.value(jobs)) for point, jobs in points if all(job.finished for job in jobs)
    ]
    finite = [one for one in scored if one[1] == one[1]]
    if not finite:
        return outcomes, None
    return outcomes, (max if plan.higher else min)(finite, key=lambda one: one[1])


def run_search(
    plan: Sweep, out: Path, trials: int | None, means: Means
) -> tuple[list[RunOutcome], tuple[Point, float] | None]:
    """Search until there are so many trials, or as many as were asked for last time."""
    from cafedcl.compare.tune import Search

    search = Search(plan, out)
    number = trials or int(search.study.user_attrs.get("trials", 0))
    to_do = max(0, number - len(search.finished())) * plan.seeds
    rounds = resolve(plan.tables({})).federation.rounds
    with scheduled(
        way_on(Sweep.COMMAND, {}, out), (to_do, to_do * rounds), plan.settings, means
    ) as pool:
        search.run(number, pool)
    if not means.silent:
        console().print(trial_table(search))
    return search.failures, search.best()


@contextmanager
def scheduled(
    on: str, size: tuple[int, int], settings: Mapping[str, Any], means: Means
) -> Iterator[Pool]:
    """Give a pool for so many jobs with so many rounds; on an interrupt, its jobs are saved and the
    way on is said.
    """
    threads = int(settings.get("engine.threads", 1))
    launcher = choose_launcher(words_of(means.devices), means.jobs, threads, means.ray)
    try:
        with choose_view(console(), *size, means.quiet, means.as_json) as view:
            pool = Pool(launcher, view)
            with polite(pool):
                yield pool
    except KeyboardInterrupt:
        print(f"\ninterrupted; saved. Resume with: {on}", file=sys.stderr)
        raise typer.Exit(130) from None


def fetch_data(tables: Sequence[Tables]) -> None:
    """Load every data set once, so that it is fetched and decoded before many runs want it at the
    same time.
    """
    from cafedcl.data import load_dataset

    for table in tables:
        load_dataset(resolve(table).data)


def show_table(out: Path) -> None:
    """Print the table of all runs in a folder, as far as they got."""
    from cafedcl.report.printed import as_rich
    from cafedcl.report.runs import read_runs
    from cafedcl.report.table import board

    try:
        summary = read_runs([out])
    except CafedclError:
        return
    if summary.groups:
        screen = console()
        screen.print(as_rich(board(summary), False, screen.width))


def trial_table(search: "Search") -> "Table":
    """Return the best trials of a search."""
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


def write_best(
    plan: Sweep, out: Path, point: Point, value: float, measured_on: str, silent: bool
) -> None:
    """Write the best point as a config, and say it."""
    path = out / BEST
    with explained(out):
        write_atomically(path, plan.best_toml(point, value, measured_on).encode())
    if not silent:
        words = ", ".join(f"{name}={inner}" for name, inner in point.items())
        screen = console()
        screen.print(f"best: {words}", style="bold", soft_wrap=True, markup=False)
        seeds = f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}"
        screen.print(
            f"{plan.score} {value:.4f}, mean over {seeds}, on {measured_on}", soft_wrap=True
        )
        screen.print(f"written: {path}  (cafedcl run {path})", soft_wrap=True)


def again(out: Path, command: str) -> str:
    """Return what to do about failed runs."""
    return f"try them again with: {way_on(command, {}, out)}"


def end(outcomes: Sequence[RunOutcome], then: str) -> None:
    """List what failed, on standard error, and what to do then; if anything did, the exit status is
    1.
    """
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(
            f"failed: {outcome.job.folder}: {outcome.error}  (all of it: {outcome.job.log})",
            file=sys.stderr,
        )
    if failed:
        print(f"runs that failed: {len(failed)}; {then}", file=sys.stderr)
        raise typer.Exit(1)
