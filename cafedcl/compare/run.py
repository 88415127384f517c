"""Execute a plan: run everything, print the table and the best point, and list failures."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cafedcl.compare.devices import choose_launcher
from cafedcl.compare.jobs import RunOutcome
from cafedcl.compare.plan import Comparison, Tables, planned, way_on, words_of
from cafedcl.compare.pool import Pool, polite, run_all
from cafedcl.compare.progress import choose_view
from cafedcl.compare.sweep import Point, Sweep
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.core.printable import printable
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


def run_comparison(plan: Comparison, out: Path, means: Means) -> None:
    """Execute all runs that are not finished, and print the table."""
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
    """Execute the grid or the search, and print its table and its best point."""
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
    if plan.grid:
        end(outcomes, again(out, Sweep.COMMAND))
    else:
        end(outcomes, "their trials are not part of the search")


def run_grid(
    plan: Sweep, out: Path, means: Means
) -> tuple[list[RunOutcome], tuple[Point, float] | None]:
    """Run every point of a grid; returns the outcomes, and the best of the finished points."""
    points = [(point, plan.jobs(out, plan.place(point), point)) for point in plan.points()]
    jobs = [job for seed in zip(*(jobs for _, jobs in points), strict=True) for job in seed]
    size = (len(jobs), sum(job.rounds for job in jobs))
    with scheduled(way_on(Sweep.COMMAND, {}, out), size, plan.settings, means) as pool:
        outcomes = run_all(jobs, pool)
    if not means.silent:
        show_table(out)
    scored = [
        (point, plan.value(jobs)) for point, jobs in points if all(job.finished for job in jobs)
    ]
    finite = [(point, value) for point, value in scored if not math.isnan(value)]
    if not finite:
        return outcomes, None
    sign = 1 if plan.higher else -1
    return outcomes, max(finite, key=lambda pair: sign * pair[1])


def run_search(
    plan: Sweep, out: Path, trials: int | None, means: Means
) -> tuple[list[RunOutcome], tuple[Point, float] | None]:
    """Search until there are ``trials`` trials; by default the number of the last search."""
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
    except KeyboardInterrupt:
        print(printable(f"\ninterrupted; saved. Resume with: {on}"), file=sys.stderr)
        raise SystemExit(130) from None


def fetch_data(tables: Sequence[Tables]) -> None:
    """Load every data set once, so that it is downloaded and decoded before many runs need it."""
    from cafedcl.data import load_dataset

    for table in tables:
        load_dataset(resolve(table).data)


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


def write_best(
    plan: Sweep, out: Path, point: Point, value: float, measured_on: str, silent: bool
) -> None:
    """Write the best point as a config file, and print it."""
    path = out / BEST
    with explained(out):
        write_atomically(path, plan.best_toml(point, value, measured_on).encode())
    if not silent:
        words = ", ".join(f"{name}={inner}" for name, inner in point.items())
        screen = console()
        screen.print(f"best: {words}", style="bold", soft_wrap=True)
        screen.print(
            f"{plan.score} {value:.4f}, {plan.mean_words}, on {measured_on}", soft_wrap=True
        )
        screen.print(f"written: {path}  (cafedcl run {path})", soft_wrap=True)


def again(out: Path, command: str) -> str:
    """Return the advice for failed runs."""
    return f"try them again with: {way_on(command, {}, out)}"


def end(outcomes: Sequence[RunOutcome], then: str) -> None:
    """Print the failed runs and the advice ``then`` on standard error, and exit with status 1.

    If no run has failed, it does nothing.
    """
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        line = f"failed: {outcome.job.folder}: {outcome.error}  (log: {outcome.job.log})"
        print(printable(line), file=sys.stderr)
    if failed:
        print(printable(f"failed runs: {len(failed)}; {then}"), file=sys.stderr)
        raise SystemExit(1)
