"""Reading run folders into a typed summary: who ran, on what, how far, and which runs belong
together.

A run that is unfinished, failed or damaged is kept with its state and never stops the others from
being read.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cafedcl.config.sections import SPLITS, label
from cafedcl.core.errors import CafedclError
from cafedcl.federation.run_folder import MetricsLine, RunFolder

FlatSettings = dict[str, Any]
"""A config with flat names, such as ``train.lr``."""

PROTOCOL_SCORES = {
    "server": {"accuracy": "accuracy", "std": "client_std", "worst": "client_worst"},
    "own": {"accuracy": "client_mean", "std": "client_std", "worst": "client_worst"},
}
"""What stands for accuracy, spread between clients and worst tenth: for the server's model, for the
clients' own.
"""
KEPT_OUT = (
    "run.", "engine.", "store.", "data.dir", "data.download", "data.strict", "evaluate.batch", "method.name",
    "augment.name",
)  # fmt: skip
"""Options that do not make another experiment."""
SETTING = ("data.", "split.", "federation.clients")
"""Options that make the setting: data set × split × clients."""


@dataclass(frozen=True)
class RunSummary:
    """One run folder."""

    path: Path
    state: str
    """finished, unfinished, failed, damaged or repeated."""
    problem: str = ""
    settings: FlatSettings = field(default_factory=dict)
    lines: list[MetricsLine] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The method with its preset and its tail augmentation."""
        return label(
            str(self.settings.get("method.name", "?")),
            str(self.settings.get("augment.name", "none")),
        )

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings.get("run.seed", 0))

    @property
    def rounds(self) -> int:
        """How many rounds were asked for."""
        return int(self.settings.get("federation.rounds", 0))

    @cached_property
    def setting(self) -> "Setting":
        """The data set, how it was dealt, and to how many clients."""
        return Setting.of(self.settings)

    @cached_property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """Everything that makes this experiment what it is, but for the setting and the seed."""
        return tuple(
            (name, repr(value))
            for name, value in sorted(self.settings.items())
            if not name.startswith((*KEPT_OUT, *SETTING))
        )

    def value(self, line: MetricsLine, protocol: str, score: str) -> float | None:
        """Return a score of a round, or None where it was not measured or is not a number."""
        scores = line.get(protocol)
        value = (
            scores.get(PROTOCOL_SCORES[protocol].get(score, score))
            if isinstance(scores, dict)
            else None
        )
        usable = isinstance(value, int | float) and math.isfinite(value)
        return float(value) if usable and value is not None else None

    def scored(self, protocol: str) -> list[MetricsLine]:
        """Return the rounds in which a protocol was measured."""
        return [line for line in self.lines if self.value(line, protocol, "accuracy") is not None]

    def chosen(self, protocol: str, which: str) -> MetricsLine | None:
        """Return the last or the best scored round; the first of the best, if there are several."""
        scored = self.scored(protocol)
        if not scored:
            return None
        return (
            max(scored, key=lambda line: self.value(line, protocol, "accuracy") or 0.0)
            if which == "best"
            else scored[-1]
        )


@dataclass(frozen=True, order=True)
class Setting:
    """Where methods meet: a data set, a split and a number of clients."""

    data: str
    kind: str
    value: str
    """The number behind the colon: α, or classes per client."""
    ir: float
    clients: int

    @classmethod
    def of(cls, settings: FlatSettings) -> "Setting":
        """Read it from a run's settings."""
        kind = str(settings.get("split.kind", "?"))
        main = SPLITS.get(kind)
        value = "" if main is None else str(settings.get(f"split.{main}", ""))
        if kind == "dirichlet" and settings.get("split.form") == "class":
            value += ",form=class"
        ratio = settings.get("split.ir", 1.0)
        clients = settings.get("federation.clients", 0)
        return cls(str(settings.get("data.name", "?")), kind, value, float(ratio), int(clients))

    @property
    def split(self) -> str:
        """The split as it is written on the command line."""
        words = [word for word in (self.value, f"ir={self.ir:g}" if self.ir != 1 else "") if word]
        return self.kind + (":" + ",".join(words) if words else "")

    @property
    def title(self) -> str:
        """The setting in a few words."""
        return f"{Path(self.data).name}, {self.split}, {self.clients} clients"


