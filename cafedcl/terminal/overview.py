"""Runs in a terminal: tables and sparklines."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cafedcl.config.privacy_options import shown_epsilon
from cafedcl.core.client_names import client_title
from cafedcl.federation.metrics_file import MetricsLine, last_round, on_most_clients
from cafedcl.report.palette import series_style
from cafedcl.terminal.class_overview import class_lines, full_scores

if TYPE_CHECKING:
    from cafedcl.report.class_scores import ClassScores

BARS = "▁▂▃▄▅▆▇█"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage, or a dash if there is none."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def amount(number: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def colour(method: str) -> str:
    """Return the colour of a method, the same as in the report."""
    return series_style(method).colour


def sparkline(values: Sequence[float], width: int = 40, low: float = 0.0, high: float = 1.0) -> str:
    """Return values as a row of bars; more values than ``width`` are averaged in groups.

    Where no value is a number, there is a gap.
    """
    if not values:
        return ""
    number = min(width, len(values))
    cuts = [round(i * len(values) / number) for i in range(number + 1)]
    groups = [[v for v in values[a:b] if math.isfinite(v)] for a, b in pairwise(cuts)]
    top = len(BARS) - 1
    means = [sum(group) / len(group) if group else None for group in groups]
    return "".join(
        " " if mean is None else BARS[min(top, max(0, round((mean - low) / (high - low) * top)))]
        for mean in means
    )


def value_of(line: MetricsLine, path: str) -> float | None:
    """Return a score from a line of metrics by its path, such as ``server.accuracy``."""
    section, _, key = path.partition(".")
    scores = line.get(section) or {}
    value = scores.get(key)
    return None if value is None else float(value)


def series(lines: Sequence[MetricsLine], path: str) -> list[float]:
    """Return a score in every round in which it was measured."""
    values = (value_of(line, path) for line in lines)
    return [value for value in values if value is not None]


def headline(lines: Sequence[MetricsLine]) -> str:
    """Return the path of a run's main score.

    It is the server's accuracy, or the mean of the clients' own models if there is no server model.
    """
    return "server.accuracy" if series(lines, "server.accuracy") else "own.client_mean"


def best_round(lines: Sequence[MetricsLine], path: str) -> MetricsLine | None:
    """Return the first round with the highest score among those scored on the most clients."""
    scored = [line for line in lines if value_of(line, path) is not None]
    if path.startswith("server."):
        scored = on_most_clients(scored)
    return max(scored, key=lambda line: value_of(line, path) or 0.0) if scored else None


def last_scored(lines: Sequence[MetricsLine], path: str) -> MetricsLine | None:
    """Return the last round in which a score was measured."""
    return next((line for line in reversed(lines) if value_of(line, path) is not None), None)


BALANCED = {"server": "server.balanced", "own": "own.client_balanced"}
"""The balanced accuracy of each kind of model."""
COMPARISON_COLUMNS = (
    ("global\naccuracy", "server.accuracy", True),
    ("balanced\naccuracy", "server.balanced", True),
    ("worst\nclass", "server.worst_class", True),
    ("client\nstd", "server.client_std", False),
    ("worst\ntenth", "server.client_worst", True),
    ("own\nmean", "own.client_mean", True),
    ("own\nbalanced", "own.client_balanced", True),
    ("own\nstd", "own.client_std", False),
)
"""Titles of scores, their paths, and whether higher is better."""
COST_COLUMNS = {
    "sent": "sent per\nround",
    "seconds": "seconds\nper round",
    "curve": "accuracy\nover rounds",
}
FIRST_LEFT_OUT = (
    "curve", "seconds", "own.client_std", "sent", "server.client_worst", "server.client_std",
    "own.client_balanced", "own.client_mean",
)  # fmt: skip
"""Columns that a comparison leaves out if there is no room, the least important first."""
WIDEST_METHOD = 36
CURVE = 16
"""Characters of a curve."""
FROM_CLASSES = {
    "server.worst_class": ("server", "worst_class"),
    "own.client_balanced": ("own", "balanced"),
}
"""Scores that runs of earlier versions have only in tables, with their protocol and name there."""


def comparison_table(
    runs: Sequence[tuple[str, list[MetricsLine]]],
    width: int,
    classes: Sequence["ClassScores | None"] = (),
) -> RenderableType:
    """Return the last scored round of several runs as a table; the best of each column is bold.

    ``classes`` are the runs' scores per class, if they are known.
    """
    shown = fitting_columns([name for name, _ in runs], width)
    columns = [each for each in COMPARISON_COLUMNS if each[1] in shown]
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("\nmethod", overflow="fold", max_width=WIDEST_METHOD)
    for title, _, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for name, title in COST_COLUMNS.items():
        if name in shown:
            justify = "left" if name == "curve" else "right"
            table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    known = classes or [None] * len(runs)
    last = [
        {path: _last(lines, path, each) for _, path, _ in columns}
        for (_, lines), each in zip(runs, known, strict=True)
    ]
    best = {path: _best([row[path] for row in last], highest) for _, path, highest in columns}
    for (name, lines), row in zip(runs, last, strict=True):
        cells = [
            Text(percent(row[path]), style=_style(row[path], best[path], len(runs)))
            for _, path, _ in columns
        ]
        costs = _cost_cells(name, lines)
        cells += [costs[each] for each in COST_COLUMNS if each in shown]
        table.add_row(Text(name, style=colour(name)), *cells)
    numbers = [len(lines) for _, lines in runs]
    rounds = f"After {numbers[0]} rounds"
    if len(set(numbers)) > 1:
        rounds = f"Rounds, row by row: {', '.join(map(str, numbers))}"
    note = Text(
        f"{rounds}; in %. "
        "global, balanced, worst class: the server's model on the complete test set; balanced is "
        "the mean recall of the classes. "
        "client std: spread of accuracy across clients, each weighted by its own labels. "
        "worst tenth: mean accuracy of the worst 10 % of the clients. "
        "own: each client's own model after local training; balanced over the classes it holds.",
        style="dim",
    )
    return Group(table, note)


def fitting_columns(names: Sequence[str], width: int) -> set[str]:
    """Return the columns of a comparison that fit next to the names of the methods."""
    titles = {path: title for title, path, _ in COMPARISON_COLUMNS} | COST_COLUMNS
    widths = {path: max(map(len, title.split("\n"))) for path, title in titles.items()}
    widths["curve"] = max(widths["curve"], CURVE)
    shown = set(titles)
    room = width - min(max(map(len, names), default=6), WIDEST_METHOD) - 2
    for path in FIRST_LEFT_OUT:
        # Columns are two characters apart.
        if sum(widths[each] + 2 for each in shown) <= room:
            break
        shown.remove(path)
    return shown


def _cost_cells(name: str, lines: Sequence[MetricsLine]) -> dict[str, Text]:
    number = max(len(lines), 1)
    traffic = [line["traffic"]["up_bytes"] + line["traffic"]["down_bytes"] for line in lines]
    seconds = [sum(line["seconds"].values()) for line in lines]
    return {
        "sent": Text(amount(sum(traffic) / number)),
        "seconds": Text(f"{sum(seconds) / number:.2f}"),
        "curve": Text(sparkline(series(lines, headline(lines)), CURVE), colour(name)),
    }


def _style(value: float | None, best: float | None, runs: int) -> str:
    return "bold green" if runs > 1 and value is not None and value == best else ""


def _last(lines: Sequence[MetricsLine], path: str, classes: "ClassScores | None") -> float | None:
    line = last_scored(lines, path)
    if line is not None:
        return value_of(line, path)
    return classes.score(*FROM_CLASSES[path]) if classes and path in FROM_CLASSES else None


def _best(values: Sequence[float | None], highest: bool) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if highest else min(known)


def overview(
    name: str,
    lines: list[MetricsLine],
    rounds: int,
    about: dict[str, Any],
    trust: str = "",
    clients: Sequence[str] = (),
    classes: "ClassScores | None" = None,
) -> RenderableType:
    """Return one run on one screen: its progress, last and best round, failures and machine.

    ``trust`` are the attack and the defence in words, if there are any; ``clients`` are the names
    of the clients, if they have names; ``classes`` are the scores per class of the last scored
    round, if they are known.

    Rounds count from 1 here, as in all output for people; metrics.jsonl counts from 0.
    """
    path = headline(lines)
    parts: list[RenderableType] = [Text(trust, style="yellow")] if trust else []
    part = path.partition(".")[0]
    skewed = classes is not None and classes.skewed
    best_by = BALANCED[part] if skewed and series(lines, BALANCED[part]) else path
    how = " (by balanced accuracy)" if best_by != path else ""
    for what, line, suffix in (
        ("last round", last_scored(lines, path), ""),
        ("best round", best_round(lines, best_by), how),
    ):
        if line is not None:
            head = f"{what} {line['round'] + 1}{suffix}: "
            parts.append(Text.assemble((head, "bold"), describe_round(line)))
    parts += full_scores(last_scored(lines, path), part)
    parts += class_lines(classes, part)
    parts.append(Text.assemble("accuracy   ", (sparkline(series(lines, path), 60), colour(name))))
    spread = "server.client_std" if path.startswith("server") else "own.client_std"
    parts.append(
        Text.assemble("client std ", (sparkline(series(lines, spread), 60, 0.0, 0.4), "yellow"))
    )
    failed = [(line["round"] + 1, failure) for line in lines for failure in line["failed"]]
    skipped = [line["round"] + 1 for line in lines if line["status"] == "skipped"]
    if skipped:
        parts.append(Text(f"skipped rounds: {', '.join(map(str, skipped[:20]))}", style="yellow"))
    parts += left_out_by_the_defence(lines, clients)
    for when, failure in failed[-5:]:
        who = client_title(clients, failure["client"])
        parts.append(Text(f"round {when}: {who} failed: {failure['reason']}", style="red"))
    if len(failed) > 5:
        parts.append(Text(f"… {len(failed)} failures in total", style="red"))
    parts += [Text(f"note: {message}", style="yellow") for message in about.get("notices", ())]
    seconds = sum(sum(line["seconds"].values()) for line in lines)
    torch = about.get("packages", {}).get("torch") or "?"
    where = f"{about.get('device_name') or '?'}, torch {torch}, commit {about.get('commit') or '–'}"
    parts.append(Text(f"{duration(seconds)} on {where}", style="dim"))
    done = "finished" if len(lines) >= last_round(lines, rounds) else "not finished"
    return Panel(
        Group(*parts),
        title=Text(name, style=colour(name)),
        subtitle=Text(f"{len(lines)} of {rounds} rounds, {done}"),
    )


def left_out_by_the_defence(lines: list[MetricsLine], clients: Sequence[str] = ()) -> list[Text]:
    """Return a line about the clients that the defence left out, the most often left out first."""
    rounds = Counter(client for line in lines for client in line.get("left_out", ()))
    if not rounds:
        return []
    words = []
    for client, number in rounds.most_common(8):
        unit = "round" if number == 1 else "rounds"
        words.append(f"{client_title(clients, client)} ({number} {unit})")
    more = len(rounds) - len(words)
    if more:
        words.append(f"{more} more")
    return [Text(f"left out by the defence: {', '.join(words)}", style="yellow")]


def describe_round(line: MetricsLine) -> str:
    """Return a round's scores in one line."""
    words = []
    if line.get("server"):
        words.append(f"accuracy {percent(value_of(line, 'server.accuracy'))}")
        words.append(f"balanced {percent(value_of(line, 'server.balanced'))}")
        words.append(f"worst class {percent(value_of(line, 'server.worst_class'))}")
        words.append(f"client std {percent(value_of(line, 'server.client_std'))}")
        missing = value_of(line, "server.client_missing")
        if missing:
            words.append(f"(scored without {missing:.0f} of the sites)")
    if line.get("own"):
        mean = percent(value_of(line, "own.client_mean"))
        std = percent(value_of(line, "own.client_std"))
        words.append(f"own {mean} ± {std}")
        balanced = value_of(line, "own.client_balanced")
        if balanced is not None:
            words.append(f"own balanced {percent(balanced)}")
    spent = shown_epsilon(line.get("privacy", {}))
    if spent:
        words.append(spent)
    if line["status"] == "skipped":
        words.insert(0, "skipped")
    return "  ".join(words) or "not scored"
