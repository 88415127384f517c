"""Many runs, grouped: runs that differ only in the seed make a row, rows of one setting a group."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cafedcl.config.server_options import OPTIMIZERS
from cafedcl.core.errors import CafedclError
from cafedcl.core.steps import tracked
from cafedcl.methods import method_names
from cafedcl.report.class_scores import SKEWED, ClassScores
from cafedcl.report.run_summary import (
    RunSummary,
    find_folders,
    read_run,
    usable,
)
from cafedcl.report.setting import Setting

FEW = 4
"""More methods than this are counted instead of named."""
OF_SERVER_OPTIMIZERS = {
    f"server.{name}": {kind for kind, used in OPTIMIZERS.items() if name in used}
    for names in OPTIMIZERS.values()
    for name in names
}
"""The server's optimizers that use an option; with others, its value changes nothing."""


@dataclass(frozen=True)
class TableRow:
    """A row of a table: one variant of one method in one setting, with a run per seed."""

    method: str
    runs: tuple[RunSummary, ...]
    partial: bool
    """Whether none of its runs is finished; then unfinished runs are shown and marked."""
    changed: dict[str, Any] = field(default_factory=dict)
    """The options in which it differs from the main variant of its method."""
    varied: tuple[str, ...] = ()
    """The options that its label names."""

    @property
    def label(self) -> str:
        """The method, with the values of the options that vary."""
        values = {name: self.runs[0].settings.get(name) for name in self.varied}
        words = [
            f"{name.removeprefix('method.')}={'none' if value is None else value}"
            for name, value in values.items()
        ]
        return f"{self.method} ({', '.join(words)})" if words else self.method

    @property
    def base(self) -> str:
        """The method without its preset."""
        return base_method(self.method)

    @property
    def swept(self) -> tuple[str, float] | None:
        """The numeric option that is the only difference to the main variant, and its value."""
        if len(self.changed) != 1:
            return None
        ((name, value),) = self.changed.items()
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric or name.startswith("federation.rounds"):
            return None
        return name, float(value)

    def scores(
        self, protocol: str, score: str, which: str = "last", by: str = "accuracy"
    ) -> dict[int, float]:
        """Return a score by seed, of the last round, or of the best one ``by`` another score."""
        found = {}
        for run in self.runs:
            line = run.chosen(protocol, which, by)
            if line is None:
                continue
            value = run.score(line, protocol, score)
            if value is not None:
                found[run.seed] = value
        return found

    @property
    def caveats(self) -> str:
        """What weakens the scores: missing rounds or replies; empty if nothing does."""
        unfinished = "not finished, scores so far" if self.partial else ""
        return "; ".join(filter(None, [unfinished, self.losses]))

    @property
    def spent(self) -> str:
        """The privacy that the runs have spent; empty if none."""
        return ", ".join(sorted({run.spent for run in self.runs} - {""}))

    @property
    def losses(self) -> str:
        """Rounds that did not count and replies that were lost, in words; empty if none were."""
        skipped = sum(run.skipped_rounds for run in self.runs)
        failed = sum(run.failed_replies for run in self.runs)
        rounds = sum(run.rounds for run in self.runs)
        words = [f"{skipped} of {rounds} rounds did not count"] if skipped else []
        words += [f"{failed} replies failed or were rejected"] if failed else []
        return ", ".join(words)

    def classes(
        self, protocol: str, which: str = "last", by: str = "accuracy"
    ) -> list[ClassScores]:
        """Return the scores per class of every seed that has them."""
        lines = [(run, run.chosen(protocol, which, by)) for run in self.runs]
        found = [run.classes(line) for run, line in lines if line is not None]
        return [classes for classes in found if classes is not None]


