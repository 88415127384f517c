"""One run folder as a typed summary: its options, its rounds, and its state.

A run that is unfinished, failed or damaged gets a state that says so, and raises no error: one bad
run must not hide the others.
"""

import math
import os
from collections.abc import Sequence
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
"""Names in metrics.jsonl of accuracy, spread across clients and accuracy of the worst tenth: for
the server's model, and for the clients' own models.
"""
SAME_EXPERIMENT = (
    "run.", "engine.", "store.", "data.dir", "data.download", "data.strict", "evaluate.batch",
    "method.name", "augment.name",
)  # fmt: skip
"""Prefixes of options in which two runs of the same experiment may differ.

The names of method and augmentation are here because they are compared separately.
"""
SETTING = ("data.", "split.", "federation.clients")
"""Prefixes of options that define the setting: data set × split × clients."""


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
        """The label of the method, with its preset and its tail augmentation."""
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
        """The number of rounds that the config asks for."""
        return int(self.settings.get("federation.rounds", 0))

    @cached_property
    def setting(self) -> "Setting":
        """The data set, the split and the number of clients."""
        return Setting.of(self.settings)

    @cached_property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """The options that define the experiment, without the setting and the seed."""
        return tuple(
            (name, repr(value))
            for name, value in sorted(self.settings.items())
            if not name.startswith((*SAME_EXPERIMENT, *SETTING))
        )

    def value(self, line: MetricsLine, protocol: str, score: str) -> float | None:
        """Return a score of a round, or None where it was not measured or is not a number."""
        scores = line.get(protocol)
        if not isinstance(scores, dict):
            return None
        value = scores.get(PROTOCOL_SCORES[protocol].get(score, score))
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def scored(self, protocol: str) -> list[MetricsLine]:
        """Return the rounds in which a protocol was measured."""
        return [line for line in self.lines if self.value(line, protocol, "accuracy") is not None]

    def chosen(self, protocol: str, which: str) -> MetricsLine | None:
        """Return the last or the best scored round; of several best rounds, the first."""
        scored = self.scored(protocol)
        if not scored:
            return None
        if which == "last":
            return scored[-1]
        return max(scored, key=lambda line: self.value(line, protocol, "accuracy") or 0.0)


@dataclass(frozen=True, order=True)
class Setting:
    """What methods are compared on: a data set, a split and a number of clients."""

    data: str
    kind: str
    value: str
    """The value after the colon of the split: α, or classes per client."""
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
        words = [self.value] if self.value else []
        if self.ir != 1:
            words.append(f"ir={self.ir:g}")
        return f"{self.kind}:{','.join(words)}" if words else self.kind

    @property
    def title(self) -> str:
        """The setting as a short title."""
        return f"{Path(self.data).name}, {self.split}, {self.clients} clients"


def find_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among and below the paths, each once; run folders are not nested."""
    found: list[Path] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise CafedclError(
                f"{path}: there is no such folder; give run folders, or folders that contain them"
            )
        for where, below, files in os.walk(path, followlinks=True):
            # Links are followed, so the same folder can appear twice, or contain itself.
            real = Path(where).resolve()
            if real in seen or "config.toml" in files:
                below.clear()
            if real not in seen and "config.toml" in files:
                found.append(Path(where))
            seen.add(real)
            below.sort()
    return found


def read_run(path: Path) -> RunSummary:
    """Read one run folder, whatever state it is in."""
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
        return replace(run, state="unfinished", problem=f"0 of {rounds} rounds are done")
    if all(line.get("status") == "skipped" for line in lines):
        return replace(
            run,
            state="failed",
            problem=f"all {len(lines)} rounds were skipped{first_reason(lines)}",
        )
    if not any(run.scored(protocol) for protocol in PROTOCOL_SCORES):
        if len(lines) < rounds:
            return replace(run, state="unfinished", problem="not scored yet")
        return replace(run, state="failed", problem="all scores are missing or NaN")
    if len(lines) < rounds:
        return replace(run, state="unfinished", problem=f"{len(lines)} of {rounds} rounds are done")
    return run


def read_lines(path: Path) -> tuple[list[MetricsLine], bool]:
    """Return the rounds, and whether the file is damaged in more than its last line.

    A last line that is cut off is normal: the process was killed while it wrote it.
    """
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
    """Return whether the parts of a line that are summed up have the expected types."""
    for name in ("traffic", "seconds"):
        numbers = line.get(name) or {}
        if not isinstance(numbers, dict):
            return False
        if not all(isinstance(value, int | float) for value in numbers.values()):
            return False
    failed = line.get("failed") or []
    dropped = line.get("dropped") or []
    if not isinstance(failed, list) or not isinstance(dropped, list):
        return False
    return all(isinstance(failure, dict) for failure in failed)


def first_reason(lines: Sequence[MetricsLine]) -> str:
    """Return the reason of the first failure as the end of a sentence; empty if there is none."""
    for line in lines:
        for failure in line.get("failed") or ():
            reason = " ".join(str(failure.get("reason")).split())
            return f"; client {failure.get('client')}: {reason}"
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
