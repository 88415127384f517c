"""One run folder as a typed summary: its options, its rounds, and its state.

An unfinished, failed or damaged run has a state that says so, and raises no error: one bad run must
not hide the others.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cafedcl.config.options import flattened
from cafedcl.config.privacy_options import short_privacy, shown_epsilon
from cafedcl.config.sections import label
from cafedcl.config.trust_options import short_attack, short_defence, trust_words
from cafedcl.core.client_names import client_title
from cafedcl.core.errors import CafedclError
from cafedcl.core.printable import printable
from cafedcl.federation.metrics_file import MetricsLine, last_round, on_most_clients
from cafedcl.federation.run_folder import RunFolder, any_round_counted
from cafedcl.report.class_scores import ClassScores, read_class_scores
from cafedcl.report.setting import FlatSettings, Setting

PROTOCOL_SCORES = {
    "server": {"accuracy": "accuracy", "std": "client_std", "worst": "client_worst"},
    "own": {
        "accuracy": "client_mean",
        "balanced": "client_balanced",
        "std": "client_std",
        "worst": "client_worst",
    },
    "own-prior": {
        "accuracy": "prior_mean",
        "balanced": "prior_balanced",
        "worst_class": "prior_worst_class",
        "std": "prior_std",
        "worst": "prior_worst",
    },
}
"""Names in metrics.jsonl of scores that every protocol has, where the names differ: for the
server's model, for the clients' own models, and for these with log π_k added to their scores.
"""
FROM_TABLES = ("balanced", "worst_class")
"""Scores that the tables of a round give where an earlier version did not store them."""
PARTS = {"server": "server", "own": "own", "own-prior": "own"}
"""The part of a line of metrics that has the scores of a protocol."""
SAME_EXPERIMENT = (
    "run.", "engine.", "store.", "data.dir", "data.download", "data.strict", "evaluate.batch",
    "method.name", "augment.name",
)  # fmt: skip
"""Prefixes of options in which two runs of the same experiment may differ.