@dataclass(frozen=True)
class SettingGroup:
    """All runs in one setting."""

    setting: Setting
    rows: tuple[TableRow, ...]

    @property
    def main(self) -> tuple[TableRow, ...]:
        """The rows without those that only sweep a numeric option."""
        return tuple(row for row in self.rows if row.swept is None)

    @cached_property
    def imbalance(self) -> float:
        """The ratio of the largest to the smallest class in test images."""
        found = [each for row in self.rows for each in row.classes("server") or row.classes("own")]
        stored = [run.stored.get("imbalance", 1.0) for row in self.rows for run in row.runs]
        return max([*(each.imbalance for each in found), *stored], default=1.0)

    @property
    def ranked_by(self) -> str:
        """The score that methods are ranked by: balanced accuracy if test labels are skewed."""
        return "balanced" if self.imbalance >= SKEWED else "accuracy"

    def differing(self) -> list[str]:
        """Return in which seeds and common options the main rows differ, and which rows have which.

        Such differences make a comparison of methods unfair. Options of the methods themselves, and
        options that were changed on purpose, do not.
        """
        common = (
            "model.", "train.", "server.", "federation.", "evaluate.", "attack", "defence",
            "privacy", "release.",
        )  # fmt: skip
        holders: dict[str, dict[str, list[str]]] = {}
        for row in self.main:
            for name, value in row.runs[0].variant:
                users = OF_SERVER_OPTIMIZERS.get(name)
                if users and row.runs[0].settings.get("server.optimizer") not in users:
                    continue
                if name.startswith(common) and name not in row.changed:
                    told = value.strip("'")
                    holders.setdefault(name, {}).setdefault(told, []).append(row.label)
            seeds = ", ".join(str(run.seed) for run in row.runs)
            holders.setdefault("seeds", {}).setdefault(seeds, []).append(row.label)
        return [
            f"methods differ in {name}: "
            + " / ".join(f"{value} ({few(labels)})" for value, labels in sorted(values.items()))
            for name, values in holders.items()
            if len(values) > 1
        ]


def few(labels: Sequence[str]) -> str:
    """Return labels, or their number if they are many."""
    return ", ".join(labels) if len(labels) <= FEW else f"{len(labels)} methods"


@dataclass(frozen=True)
class Summary:
    """All groups, and all runs."""

    groups: tuple[SettingGroup, ...]
    runs: tuple[RunSummary, ...]

    @property
    def set_aside(self) -> tuple[RunSummary, ...]:
        """The runs that are unfinished, failed, damaged or repeated."""
        return tuple(run for run in self.runs if run.state != "finished")

    def require_scores(self) -> None:
        """Raise CafedclError if no run has anything to show."""
        if self.groups:
            return
        listed = "; ".join(f"{run.path}: {run.state}: {run.problem}" for run in self.runs[:5])
        more = f"; and {len(self.runs) - 5} more" if len(self.runs) > 5 else ""
        raise CafedclError(f"no run has a scored round to show ({listed}{more})")


def read_runs(paths: Iterable[str | Path]) -> Summary:
    """Find and read all run folders; raises CafedclError only if there is none at all."""
    given = [Path(path) for path in paths]
    if not given:
        raise CafedclError("no run folder is given")
    folders = find_folders(given)
    if not folders:
        raise CafedclError(
            f"{', '.join(map(str, given))}: holds no run folder (none with a config.toml); "
            "start one with `cafedcl run`"
        )
    counted = tracked(folders, "reading runs", len(folders), "runs")
    return summarise([read_run(folder) for folder in counted])


def summarise(found: Sequence[RunSummary]) -> Summary:
    """Group runs by setting, method and variant."""
    runs = set_repeats_aside(tell_data_apart(found))
    settings = sorted({run.setting for run in runs if usable(run)})
    groups = [
        SettingGroup(setting, table_rows([r for r in runs if usable(r) and r.setting == setting]))
        for setting in settings
    ]
    return Summary(tuple(groups), tuple(runs))


