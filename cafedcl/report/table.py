"""The tables of a paper from run folders: methods × settings, mean ± std over seeds, the best
marked and tested.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from statistics import mean, stdev

from cafedcl.report.paper import PaperPosition, paper_position
from cafedcl.report.runs import RunSummary, SettingGroup, Summary, TableRow, method_order

MEASURES = ("accuracy", "std", "worst")
HIGHER = {"accuracy": True, "std": False, "worst": True}
TITLES = {"accuracy": "Acc. ↑", "std": "Std. ↓", "worst": "Worst ↑"}
PROTOCOLS = {"server": "the server's model", "own": "each client's own model after local training"}


@dataclass(frozen=True)
class Cell:
    """One number of the table, in %, with its spread over seeds; ``rank`` is 1 for the best, 2 for
    the second.
    """

    values: tuple[float, ...]
    rank: int = 0

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds, from two on."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def text(self) -> str:
        """The number as it is printed."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class PairedComparison:
    """The best method of a column against the best one of another family, on the seeds they share."""

    best: str
    rival: str
    seeds: int
    difference: float
    """In percentage points of accuracy."""
    t: float | None = None
    wilcoxon: float | None = None
    missing: str = ""
    """Why there are no p-values."""

    @property
    def text(self) -> str:
        """The comparison in one line."""
        head = f"{self.best} against {self.rival}: {self.difference:+.2f} points"
        if self.missing:
            return f"{head}; {self.missing}"
        tests = [
            f"{name} p = {value:.2g}"
            if value is not None
            else f"{name}: undefined, the differences do not vary"
            for name, value in (
                ("paired t-test", self.t),
                ("Wilcoxon signed-rank test", self.wilcoxon),
            )
        ]
        return f"{head}; {', '.join(tests)} (two-sided, {self.seeds} shared seeds)"


@dataclass(frozen=True)
class Column:
    """One setting: where it stands, a cell per method and measure, and how its best compares."""

    group: SettingGroup
    position: PaperPosition
    cells: dict[str, dict[str, Cell]]
    """By row label, then by measure."""
    comparison: PairedComparison | None


@dataclass(frozen=True)
class Board:
    """A table before it is printed."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    """The first entry of every label, in the order of the rows."""
    protocol: str
    which: str
    set_aside: tuple[RunSummary, ...]

    @cached_property
    def caption(self) -> str:
        """What the numbers are."""
        most = max(
            (len(entry.runs) for column in self.columns for entry in column.group.entries),
            default=0,
        )
        seeds = f"mean ± std over up to {most} seeds" if most > 1 else "one seed"
        return (
            f"In %, {self.which} scored round, {seeds}. Acc.: accuracy, Std.: standard deviation between clients, "
            f"Worst: mean of the worst tenth of the clients, of {PROTOCOLS[self.protocol]}."
        )

    @cached_property
    def notes(self) -> list[str]:
        """What a reader must know: comparisons, what is missing, what is unfair, what was left out."""
        lines = [
            f"{c.group.setting.title}: {c.comparison.text}." for c in self.columns if c.comparison
        ]
        for column in self.columns:
            entries = column.group.entries
            lacking = [
                entry.label for entry in entries if not column.cells[entry.label]["accuracy"].values
            ]
            if lacking:
                other = "own" if self.protocol == "server" else "server"
                lines.append(
                    f"{column.group.setting.title}: no such score: {', '.join(lacking)}; see --protocol {other}."
                )
            partial = [entry.label for entry in entries if entry.partial]
            if partial:
                lines.append(
                    f"{column.group.setting.title}: not finished, as far as it got: {', '.join(partial)}."
                )
            for name, values in column.group.differing().items():
                lines.append(
                    f"{column.group.setting.title}: methods differ in {name}: {' / '.join(values)}."
                )
        lines += [f"{run.state}: {run.path}: {run.problem}." for run in self.set_aside]
        return lines


def board(summary: Summary, protocol: str | None = None, which: str = "last") -> Board:
    """Return the table of a summary; without a protocol, the server's model where all methods have
    one.
    """
    chosen = protocol or common_protocol(summary.groups)
    columns = [column(group, chosen, which) for group in summary.groups]
    columns.sort(
        key=lambda c: (c.position.table, c.group.setting.kind, c.position.heading, c.group.setting)
    )
    rows: dict[str, TableRow] = {}
    for group in summary.groups:
        for entry in group.entries:
            rows.setdefault(entry.label, entry)
    ordered = sorted(rows.values(), key=lambda entry: method_order(entry.method))
    return Board(tuple(columns), tuple(ordered), chosen, which, summary.set_aside)


def common_protocol(groups: Sequence[SettingGroup]) -> str:
    """Return the server's model if every method has one, else the clients' own if every method has
    them.
    """
    everyone = [entry for group in groups for entry in group.main]
    for protocol in ("server", "own"):
        if all(entry.scores(protocol, "accuracy") for entry in everyone):
            return protocol
    return "server"


def column(group: SettingGroup, protocol: str, which: str) -> Column:
    """Return one setting's cells, ranked."""
    cells = {
        entry.label: {
            measure: Cell(
                tuple(100 * value for value in entry.scores(protocol, measure, which).values())
            )
            for measure in MEASURES
        }
        for entry in group.entries
    }
    fair = [entry.label for entry in contenders(group)]
    for measure in MEASURES:
        means = [row[measure].mean if label in fair else None for label, row in cells.items()]
        places = ranks(means, higher=HIGHER[measure])
        for row, rank in zip(cells.values(), places, strict=True):
            row[measure] = Cell(row[measure].values, rank)
    return Column(group, paper_position(group.setting), cells, compare_best(group, protocol, which))


