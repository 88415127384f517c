"""Tables as in a paper: methods × settings, mean ± std over seeds, with ranks and tests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from statistics import mean, stdev

from cafedcl.report.paper import PaperPosition, paper_position
from cafedcl.report.run_summary import RunSummary
from cafedcl.report.runs import SettingGroup, Summary, TableRow, method_order

TABLE_MEASURES = ("accuracy", "std", "worst")
HIGHER = {"accuracy": True, "std": False, "worst": True}
TITLES = {"accuracy": "Acc. ↑", "std": "Std. ↓", "worst": "Worst ↑"}
PROTOCOLS = {
    "server": "the server's model",
    "own": "each client's own model after local training",
    "own-prior": "each client's own model after local training, with the logarithm of the client's "
    "label distribution added to its scores",
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table: the scores of all seeds in %, and the rank.

    The rank is 1 for the best method, 2 for the second best, and 0 for all others.
    """

    values: tuple[float, ...]
    rank: int = 0

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def text(self) -> str:
        """The cell as it is printed."""
        if self.mean is None:
            return "–"
        if self.std is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class PairedComparison:
    """A paired test of the best method against the best other method, on the seeds they share."""

    best: str
    rival: str
    seeds: int
    difference: float
    """Mean difference, in percentage points of accuracy."""
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
        p_values = {"paired t-test": self.t, "Wilcoxon signed-rank test": self.wilcoxon}
        tests = []
        for name, value in p_values.items():
            if value is None:
                tests.append(f"{name}: undefined, all differences are equal")
            else:
                tests.append(f"{name} p = {value:.2g}")
        return f"{head}; {', '.join(tests)} (two-sided, {self.seeds} shared seeds)"


@dataclass(frozen=True)
class Column:
    """One setting: its position in the paper's tables, its cells, and a test of its best method."""

    group: SettingGroup
    position: PaperPosition
    cells: dict[str, dict[str, Cell]]
    """By row label, then by measure."""
    comparison: PairedComparison | None


@dataclass(frozen=True)
class ScoreTable:
    """A table before it is printed."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    """The first row of every label, in the order of printing."""
    protocol: str
    which: str
    set_aside: tuple[RunSummary, ...]

    @cached_property
    def caption(self) -> str:
        """The meaning of the numbers."""
        rows = [row for column in self.columns for row in column.group.rows]
        most = max((len(row.runs) for row in rows), default=0)
        seeds = f"mean ± std over up to {most} seeds" if most > 1 else "one seed"
        return (
            f"Scores of {PROTOCOLS[self.protocol]} in the {self.which} scored round, in %; "
            f"{seeds}. Acc.: accuracy. Std.: standard deviation across clients. "
            "Worst: mean accuracy of the worst 10 % of the clients."
        )

    @cached_property
    def notes(self) -> list[str]:
        """Notes for the reader: tests, missing scores, unequal options and unused runs."""
        lines = [
            f"{c.group.setting.title}: {c.comparison.text}." for c in self.columns if c.comparison
        ]
        for column in self.columns:
            title = column.group.setting.title
            rows = column.group.rows
            lacking = [row.label for row in rows if not column.cells[row.label]["accuracy"].values]
            if lacking:
                other = "server" if self.protocol == "own" else "own"
                names = ", ".join(lacking)
                lines.append(f"{title}: not scored this way: {names}; try --protocol {other}.")
            partial = [row.label for row in rows if row.partial]
            if partial:
                lines.append(f"{title}: not finished, scores so far: {', '.join(partial)}.")
            for name, values in column.group.differing().items():
                lines.append(f"{title}: methods differ in {name}: {' / '.join(values)}.")
        lines += [f"{run.state}: {run.path}: {run.problem}." for run in self.set_aside]
        return lines


def score_table(summary: Summary, protocol: str | None = None, which: str = "last") -> ScoreTable:
    """Return the table of all runs; without a protocol, one that all methods have is chosen."""
    chosen = protocol or common_protocol(summary.groups)
    columns = [column(group, chosen, which) for group in summary.groups]
    columns.sort(
        key=lambda c: (c.position.table, c.group.setting.kind, c.position.heading, c.group.setting)
    )
    rows: dict[str, TableRow] = {}
    for group in summary.groups:
        for row in group.rows:
            rows.setdefault(row.label, row)
    ordered = sorted(rows.values(), key=lambda row: method_order(row.method))
    return ScoreTable(tuple(columns), tuple(ordered), chosen, which, summary.set_aside)


def common_protocol(groups: Sequence[SettingGroup]) -> str:
    """Return ``server`` or ``own``, the first that every method has; else ``server``."""
    rows = [row for group in groups for row in group.main]
    for protocol in ("server", "own"):
        if all(row.scores(protocol, "accuracy") for row in rows):
            return protocol
    return "server"


def column(group: SettingGroup, protocol: str, which: str) -> Column:
    """Return one setting's cells, ranked."""
    cells: dict[str, dict[str, Cell]] = {row.label: {} for row in group.rows}
    ranked = [row.label for row in contenders(group)]
    for measure in TABLE_MEASURES:
        unranked = {}
        for row in group.rows:
            scores = row.scores(protocol, measure, which).values()
            unranked[row.label] = Cell(tuple(100 * value for value in scores))
        means = [cell.mean if label in ranked else None for label, cell in unranked.items()]
        places = ranks(means, higher=HIGHER[measure])
        for (label, cell), rank in zip(unranked.items(), places, strict=True):
            cells[label][measure] = Cell(cell.values, rank)
    return Column(group, paper_position(group.setting), cells, compare_best(group, protocol, which))