@dataclass(frozen=True)
class TableRow:
    """A row of a table: one variant of one method in one setting, with a run per seed."""

    label: str
    method: str
    runs: tuple[RunSummary, ...]
    partial: bool
    """No run of it is finished; what there is is shown and marked."""
    changed: dict[str, Any] = field(default_factory=dict)
    """The options in which it differs from the main variant of its method."""

    @property
    def base(self) -> str:
        """The method without its preset."""
        return self.method.partition(":")[0]

    @property
    def swept(self) -> tuple[str, float] | None:
        """The one numeric option in which it differs from the main variant, if that is all."""
        if len(self.changed) != 1:
            return None
        ((name, value),) = self.changed.items()
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return (
            (name, float(value)) if numeric and not name.startswith("federation.rounds") else None
        )

    def scores(self, protocol: str, score: str, which: str = "last") -> dict[int, float]:
        """Return a score by seed."""
        found = {}
        for run in self.runs:
            line = run.chosen(protocol, which)
            value = None if line is None else run.value(line, protocol, score)
            if value is not None:
                found[run.seed] = value
        return found


@dataclass(frozen=True)
class SettingGroup:
    """All that ran in one setting."""

    setting: Setting
    entries: tuple[TableRow, ...]

    @property
    def main(self) -> tuple[TableRow, ...]:
        """The entries without those that only sweep a numeric option."""
        return tuple(entry for entry in self.entries if entry.swept is None)

    def differing(self) -> dict[str, list[str]]:
        """Return the seeds and the options beyond the method's own in which its main entries
        differ: what is unfair.
        """
        kept = ("model.", "train.", "federation.", "evaluate.")
        values: dict[str, Counter[str]] = {}
        for entry in self.main:
            for name, value in entry.runs[0].variant:
                if name.startswith(kept) and name not in entry.changed:
                    values.setdefault(name, Counter())[value] += 1
        seeds = Counter(", ".join(str(run.seed) for run in entry.runs) for entry in self.main)
        return {
            name: sorted(seen) for name, seen in {**values, "seeds": seeds}.items() if len(seen) > 1
        }


@dataclass(frozen=True)
class Summary:
    """Everything that was found."""

    groups: tuple[SettingGroup, ...]
    runs: tuple[RunSummary, ...]

    @property
    def set_aside(self) -> tuple[RunSummary, ...]:
        """The runs that are not finished, or not used."""
        return tuple(run for run in self.runs if run.state != "finished")


def read_runs(paths: Iterable[str | Path]) -> Summary:
    """Find and read all run folders; raises CafedclError only if there is none at all."""
    given = [Path(path) for path in paths]
    folders = find_folders(given)
    if not folders:
        raise CafedclError(
            f"{', '.join(map(str, given))}: holds no run folder (none with a config.toml); start one with `cafedcl run`"
        )
    return summarise([read_run(folder) for folder in folders])


def summarise(found: Sequence[RunSummary]) -> Summary:
    """Put together the runs that belong together."""
    runs = set_repeats_aside(found)
    settings = sorted({run.setting for run in runs if usable(run)})
    groups = [
        SettingGroup(setting, table_rows([r for r in runs if usable(r) and r.setting == setting]))
        for setting in settings
    ]
    return Summary(tuple(groups), tuple(runs))


def find_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among and below the paths, each once; nothing is searched inside a run
    folder.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise CafedclError(
                f"{path}: there is no such folder; give run folders, or folders that contain them"
            )
        for where, below, files in os.walk(path, followlinks=True):
            real = Path(where).resolve()
            if real in seen or "config.toml" in files:
                below.clear()
            if real not in seen and "config.toml" in files:
                found.append(Path(where))
            seen.add(real)
            below.sort()
    return found


def read_run(path: Path) -> RunSummary:
    """Read one run folder, whatever shape it is in."""
    try:
        settings = flat(RunFolder(path).tables())
    except CafedclError as error:
        return RunSummary(path, "damaged", str(error))
    run = RunSummary(path, "finished", "", settings)
    try:
        setting = run.setting
        rounds = run.rounds
        seed = run.seed
        lines, cut = read_lines(path)
    except (OSError, ValueError, TypeError) as error:
        return RunSummary(
            path, "damaged", f"{path}: cannot be read: {error}", {"method.name": run.method}
        )
    if "method.name" not in settings or not rounds or not setting.clients or seed < 0:
        return RunSummary(
            path,
            "damaged",
            f"{path}/config.toml: not the config of a run",
            {"method.name": run.method},
        )
    run = replace(run, lines=lines)
    if cut:
        return replace(
            run, state="damaged", problem=f"metrics.jsonl can be read up to round {len(lines)} only"
        )
    if not lines:
        return replace(run, state="unfinished", problem=f"no round of {rounds} is done")
    if all(line.get("status") == "skipped" for line in lines):
        return replace(
            run,
            state="failed",
            problem=f"all {len(lines)} rounds were skipped{first_reason(lines)}",
        )
    if not any(run.scored(protocol) for protocol in PROTOCOL_SCORES):
        finished = len(lines) >= rounds
        state, problem = (
            ("failed", "no round has a score that is a number")
            if finished
            else ("unfinished", "not scored yet")
        )
        return replace(run, state=state, problem=problem)
    if len(lines) < rounds:
        return replace(run, state="unfinished", problem=f"{len(lines)} of {rounds} rounds are done")
    return run