The names of method and augmentation are here because they are compared separately.
"""
SHOWN_IN_SHORT = {
    "attack": short_attack,
    "defence": short_defence,
    "privacy": short_privacy,
}
"""Sections that are shown as one option each: attack, defence and privacy."""
SETTING = ("data.", "split.", "federation.clients")
"""Prefixes of options that define the setting: data set × split × clients."""


def round_seconds(line: MetricsLine) -> float:
    """Return the seconds that a round took."""
    return float(sum((line.get("seconds") or {}).values()))


@dataclass(frozen=True)
class RunSummary:
    """One run folder."""

    path: Path
    state: str
    """finished, unfinished, failed, damaged or repeated."""
    problem: str = ""
    settings: FlatSettings = field(default_factory=dict)
    lines: list[MetricsLine] = field(default_factory=list)
    other_data: str = ""
    """What distinguishes its data from another run's data with the same name."""
    stored: dict[str, float] = field(default_factory=dict)
    """Values of the whole run from a results file, which has only the last round."""

    @property
    def method(self) -> str:
        """The label of the method, with its preset and its tail augmentation."""
        return label(
            self.settings.get("method.name", "?"), self.settings.get("augment.name", "none")
        )

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names; empty if they have numbers only, or if the file is damaged."""
        return tuple(printable(name) for name in self._data_header.get("clients", ()))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; empty if the file is damaged."""
        return tuple(self._data_header.get("names", ()))

    @cached_property
    def _data_header(self) -> dict[str, Any]:
        try:
            return RunFolder(self.path).data()[1]
        except CafedclError:
            return {}

    @property
    def skipped_rounds(self) -> int:
        """Rounds that did not count."""
        counted = sum(line.get("status") == "skipped" for line in self.lines)
        return int(self.stored.get("skipped_rounds", counted))

    @property
    def seconds(self) -> float:
        """The seconds that all rounds took."""
        return sum(map(round_seconds, self.lines))

    @property
    def failed_replies(self) -> int:
        """Replies of clients that failed or were rejected."""
        counted = sum(len(line.get("failed") or ()) for line in self.lines)
        return int(self.stored.get("failed_visits", counted))

    @property
    def trust(self) -> str:
        """The attack, the defence and the privacy in words; empty if there are none."""
        return trust_words(*(self.settings.get(section, "none") for section in SHOWN_IN_SHORT))

    @property
    def spent(self) -> str:
        """The privacy that the run has spent, such as ``ε 7.91 at δ = 1e-05``; empty if none."""
        privacy = self.lines[-1].get("privacy", {}) if self.lines else {}
        epsilon = shown_epsilon(privacy)
        return f"{epsilon} at δ = {privacy['delta']:g}" if epsilon else ""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings.get("run.seed", 0))

    @property
    def rounds(self) -> int:
        """The number of rounds that the config asks for."""
        return int(self.settings.get("federation.rounds", 0))

    @cached_property
    def setting(self) -> Setting:
        """The data set, the split and the number of clients."""
        return Setting.of(self.settings, self.other_data)

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
        part = PARTS[protocol]
        scores = line.get(part)
        if not isinstance(scores, dict):
            return None
        # Scores without their own name under a protocol belong to the whole part.
        name = PROTOCOL_SCORES[protocol].get(score, score if part == protocol else "")
        value = scores.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def classes(self, line: MetricsLine) -> ClassScores | None:
        """Return the scores per class of a round; None, with a problem, if they are damaged."""
        number = int(line["round"])
        if number not in self._classes:
            try:
                self._classes[number] = read_class_scores(self.path, line)
            except CafedclError as error:
                self._classes[number] = None
                self.class_problems.append(str(error))
        return self._classes[number]

    def last_classes(self) -> ClassScores | None:
        """Return the scores per class of the last scored round, if there is one."""
        line = self.chosen("server", "last") or self.chosen("own", "last")
        return None if line is None else self.classes(line)

    @cached_property
    def class_problems(self) -> list[str]:
        """Problems in the tables that scores per class were read from."""
        return []

    @cached_property
    def _classes(self) -> dict[int, ClassScores | None]:
        return {}

    def score(self, line: MetricsLine, protocol: str, score: str) -> float | None:
        """Return a score of a round, from its tables if the line does not have it."""
        value = self.value(line, protocol, score)
        if value is not None or score not in FROM_TABLES:
            return value
        classes = self.classes(line)
        return None if classes is None else classes.score(protocol, score)

    def scored(self, protocol: str) -> list[MetricsLine]:
        """Return the rounds in which a protocol was measured."""
        return [line for line in self.lines if self.value(line, protocol, "accuracy") is not None]

    def chosen(self, protocol: str, which: str, by: str = "accuracy") -> MetricsLine | None:
        """Return the last scored round, or the best one by a score among those on most clients; if
        several tie, the first.
        """
        scored = self.scored(protocol)
        if not scored:
            return None
        if which == "last":
            return scored[-1]
        among = on_most_clients(scored) if protocol == "server" else scored
        return max(among, key=lambda line: self.score(line, protocol, by) or 0.0)