def contenders(group: SettingGroup) -> list[TableRow]:
    """Return the entries that can be best: those that are finished, or all if none is."""
    return [entry for entry in group.entries if not entry.partial] or list(group.entries)


def ranks(values: Sequence[float | None], *, higher: bool) -> list[int]:
    """Return 1 for the best, 2 for the second, 0 for the rest; what is printed alike ranks alike."""
    printed = [None if value is None else round(value, 2) for value in values]
    known = sorted({value for value in printed if value is not None}, reverse=higher)
    if sum(value is not None for value in printed) < 2:
        return [0] * len(values)
    return [
        0 if value is None or value not in known[:2] else known.index(value) + 1
        for value in printed
    ]


def compare_best(group: SettingGroup, protocol: str, which: str) -> PairedComparison | None:
    """Test the most accurate entry against the most accurate one of another method, or else of
    another variant.
    """
    scores = {entry.label: entry.scores(protocol, "accuracy", which) for entry in group.entries}
    known = [entry for entry in contenders(group) if scores[entry.label]]
    ordered = sorted(known, key=lambda entry: -mean(scores[entry.label].values()))
    if len(ordered) < 2:
        return None
    best = ordered[0]
    rival = next((entry for entry in ordered if entry.base != best.base), ordered[1])
    ours = scores[best.label]
    theirs = scores[rival.label]
    differences = [100 * gap for gap in paired(ours, theirs)]
    if len(differences) < 2:
        gap = 100 * (mean(ours.values()) - mean(theirs.values()))
        return PairedComparison(
            best.label,
            rival.label,
            len(differences),
            gap,
            missing="significance needs two shared seeds",
        )
    return PairedComparison(
        best.label, rival.label, len(differences), mean(differences), *p_values(differences)
    )


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return how much more our scores are than theirs, on every seed that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def p_values(differences: Sequence[float]) -> tuple[float | None, float | None, str]:
    """Return the two-sided p-values of the paired t-test and of Wilcoxon's signed-rank test, or why
    there are none.
    """
    try:
        stats = import_module("scipy.stats")
    except ImportError:
        return None, None, "significance needs scipy (pip install scipy)"
    varied = max(differences) - min(differences) > 1e-12
    t = float(stats.ttest_1samp(differences, 0.0).pvalue) if varied else None
    ranked = float(stats.wilcoxon(differences).pvalue) if any(differences) else None
    return t if t is None or math.isfinite(t) else None, ranked, ""