def contenders(group: SettingGroup) -> list[TableRow]:
    """Return the rows that are ranked: those that are finished, or all if none is."""
    return [row for row in group.rows if not row.partial] or list(group.rows)


def ranks(values: Sequence[float | None], *, higher: bool) -> list[int]:
    """Return 1 for the best, 2 for the second best, 0 for the rest.

    Values that are printed alike, with two decimals, have the same rank.
    """
    printed = [None if value is None else round(value, 2) for value in values]
    known = sorted({value for value in printed if value is not None}, reverse=higher)
    if sum(value is not None for value in printed) < 2:
        return [0] * len(values)
    rank_of = {value: rank for rank, value in enumerate(known[:2], start=1)}
    return [0 if value is None else rank_of.get(value, 0) for value in printed]


def compare_best(group: SettingGroup, protocol: str, which: str) -> PairedComparison | None:
    """Test the most accurate row against the most accurate row of another method.

    If there is only one method, the second variant of it takes that place.
    """
    scores = {row.label: row.scores(protocol, "accuracy", which) for row in group.rows}
    known = [row for row in contenders(group) if scores[row.label]]
    ordered = sorted(known, key=lambda row: -mean(scores[row.label].values()))
    if len(ordered) < 2:
        return None
    best = ordered[0]
    rival = next((row for row in ordered if row.base != best.base), ordered[1])
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
    """Return our score minus theirs for every seed that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def p_values(differences: Sequence[float]) -> tuple[float | None, float | None, str]:
    """Return the p-values of a paired t-test and of Wilcoxon's test, or why there are none.

    Both tests are two-sided. A p-value is None if it is undefined.
    """
    try:
        stats = import_module("scipy.stats")
    except ImportError:
        return None, None, "significance needs scipy (pip install scipy)"
    # scipy warns and returns NaN if all differences are equal, up to rounding.
    varied = max(differences) - min(differences) > 1e-12
    t = float(stats.ttest_1samp(differences, 0.0).pvalue) if varied else None
    ranked = float(stats.wilcoxon(differences).pvalue) if any(differences) else None
    if t is not None and not math.isfinite(t):
        t = None
    return t, ranked, ""