def read_lines(path: Path) -> tuple[list[MetricsLine], bool]:
    """Return the rounds, and whether more than a last, cut-off line could not be read."""
    lines = RunFolder(path).metrics()
    whole: list[MetricsLine] = []
    for line in lines:
        if (
            not isinstance(line, dict)
            or line.get("round") != len(whole)
            or not is_well_formed(line)
        ):
            return whole, True
        whole.append(line)
    file = path / "metrics.jsonl"
    written = file.read_bytes().count(b"\n") if file.is_file() else 0
    return whole, written > len(whole)


def is_well_formed(line: MetricsLine) -> bool:
    """Return whether the parts of a line that are added up are what they should be."""
    sums = [line.get(name) or {} for name in ("traffic", "seconds")]
    lists = [line.get(name) or [] for name in ("failed", "dropped")]
    if not all(isinstance(part, dict) for part in sums) or not all(
        isinstance(part, list) for part in lists
    ):
        return False
    return all(isinstance(v, int | float) for part in sums for v in part.values()) and all(
        isinstance(failure, dict) for failure in lists[0]
    )


def first_reason(lines: Sequence[MetricsLine]) -> str:
    """Return why the first client failed, if one did."""
    for line in lines:
        for failure in line.get("failed") or ():
            return (
                f"; client {failure.get('client')}: {' '.join(str(failure.get('reason')).split())}"
            )
    return ""


def flat(tables: FlatSettings) -> FlatSettings:
    """Return a config's options with flat names."""
    return {
        f"{section}.{name}": value
        for section, table in tables.items()
        if isinstance(table, dict)
        for name, value in table.items()
    }


def usable(run: RunSummary) -> bool:
    """Return whether a run has scores to show."""
    return run.state in ("finished", "unfinished") and any(
        run.scored(protocol) for protocol in PROTOCOL_SCORES
    )


def set_repeats_aside(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Mark runs that repeat another one's experiment and seed; the one that got furthest stays."""
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
    """Return the rows of one setting: a method's runs that differ in nothing but the seed are one
    row.
    """
    rows = []
    for method in sorted({run.method for run in runs}, key=method_order):
        variants: dict[Any, list[RunSummary]] = {}
        for run in runs:
            if run.method == method:
                variants.setdefault(run.variant, []).append(run)
        main = main_variant(variants)
        made = [table_row(method, members, main[0]) for members in variants.values()]
        rows += sorted(
            made, key=lambda row: [(name, *sort_key(value)) for name, value in row.changed.items()]
        )
    return tuple(rows)


def sort_key(value: Any) -> tuple[float, str]:
    """Return what sorts numbers as numbers, and everything else as text after them."""
    numeric = isinstance(value, int | float) and math.isfinite(value)
    return (float(value), "") if numeric else (math.inf, str(value))


def table_row(method: str, members: Sequence[RunSummary], main: RunSummary) -> TableRow:
    """Return one row; its finished runs, or all if none is."""
    finished = [run for run in members if run.state == "finished"]
    chosen = sorted(finished or members, key=lambda run: run.seed)
    before = dict(main.variant)
    now = dict(members[0].variant)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    changed = {name: members[0].settings.get(name) for name in names}
    words = [f"{name.removeprefix('method.')}={value}" for name, value in changed.items()]
    label = f"{method} ({', '.join(words)})" if words else method
    return TableRow(label, method, tuple(chosen), not finished, changed)


def main_variant(variants: dict[Any, list[RunSummary]]) -> list[RunSummary]:
    """Return the variant that the others depart from: most seeds, then nearest to all others, then
    first by path.
    """

    def distance(one: Any) -> int:
        return sum(len(set(one) ^ set(other)) for other in variants)

    return min(
        variants.items(),
        key=lambda item: (-len(item[1]), distance(item[0]), min(r.path for r in item[1])),
    )[1]


ORDER = (
    "local", "central", "fedavg", "fedprox", "scaffold", "fedbn", "moon", "fedproto", "fedrcl", "fedproc", "fedlc",
    "mp-fedcl", "fedtgp", "fednh",
)  # fmt: skip
"""The order of rows: references, then the paper's, then whatever is not named here, and CAFedCL
last.
"""


def method_order(name: str) -> tuple[int, str]:
    """Return a method's place among the rows."""
    base = name.partition(":")[0]
    if base == "cafedcl":
        return (len(ORDER) + 1, name)
    return (ORDER.index(base) if base in ORDER else len(ORDER), name)
