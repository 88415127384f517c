"""Tables as in a paper: methods × settings, mean ± std over seeds, with ranks and tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

import numpy as np

from cafedcl.core.errors import CafedclError
from cafedcl.report.class_scores import ClassScores, known_means, skew_words
from cafedcl.report.paired import on_shared_seeds, p_values, paired
from cafedcl.report.paper import PaperPosition, paper_position
from cafedcl.report.run_summary import RunSummary
from cafedcl.report.runs import POOLED, SettingGroup, Summary, TableRow, method_order

TABLE_MEASURES = ("accuracy", "balanced", "worst_class", "std", "worst")
FULL_MEASURES = (
    "macro_f1",
    "auroc",
    "auprc",
    "sensitivity",
    "ece",
    "calibrated_ece",
    "probable_accuracy",
)
"""Further scores of the last round, shown on request."""
LOWER_IS_BETTER = ("std", "ece", "calibrated_ece")
TITLES = {
    "accuracy": "Acc. ↑",
    "balanced": "Bal. ↑",
    "worst_class": "Class ↑",
    "std": "Std. ↓",
    "worst": "Worst ↑",
    "macro_f1": "Macro-F1 ↑",
    "auroc": "AUROC ↑",
    "auprc": "AUPRC ↑",
    "sensitivity": "Sens. ↑",
    "ece": "ECE ↓",
    "calibrated_ece": "Cal. ECE ↓",
    "probable_accuracy": "Prob. acc. ↑",
}
RANKINGS = {"accuracy": "accuracy", "balanced": "balanced accuracy"}
"""The scores that methods may be ranked by, in words."""
PROTOCOLS = {
    "server": "the server's model",
    "own": "each client's own model after local training",
    "own-prior": "each client's own model after local training, with the logarithm of the client's "
    "label distribution added to its scores",
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table: the scores of all seeds in %, and the rank.

    The rank is 1 for the best method, 2 for the second best and so on, and 0 for methods that are
    not ranked.
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
    runner_up: str
    seeds: int
    difference: float
    """Mean difference, in percentage points."""
    of: str = ""
    """The compared score in words; empty for accuracy."""
    t: float | None = None
    wilcoxon: float | None = None
    missing: str = ""
    """Why there are no p-values."""

    @property
    def text(self) -> str:
        """The comparison in one line."""
        head = f"{self.best} against {self.runner_up}: {self.difference:+.2f} points{self.of}"
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
    ranked_by: str = "accuracy"
    classes: dict[str, "RowClasses"] = field(default_factory=dict)
    """Scores per class by row label, of the rows that have them."""

    @property
    def skew(self) -> str:
        """A note for the reader if the test labels are skewed; empty otherwise."""
        if self.ranked_by == "accuracy":
            return ""
        return f"{skew_words(self.group.imbalance)}, so methods are ranked by balanced accuracy"


@dataclass(frozen=True)
class RowClasses:
    """Scores per class of one row: means over seeds, and a warning."""

    names: list[str]
    recall: list[float | None]
    """In %; None for a class without test images."""
    warning: str = ""

    @property
    def worst(self) -> str:
        """The class with the lowest recall; empty if no recall is known."""
        known = [(value, name) for name, value in self.by_name.items() if value is not None]
        return min(known)[1] if known else ""

    @property
    def by_name(self) -> dict[str, float | None]:
        """The recall by class name."""
        return dict(zip(self.names, self.recall, strict=True))


@dataclass(frozen=True)
class ScoreTable:
    """A table before it is printed."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    """The first row of every label, in the order of printing."""
    protocol: str
    which: str
    set_aside: tuple[RunSummary, ...]

    @property
    def problems(self) -> list[str]:
        """Problems in the files of the shown runs."""
        runs = [run for c in self.columns for row in c.group.rows for run in row.runs]
        return [problem for run in runs for problem in run.class_problems]

    def require_scores(self) -> None:
        """Raise CafedclError if no run has a score of the chosen models."""
        cells = [cell for c in self.columns for cell in c.cells.values()]
        if any(cell["accuracy"].values for cell in cells):
            return
        raise CafedclError(
            f"--protocol {self.protocol}: no run has a score of {PROTOCOLS[self.protocol]}; "
            f"try --protocol {self.other_protocol}"
        )

    @property
    def other_protocol(self) -> str:
        """The protocol to try for methods that have no score under this one."""
        return "own" if self.protocol == "server" else "server"

    @cached_property
    def caption(self) -> str:
        """The meaning of the numbers."""
        rows = [row for column in self.columns for row in column.group.rows]
        most = max((len(row.runs) for row in rows), default=0)
        seeds = f"mean ± std over up to {most} seeds" if most > 1 else "one seed"
        classes = "all classes"
        accuracy = "accuracy"
        if self.protocol != "server":
            classes = "the classes that a client holds"
            accuracy = "accuracy under the client's own label distribution, mean over clients"
        return (
            f"Scores of {PROTOCOLS[self.protocol]} in the {self.which} scored round, in %; "
            f"{seeds}. Acc.: {accuracy}. Bal.: balanced accuracy, the mean recall of {classes}. "
            "Class: recall of the worst class. Std.: standard deviation across clients. "
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
            if column.skew:
                lines.append(f"{title}: {column.skew}.")
            for label, classes in column.classes.items():
                if classes.warning:
                    lines.append(f"warning: {title}: {label}: {classes.warning}.")
            lacking = [row.label for row in rows if not column.cells[row.label]["accuracy"].values]
            if lacking:
                names = ", ".join(lacking)
                hint = f"try --protocol {self.other_protocol}"
                lines.append(f"{title}: not scored this way: {names}; {hint}.")
            lines += [f"warning: {title}: {row.label}: {row.losses}." for row in rows if row.losses]
            partial = [row.label for row in rows if row.partial]
            if partial:
                lines.append(f"{title}: not finished, scores so far: {', '.join(partial)}.")
            for row in rows:
                if row.spent:
                    lines.append(f"{title}: {row.label} is private: {row.spent}.")
            lines += [f"{title}: {words}." for words in trust_lines(rows)]
            lines += [f"{title}: {words}." for words in column.group.differing()]
        lines += [f"{run.state}: {run.path}: {run.problem}." for run in self.set_aside]
        return lines


def trust_lines(rows: Sequence[TableRow]) -> list[str]:
    """Return attack, defence and privacy in words, for rows whose labels do not name them."""
    known = {row.label: row.runs[0].trust for row in rows}
    shared = set(known.values())
    if len(shared) == 1:
        return [f"all runs have {words}" for words in shared if words]
    unnamed = [row.label for row in rows if not {"attack", "defence", "privacy"} & {*row.varied}]
    return [f"{label} has {known[label]}" for label in unnamed if known[label]]


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
    by = group.ranked_by
    for measure in (*TABLE_MEASURES, *FULL_MEASURES):
        scores = {row.label: row.scores(protocol, measure, which, by) for row in group.rows}
        shared = on_shared_seeds({label: scores[label] for label in ranked})
        means = [
            100 * mean(shared[label].values()) if shared.get(label) else None for label in scores
        ]
        places = ranks(means, higher=measure not in LOWER_IS_BETTER)
        for (label, values), rank in zip(scores.items(), places, strict=True):
            cells[label][measure] = Cell(tuple(100 * value for value in values.values()), rank)
    classes = {row.label: row_classes(row, protocol, which, by) for row in group.rows}
    return Column(
        group=group,
        position=paper_position(group.setting),
        cells=cells,
        comparison=compare_best(group, protocol, which),
        ranked_by=by,
        classes={label: found for label, found in classes.items() if found is not None},
    )


def row_classes(row: TableRow, protocol: str, which: str, by: str) -> RowClasses | None:
    """Return a row's recall per class; None if no seed has stored any."""
    return mean_classes(row.classes(protocol, which, by), protocol)