def tell_data_apart(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs, noting how data sets that only seem to be the same differ from others.

    Titles show the last part of a path, which several folders may share. And a folder may have
    changed between two runs: scores on different classes cannot be averaged. A run whose classes
    are not known stays with the first one of its setting.
    """
    folders: dict[str, set[str]] = {}
    examples: dict[Setting, dict[tuple[str, ...], RunSummary]] = {}
    for run in filter(usable, runs):
        folders.setdefault(Path(run.setting.data).name, set()).add(run.setting.data)
        if run.class_names:
            examples.setdefault(run.setting, {}).setdefault(run.class_names, run)
    told = []
    for run in runs:
        words = []
        if usable(run):
            data = Path(run.setting.data)
            known = examples.get(run.setting, {})
            if len(folders[data.name]) > 1:
                words.append(f"in {data.parent}")
            if len(known) > 1:
                like = known.get(run.class_names) or next(iter(known.values()))
                words.append(f"{len(like.class_names)} classes as in {like.path.name}")
        told.append(replace(run, other_data=", ".join(words)) if words else run)
    return told


def set_repeats_aside(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Mark runs that repeat another's experiment and seed; the one with most rounds is kept."""
    best: dict[Any, RunSummary] = {}
    for run in runs:
        if usable(run):
            key = (run.setting, run.method, run.variant, run.seed)
            if key not in best or len(run.lines) > len(best[key].lines):
                best[key] = run
    kept = {run.path for run in best.values()}
    marked = []
    for run in runs:
        if usable(run) and run.path not in kept:
            other = best[run.setting, run.method, run.variant, run.seed]
            run = replace(
                run, state="repeated", problem=f"the same experiment and seed as {other.path}"
            )
        marked.append(run)
    return marked


def table_rows(runs: Sequence[RunSummary]) -> tuple[TableRow, ...]:
    """Return the rows of one setting: a method's runs that differ only in the seed are one row."""
    rows = []
    for method in sorted({run.method for run in runs}, key=method_order):
        variants: dict[Any, list[RunSummary]] = {}
        for run in runs:
            if run.method == method:
                variants.setdefault(run.variant, []).append(run)
        main = main_variant(variants)
        made = [table_row(method, members, main[0]) for members in variants.values()]
        rows += sorted(with_swept_values(made), key=row_order)
    return tuple(rows)


def row_order(row: TableRow) -> list[tuple[str, float, str]]:
    """Return the sort key of a row among those of its method."""
    return [(name, *sort_key(row.runs[0].settings.get(name))) for name in row.varied]


def with_swept_values(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows of a method; in a sweep, all of them are named by their values.

    A sweep is rows with equally many seeds that differ in the same options, or are all combinations
    of the options' values. Otherwise the main variant has the method's plain name, and every other
    row is named by what differs from it.
    """
    differences = {tuple(row.changed) for row in rows if row.changed}
    if not differences or len({len(row.runs) for row in rows}) != 1:
        return list(rows)
    names = max(differences, key=len)
    points = {tuple(str(row.runs[0].settings.get(name)) for name in names) for row in rows}
    combinations = math.prod(len(set(values)) for values in zip(*points, strict=True))
    grid = set().union(*differences) == set(names) and len(rows) == len(points) == combinations
    if len(differences) != 1 and not grid:
        return list(rows)
    return [replace(row, varied=names) for row in rows]


def sort_key(value: Any) -> tuple[float, str]:
    """Return a key that sorts numbers as numbers, and everything else as text after them."""
    numeric = isinstance(value, int | float) and math.isfinite(value)
    return (float(value), "") if numeric else (math.inf, str(value))


def table_row(method: str, members: Sequence[RunSummary], main: RunSummary) -> TableRow:
    """Return one row with its finished runs, or with all runs if none is finished."""
    finished = [run for run in members if run.state == "finished"]
    chosen = sorted(finished or members, key=lambda run: run.seed)
    before = dict(main.variant)
    now = dict(members[0].variant)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    changed = {name: members[0].settings.get(name) for name in names}
    return TableRow(method, tuple(chosen), not finished, changed, tuple(changed))


def main_variant(variants: dict[Any, list[RunSummary]]) -> list[RunSummary]:
    """Return the main variant of a method, to which the others are compared.

    It has no attack, defence or privacy if there is such a variant, and the most seeds. If several
    tie, it is the one most similar to all others, then the first by path.
    """

    def distance(one: Any) -> int:
        return sum(len(set(one) ^ set(other)) for other in variants)

    def order(one: Any) -> tuple[bool, int, int, Path]:
        runs = variants[one]
        return bool(runs[0].trust), -len(runs), distance(one), min(run.path for run in runs)

    return variants[min(variants, key=order)]


POOLED = "central"
"""The method in which one client has all data."""
ORDER = (
    "local", "central", "fedavg", "fedprox", "scaffold", "fedbn", "moon", "fedproto", "fedrcl",
    "fedproc", "fedlc", "mp-fedcl", "fedtgp", "fednh",
)  # fmt: skip
"""The order of rows: references, the paper's methods, all others, and CAFedCL last."""


def base_method(name: str) -> str:
    """Return a method without its preset, even a user's own method, MODULE:NAME:PRESET."""
    base, *rest = name.split(":")
    return base if base in method_names() else ":".join([base, *rest[:1]])


def method_order(name: str) -> tuple[int, str]:
    """Return the sort key of a method among the rows."""
    base = base_method(name)
    if base == "cafedcl":
        return (len(ORDER) + 1, name)
    return (ORDER.index(base) if base in ORDER else len(ORDER), name)
