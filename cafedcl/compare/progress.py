"""Progress of many runs: a live view in a terminal, plain lines elsewhere, JSON on request."""

import json
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.pool import Running, View
from cafedcl.core.printable import printable
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.terminal.overview import describe_round, duration, percent, value_of

MOST_ROWS = 20
"""Runs in the live view, at most."""


def accuracy(line: MetricsLine | None) -> float | None:
    """Return the server's accuracy, or the mean of the clients' own if there is no server model."""
    if line is None:
        return None
    server = value_of(line, "server.accuracy")
    return value_of(line, "own.client_mean") if server is None else server


class Count:
    """Counts finished runs and rounds, and estimates the time left."""

    def __init__(self, jobs: int, rounds: int) -> None:
        self.began = time.monotonic()
        self.jobs = jobs
        self.rounds = rounds
        self.ended: dict[str, int] = {}
        self.over = 0
        """Planned rounds of the runs that have ended."""
        self.made = 0
        """Rounds that those runs have trained since the beginning."""

    @property
    def done(self) -> int:
        """The number of runs that have ended."""
        return sum(self.ended.values())

    def add(self, outcome: RunOutcome) -> None:
        """Count a run that has ended."""
        self.ended[outcome.status] = self.ended.get(outcome.status, 0) + 1
        self.over += outcome.job.rounds
        self.made += outcome.made

    def left(self, running: Sequence[Running]) -> str:
        """Return the time left, or a dash before the first round is done."""
        now = sum(one.tail.rounds for one in running)
        made = self.made + sum(one.made for one in running)
        if made <= 0:
            return "–"
        return duration(
            (time.monotonic() - self.began) / made * max(0, self.rounds - self.over - now)
        )


class LiveView(View):
    """A live view: one bar for all runs, and a row per run with rounds, accuracy and time left."""

    def __init__(self, console: Console, count: Count) -> None:
        self.live = Live(console=console, refresh_per_second=8)
        self.count = count

    def __enter__(self) -> "LiveView":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.update(Text(""))
        self.live.stop()

    def ended(self, outcome: RunOutcome) -> None:
        """Print a failure above the view."""
        self.count.add(outcome)
        if outcome.status == "failed":
            self.live.console.print(
                f"failed: {outcome.job.place}: {outcome.error}",
                style="red",
                soft_wrap=True,
            )

    def moved(self, running: Sequence[Running]) -> None:
        """Draw the view."""
        words = [f"{number} {status}" for status, number in self.count.ended.items()]
        waiting = self.count.jobs - self.count.done - len(running)
        words += [
            f"{len(running)} running",
            f"{waiting} waiting",
            f"{self.count.left(running)} left",
        ]
        whole = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.count.jobs, completed=self.count.done, width=32)
        whole.add_row(
            "runs", bar, f"{self.count.done}/{self.count.jobs}", Text(", ".join(words), style="dim")
        )
        rows = Table.grid(padding=(0, 1))
        for one in running[:MOST_ROWS]:
            left = "–" if one.left is None else duration(one.left)
            rows.add_row(
                Text(one.job.place),
                ProgressBar(total=one.job.rounds, completed=one.tail.rounds, width=20),
                f"{one.tail.rounds}/{one.job.rounds}",
                Text(f"{percent(accuracy(one.tail.last))} %", style="bold"),
                Text(f"{left} left", style="dim"),
            )
        parts: list[RenderableType] = [whole, rows]
        if len(running) > MOST_ROWS:
            parts.append(Text(f"… and {len(running) - MOST_ROWS} more", style="dim"))
        self.live.update(Group(*parts))


class PlainView(View):
    """One line when a run starts and one when it ends, for logs."""

    def __init__(self, out: TextIO, count: Count) -> None:
        self.out = out
        self.count = count
        self.running: Sequence[Running] = ()

    def started(self, job: RunSpec) -> None:
        """Write a line for a started run."""
        print(printable(f"started   {job.place}"), file=self.out, flush=True)

    def moved(self, running: Sequence[Running]) -> None:
        """Remember the runs in progress."""
        self.running = list(running)

    def ended(self, outcome: RunOutcome) -> None:
        """Write a line for a run that has ended."""
        self.count.add(outcome)
        words = [f"{outcome.status:<9} {outcome.job.place}", f"{self.count.done}/{self.count.jobs}"]
        if outcome.last:
            words.append(describe_round(outcome.last))
        words += [outcome.error] if outcome.error else []
        if outcome.status != "skipped":
            others = [one for one in self.running if one.job != outcome.job]
            words += [f"took {duration(outcome.seconds)}", f"{self.count.left(others)} left"]
        print(printable("  ".join(words)), file=self.out, flush=True)


class JsonView(View):
    """One JSON object per run that has ended."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def ended(self, outcome: RunOutcome) -> None:
        """Write how it ended, with its last scored round."""
        row = {
            "run": str(outcome.job.folder),
            "status": outcome.status,
            "error": outcome.error or None,
            "seconds": outcome.seconds,
            "last": outcome.last,
        }
        print(json.dumps(row), file=self.out, flush=True)


def choose_view(console: Console, jobs: int, rounds: int, quiet: bool, as_json: bool) -> View:
    """Return the view that suits the terminal; ``rounds`` is the total of all runs."""
    if as_json:
        return JsonView(sys.stdout)
    if quiet:
        return View()
    count = Count(jobs, rounds)
    return LiveView(console, count) if console.is_terminal else PlainView(sys.stdout, count)
