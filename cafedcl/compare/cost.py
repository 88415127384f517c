"""The cost of a study's runs on this device: measured by short runs, corrected by whole ones."""

import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.plan import overlay
from cafedcl.core.errors import CafedclError
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.resolve import resolve

MEASURED_ROUNDS = 3
"""In the first round a run warms up, the second is measured, and the third is scored as well."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def parse_duration(text: str, option: str) -> float:
    """Return the seconds of a text such as ``90``, ``30m`` or ``1h30m``."""
    parts = DURATION.findall(text)
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise CafedclError(f"{option} {text}: a time is expected, such as 90s, 30m or 1h30m")
    return seconds


@dataclass(frozen=True)
class RunCost:
    """The seconds that a run takes before its first round, in a round, and for scoring."""

    start: float
    round: float
    scoring: float

    @classmethod
    def of(cls, lines: Sequence[MetricsLine], seconds: float, epochs: int) -> "RunCost":
        """Return the cost from the rounds of a short run, with one epoch instead of ``epochs``.

        ``seconds`` is the duration of the whole short run.
        """
        spent = [line["seconds"] for line in lines]
        measured = spent[1]
        known = sum(sum(parts.values()) for parts in spent)
        return cls(
            start=max(seconds - known, 0.0),
            round=epochs * measured["train"] + measured["aggregate"],
            scoring=spent[2]["evaluate"],
        )

    def seconds(self, job: RunSpec) -> float:
        """Return what a run costs."""
        config = resolve(job.tables)
        # Scoring the clients' own models takes much longer than scoring the server's.
        every = config.evaluate.own_every or config.evaluate.every
        scorings = math.ceil(job.rounds / every)
        return self.start + job.rounds * self.round + scorings * self.scoring


def short_run(job: RunSpec, folder: Path, number: int) -> RunSpec:
    """Return a run of three rounds of one epoch, with the options of a planned run."""
    tables = {section: dict(table) for section, table in job.tables.items()}
    scores_own = resolve(tables).evaluate.own_every > 0
    overlay(
        tables,
        {
            "federation.rounds": MEASURED_ROUNDS,
            "train.epochs": 1,
            "evaluate.every": MEASURED_ROUNDS,
            "evaluate.own_every": MEASURED_ROUNDS if scores_own else 0,
            "store.checkpoint_every": MEASURED_ROUNDS,
        },
    )
    return RunSpec.of(folder, f"{number}/s0", tables)


def measure(
    groups: Sequence[Sequence[RunSpec]], run: Callable[[list[RunSpec]], list[RunOutcome]]
) -> "Costs":
    """Measure every group of runs, which cost about the same, by executing a short run."""
    with tempfile.TemporaryDirectory(prefix="cafedcl-") as folder:
        short = [short_run(group[0], Path(folder), number) for number, group in enumerate(groups)]
        outcomes = {outcome.job.folder: outcome for outcome in run(short)}
        seconds: dict[Path, float] = {}
        for group, job in zip(groups, short, strict=True):
            outcome = outcomes[job.folder]
            if outcome.status != "finished":
                raise CafedclError(f"{group[0].folder}: cannot be measured: {outcome.error}")
            lines = RunFolder(job.folder).metrics_file.read().lines
            cost = RunCost.of(lines, outcome.seconds, resolve(group[0].tables).train.epochs)
            seconds |= {one.folder: cost.seconds(one) for one in group}
    return Costs(seconds)


class Costs:
    """Estimates of what runs cost; finished runs correct the estimates of their method."""

    def __init__(self, measured: Mapping[Path, float], deadline: float = math.inf) -> None:
        self.measured = measured
        """Seconds by the folder of a run."""
        self.deadline = deadline
        """The moment at which all runs must have ended, by `time.monotonic`."""
        self.ratios: dict[str, list[float]] = {}
        """By method: the time of its finished runs divided by their measured cost."""

    def learn(self, outcome: RunOutcome) -> None:
        """Correct the estimates by a run that was executed from beginning to end."""
        job = outcome.job
        if outcome.status == "finished" and outcome.made == job.rounds:
            ratio = outcome.seconds / max(self.measured[job.folder], 1e-3)
            self.ratios.setdefault(job.code[-1], []).append(ratio)

    def seconds(self, job: RunSpec) -> float:
        """Return the estimate for a run."""
        known = self.ratios.get(job.code[-1]) or [one for of in self.ratios.values() for one in of]
        return self.measured[job.folder] * (fmean(known) if known else 1.0)

    def total(self, jobs: Sequence[RunSpec], slots: int) -> float:
        """Return the estimate for several runs that share the given number of slots."""
        return sum(self.seconds(job) for job in jobs) / slots

    def fits(self, job: RunSpec) -> bool:
        """Return whether a run that starts now is expected to end in time."""
        return time.monotonic() + self.seconds(job) <= self.deadline

    def until(self, deadline: float) -> "Costs":
        """Return the same estimates with a deadline."""
        return Costs(self.measured, deadline)