def mean_classes(seeds: Sequence[ClassScores], protocol: str) -> RowClasses | None:
    """Return the means over seeds of scores per class; None if no seed has any."""
    found = [each for each in seeds if protocol in each.recall]
    if not found:
        return None
    means = known_means(np.stack([each.recall[protocol] for each in found]))
    recall = [None if np.isnan(value) else 100 * float(value) for value in means]
    warnings = [each.one_class[protocol] for each in found if protocol in each.one_class]
    warning = warnings[0] if warnings else ""
    if warnings and len(found) > 1:
        warning = f"in {len(warnings)} of {len(found)} seeds {warning}"
    return RowClasses(found[0].names, recall, warning)


def contenders(group: SettingGroup) -> list[TableRow]:
    """Return the rows that are ranked: those that are finished, or all if none is.

    One client with all data is a reference for federated methods, not a competitor.
    """
    rivals = [row for row in group.rows if row.base != POOLED] or list(group.rows)
    return [row for row in rivals if not row.partial] or rivals


def ranks(values: Sequence[float | None], *, higher: bool) -> list[int]:
    """Return 1 for the best, 2 for the second best and so on; 0 without a value or a competitor.

    Values that are printed alike, with two decimals, have the same rank.
    """
    printed = [None if value is None else round(value, 2) for value in values]
    known = sorted({value for value in printed if value is not None}, reverse=higher)
    if sum(value is not None for value in printed) < 2:
        return [0] * len(values)
    rank_of = {value: rank for rank, value in enumerate(known, start=1)}
    return [0 if value is None else rank_of[value] for value in printed]


def compare_best(group: SettingGroup, protocol: str, which: str) -> PairedComparison | None:
    """Test the best row against the best row of another method, by the ranking score.

    If there is only one method, its second-best variant is used instead.
    """
    by = group.ranked_by
    of = "" if by == "accuracy" else f" of {RANKINGS[by]}"
    scores = {row.label: row.scores(protocol, by, which, by) for row in group.rows}
    scores |= on_shared_seeds({row.label: scores[row.label] for row in contenders(group)})
    known = [row for row in contenders(group) if scores[row.label]]
    ordered = sorted(known, key=lambda row: -mean(scores[row.label].values()))
    if len(ordered) < 2:
        return None
    best = ordered[0]
    runner_up = next((row for row in ordered if row.base != best.base), ordered[1])
    ours = scores[best.label]
    theirs = scores[runner_up.label]
    differences = [100 * gap for gap in paired(ours, theirs)]
    if len(differences) < 2:
        gap = 100 * (mean(ours.values()) - mean(theirs.values()))
        return PairedComparison(
            best.label,
            runner_up.label,
            len(differences),
            gap,
            of,
            missing="significance needs two shared seeds",
        )
    return PairedComparison(
        best.label, runner_up.label, len(differences), mean(differences), of, *p_values(differences)
    )
