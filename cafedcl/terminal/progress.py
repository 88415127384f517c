"""Progress of a run: a live view in a terminal, plain lines elsewhere, JSON on request."""

import json
import sys
import time
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from cafedcl.config.privacy_options import shown_epsilon
from cafedcl.core.contract import Failure
from cafedcl.core.printable import printable
from cafedcl.core.steps import WORTH_SHOWING, current
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.rounds import Federation
from cafedcl.task.describe import cost_line, first_line, scoring_line
from cafedcl.terminal.overview import colour, describe_round, duration, headline, series, sparkline

REFRESH = 8
"""Times per second that a terminal is redrawn."""
MOST_FAILURES = 3
"""How many failures a view names; it counts the others."""


class Pace:
    """Estimates the time left from the rounds of this process."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.rounds = 0
        self.last = 0.0

    def round_done(self, record: Record) -> None:
        """Count a round. For the first one only its work counts: it may have waited for sites."""
        now = time.perf_counter()
        self.spent += now - self.last if self.rounds else sum(record.seconds.values())
        self.rounds += 1
        self.last = now

    def left(self, remaining: int) -> str:
        """Return the time left, or a dash before the first round is done."""
        if not self.rounds:
            return "–"
        return duration(self.spent / self.rounds * remaining)


def description(federation: Federation) -> list[str]:
    """Return what is trained, where and on what, the cost of a step, and the time for scoring if it
    is long.
    """
    config = federation.config
    task = federation.task
    lines = [first_line(config, task, federation.engine.name), cost_line(config, task)]
    return [line for line in (*lines, scoring_line(config, task)) if line]


class StepLine:
    """The current step as one line of a live view; nothing if it has just begun."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = current()
        if now is not None and now.seconds > WORTH_SHOWING:
            yield Text(printable(str(now)), style="dim")


class LiveProgress(Callback):
    """A live view: rounds, clients of the round, time left, curves of scores, and failures."""

    def __init__(self, console: Console) -> None:
        self.live = Live(StepLine(), console=console, refresh_per_second=REFRESH)
        self.shown = 0.0
        self.pace = Pace()
        self.lines: list[MetricsLine] = []
        self.failures: list[str] = []
        self.rounds = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(48),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self.task = self.rounds.add_task("rounds ", total=None, left="")
        self.clients = self.rounds.add_task("clients", total=None, left="")

    def __enter__(self) -> "LiveProgress":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def began(self, federation: Federation) -> None:
        """Print what will be trained above the view."""
        for line in description(federation):
            self.live.console.print(line, soft_wrap=True)

    def noticed(self, federation: Federation, message: str) -> None:  # noqa: ARG002
        """Print the notice above the view."""
        self.live.console.print(f"note: {message}", style="yellow")

    def round_began(self, federation: Federation, clients: int) -> None:
        """Show the number of clients in the round."""
        if not self.lines:
            self.lines = [record.line() for record in federation.history]
        self.rounds.update(self.task, total=federation.options.rounds, completed=federation.round)
        self.rounds.reset(self.clients, total=clients)
        self._show(federation)

    def client_done(self, federation: Federation, client: int, failure: Failure | None) -> None:
        """Count a client."""
        self.rounds.advance(self.clients)
        if failure:
            who = federation.client_title(client)
            self.failures.append(f"round {federation.round + 1}: {who}: {failure.reason}")
        # With thousands of small clients per second, drawing would take all the time.
        if time.perf_counter() - self.shown > 1 / REFRESH:
            self._show(federation)

    def round_done(self, federation: Federation, record: Record) -> None:
        """Show the scores of the round."""
        self.pace.round_done(record)
        self.lines.append(record.line())
        left = self.pace.left(federation.options.rounds - federation.round)
        self.rounds.update(self.task, completed=federation.round, left=f"{left} left")
        self._show(federation)

    def _show(self, federation: Federation) -> None:
        self.shown = time.perf_counter()
        name = federation.config.label
        parts: list[RenderableType] = [Text(name, style=colour(name)), self.rounds]
        path = headline(self.lines)
        spread = "server.client_std" if path.startswith("server") else "own.client_std"
        if self.lines:
            parts.append(self._curve("accuracy  ", path, colour(name), 1.0))
            parts.append(self._curve("client std", spread, "yellow", 0.4))
            parts += [Text(line, style="cyan") for line in self._privacy()]
        parts.append(StepLine())
        parts += [Text(line, style="red") for line in self.failures[-MOST_FAILURES:]]
        if len(self.failures) > MOST_FAILURES:
            parts.append(Text(f"{len(self.failures)} failures in total", style="red"))
        self.live.update(Group(*parts))

    def _privacy(self) -> list[str]:
        """Return a line about the privacy spent so far; nothing without privacy."""
        spent = self.lines[-1].get("privacy", {})
        text = shown_epsilon(spent)
        if not text:
            return []
        limit = f" of at most {spent['budget']:g}" if "budget" in spent else ""
        return [f"privacy    {text}{limit} at δ = {spent['delta']:g}"]

    def _curve(self, title: str, path: str, style: str, high: float) -> Text:
        values = series(self.lines, path)
        now = f"{100 * values[-1]:5.1f} %" if values else "    –  "
        return Text.assemble(
            f"{title} ", (now, "bold"), "  ", (sparkline(values, 48, 0.0, high), style)
        )


class PlainProgress(Callback):
    """One line per round, for logs."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.pace = Pace()

    def began(self, federation: Federation) -> None:
        """Write what will be trained."""
        for line in description(federation):
            print(printable(line), file=self.out, flush=True)

    def noticed(self, federation: Federation, message: str) -> None:  # noqa: ARG002
        """Write the notice."""
        print(printable(f"note: {message}"), file=self.out, flush=True)

    def round_done(self, federation: Federation, record: Record) -> None:
        """Write the round's line."""
        self.pace.round_done(record)
        total = federation.options.rounds
        words = [f"round {federation.round}/{total}", describe_round(record.line())]
        if record.dropped:
            words.append(f"dropped {len(record.dropped)}")
        if record.left_out:
            words.append(f"left out {len(record.left_out)}")
        words += [
            f"{federation.client_title(failure['client'])} failed: {failure['reason']}"
            for failure in record.failed[:MOST_FAILURES]
        ]
        if len(record.failed) > MOST_FAILURES:
            words.append(f"{len(record.failed) - MOST_FAILURES} more failed")
        words.append(f"{self.pace.left(total - federation.round)} left")
        print(printable("  ".join(words)), file=self.out, flush=True)


class Warnings(Callback):
    """Only notices of what differs from the request, on standard error."""

    told = False
    """Whether the first lost replies have been reported."""

    def round_done(self, federation: Federation, record: Record) -> None:
        """Report the first replies that were lost."""
        if not record.failed or self.told:
            return
        self.told = True
        first = record.failed[0]
        who = federation.client_title(first["client"])
        self.noticed(
            federation,
            f"round {record.round + 1}: {len(record.failed)} of {len(record.participants)} replies "
            f"failed ({who}: {first['reason']}); later ones are recorded, not printed",
        )

    def noticed(self, federation: Federation, message: str) -> None:  # noqa: ARG002
        """Write the notice."""
        print(printable(f"warning: {message}"), file=sys.stderr, flush=True)


class JsonProgress(Warnings):
    """One JSON object per round."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def round_done(self, federation: Federation, record: Record) -> None:  # noqa: ARG002
        """Write the round's metrics."""
        print(json.dumps(record.line()), file=self.out, flush=True)