def find_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among and below the paths, each once; run folders are not nested.

    A folder with metrics but without a config, or one that cannot be listed, is also returned: it
    is reported as damaged when it is read.
    """
    found: list[Path] = []
    seen: set[Path] = set()

    def keep_unlisted(error: OSError) -> None:
        found.append(Path(error.filename))

    for path in paths:
        if not path.is_dir():
            raise CafedclError(
                f"{path}: there is no such folder; give run folders, or folders that contain them"
            )
        for where, below, files in os.walk(path, onerror=keep_unlisted, followlinks=True):
            # Links are followed, so the same folder can appear twice, or contain itself.
            real = Path(where).resolve()
            is_run = not {"config.toml", "metrics.jsonl"}.isdisjoint((*files, *below))
            if real in seen or is_run:
                below.clear()
            if real not in seen and is_run:
                found.append(Path(where))
            seen.add(real)
            below.sort()
    return found


def read_run(path: Path) -> RunSummary:
    """Read one run folder, whatever state it is in."""
    folder = RunFolder(path)
    settings: FlatSettings = {}
    try:
        settings = flat(folder.tables())
        check_settings(settings)
    except CafedclError as error:
        return RunSummary(path, "damaged", str(error))
    except ValueError as error:
        problem = f"{path}/config.toml: damaged: {error}; restore it from a backup"
        return RunSummary(path, "damaged", problem)
    read = folder.metrics_file.read()
    run = RunSummary(path, "finished", "", settings, read.lines)
    damage = read.problem or lost_rounds(folder, run)
    if damage:
        return replace(
            run, state="damaged", problem=f"{damage}; {folder.advice_for_metrics(len(run.lines))}"
        )
    state, problem = state_of(run)
    return replace(run, state=state, problem=problem)


def lost_rounds(folder: RunFolder, run: RunSummary) -> str:
    """Return what is wrong if the metrics have fewer rounds than the checkpoints have saved.

    A crash can lose only the last round's line: the checkpoint of a round is written after the
    lines of all rounds before it.
    """
    done = len(run.lines)
    try:
        files = folder.checkpoints()
    except CafedclError:
        # They may not be listed, but all scores are available.
        return ""
    for file in files:
        # A file of a round that the run does not have comes from elsewhere.
        if done + 1 < int(file.stem) <= run.rounds:
            return f"{folder.metrics_file.path}: it has {done} rounds, but {file} was saved later"
    return ""


def state_of(run: RunSummary) -> tuple[str, str]:
    """Return the state and the problem of a run whose metrics are not damaged."""
    done = len(run.lines)
    if not run.lines:
        return "unfinished", f"0 of {run.rounds} rounds are done"
    if not any_round_counted(run.lines):
        why = first_reason(run.lines, run.client_names)
        return "failed", f"all {done} rounds were skipped{why}"
    finished = done >= last_round(run.lines, run.rounds)
    if not any(run.scored(protocol) for protocol in PROTOCOL_SCORES):
        if not finished:
            return "unfinished", "not scored yet"
        return "failed", "all scores are missing or NaN"
    if not finished:
        return "unfinished", f"{done} of {run.rounds} rounds are done"
    return "finished", ""


def check_settings(settings: FlatSettings) -> None:
    """Raise ValueError unless the options that every run has exist with the right types."""
    values = {"augment.name": "none", "split.ir": 1.0, **settings}
    for name in ("method.name", "augment.name", "data.name", "split.kind"):
        if type(values.get(name)) is not str:
            raise ValueError(f"{name}: a text is expected")
    for name, least in (("run.seed", 0), ("federation.rounds", 1), ("federation.clients", 1)):
        value = values.get(name)
        if type(value) is not int or value < least:
            raise ValueError(f"{name}: a whole number of at least {least} is expected")
    if type(values["split.ir"]) not in (int, float):
        raise ValueError("split.ir: a number is expected")


def first_reason(lines: Sequence[MetricsLine], clients: Sequence[str] = ()) -> str:
    """Return the reason of the first failure as the end of a sentence; empty if there is none."""
    for line in lines:
        for failure in line.get("failed") or ():
            reason = " ".join(str(failure.get("reason")).split())
            number = failure.get("client")
            who = client_title(clients, number) if isinstance(number, int) else f"client {number}"
            return f"; {who}: {reason}"
    return ""


def flat(tables: FlatSettings) -> FlatSettings:
    """Return a config's options with flat names; raises ValueError for one outside a section."""
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"{section}: a section is expected")  # noqa: TRY004
    shortened = dict(tables)
    trust = {
        section: form(shortened.pop(section))
        for section, form in SHOWN_IN_SHORT.items()
        if section in tables
    }
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in {**flattened(shortened), **trust}.items()
    }


def usable(run: RunSummary) -> bool:
    """Return whether a run has scores to show."""
    return run.state in ("finished", "unfinished") and any(
        run.scored(protocol) for protocol in PROTOCOL_SCORES
    )
