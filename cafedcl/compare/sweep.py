"""Sweeps of options: a grid, or the space of a search."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from cafedcl.compare.held_out import HELD_OUT, write_held_out
from cafedcl.compare.jobs import RunSpec
from cafedcl.compare.plan import (
    Tables,
    absolute_data_name,
    check_seeds,
    checked_tables,
    overlay,
    refuse_seed,
    with_one_worker,
)
from cafedcl.compare.swept_values import Range
from cafedcl.config.flags import Flags, set_flags
from cafedcl.config.options import flattened, to_toml
from cafedcl.config.sections import assign
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.slug import slug
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_folder import RunFolder, any_round_counted
from cafedcl.methods import find_method
from cafedcl.task.resolve import resolve
from cafedcl.terminal.overview import last_scored, value_of

COMMON_SCORES = (
    "accuracy", "balanced", "worst_class", "macro_f1", "client_mean", "client_std", "client_worst",
    "many", "medium", "few", "auroc", "auprc", "sensitivity", "ece",
)  # fmt: skip
OWN_SCORES = (
    "client_balanced", "held_mean", "held_std", "prior_mean", "prior_std", "prior_worst",
    "prior_balanced", "prior_worst_class",
)  # fmt: skip
SERVER_SCORES = ("calibrated_ece", "probable_accuracy", "probable_balanced")
SWEEP_SCORES = (
    *(f"server.{key}" for key in (*COMMON_SCORES, *SERVER_SCORES)),
    *(f"own.{key}" for key in (*COMMON_SCORES, *OWN_SCORES)),
)
ALL_WEIGHTS = ".*"
"""`Method.personal` of methods whose weights all stay with their client."""
LOWER_IS_BETTER = ("_std", ".ece", "_ece")
"""Suffixes of the names of such scores."""

Point = dict[str, Any]
"""Values of the swept options, by flat names."""


@dataclass(frozen=True)
class Sweep:
    """One method, data set and split; some options vary, all others are the same."""

    settings: dict[str, Any]
    """Options of all runs, by flat names, the method's included."""
    seeds: int
    first_seed: int
    score: str
    on: str
    """validation: images held out of the training set; test: the test set."""
    hold_out: float
    grid: dict[str, Any]
    """Values by option."""
    ranges: dict[str, Any]
    """Ranges by option, as on the command line."""
    choices: dict[str, Any]
    """Values to choose from by option."""
    prune: bool

    FILE = "sweep.toml"
    COMMAND = "sweep"

    @classmethod
    def make(
        cls,
        settings: dict[str, Any],
        *,
        tune: int | None,
        grid: Mapping[str, Sequence[Any]],
        ranges: Mapping[str, str],
        choices: Mapping[str, Sequence[Any]],
        score: str | None,
        on: str | None,
        hold_out: float | None,
        prune: bool,
        seeds: int | None,
        first_seed: int | None,
    ) -> "Sweep":
        """Make a plan; None stands for the default.

        Raises an error for a sweep that is neither a grid nor a search, or both.
        """
        if grid and (tune or ranges or choices or prune):
            raise CafedclError(
                "--grid: it cannot be combined with --tune, --range, --choice or --prune"
            )
        if not grid and not tune:
            raise CafedclError(
                "give --grid SECTION.KEY=VALUE,VALUE, or --tune N with --range or --choice"
            )
        if tune and not ranges and not choices:
            raise CafedclError(
                "--tune: name what to search with --range SECTION.KEY=LOW..HIGH "
                "or --choice SECTION.KEY=A,B"
            )
        on = on or ("validation" if tune else "test")
        if hold_out is not None and on == "test":
            raise CafedclError(
                "--hold-out: the score would be measured on the test set all the same; add "
                "--on validation, or leave it out"
            )
        return cls(
            settings=settings,
            seeds=1 if seeds is None else seeds,
            first_seed=first_seed or 0,
            score=score or "server.balanced",
            on=on,
            hold_out=0.1 if hold_out is None else hold_out,
            grid={name: list(values) for name, values in grid.items()},
            ranges=dict(ranges),
            choices={name: list(values) for name, values in choices.items()},
            prune=prune,
        )

    def __post_init__(self) -> None:
        """Raise an error for a sweep that cannot be run."""
        check_seeds(self.seeds, self.first_seed)
        if self.score not in SWEEP_SCORES:
            # Tables call the server's accuracy just accuracy, where there is a server model.
            likely = [name for name in SWEEP_SCORES if name == f"server.{self.score}"]
            raise CafedclError(
                f"--score {self.score}: there is no such score; "
                f"{nearest(self.score, likely or list(SWEEP_SCORES))}"
            )
        for method in self.methods:
            check_score(self.score, method)
        if self.score.startswith("own.") and self.settings.get("evaluate.own_every") == 0:
            raise CafedclError(
                f"--score {self.score}: evaluate.own_every = 0, so clients' own models are not "
                "scored; use at least 1"
            )
        if self.on not in ("validation", "test"):
            raise CafedclError(
                f"--on {self.on}: there is no such choice; validation or test is expected"
            )
        if not 0 < self.hold_out < 1:
            raise CafedclError(
                f"--hold-out {self.hold_out:g}: expected a fraction between 0 and 1, such as 0.1"
            )
        if "run.seed" in {**self.grid, **self.choices, **self.ranges}:
            raise CafedclError(
                "run.seed: every point has the same seeds; use --seeds N and --first-seed N"
            )
        for name, values in {**self.grid, **self.choices}.items():
            if not values:
                raise CafedclError(f"{name}: there are no values to try")
            for value in values:
                resolve(self.tables({name: value}))
        for name, text in self.ranges.items():
            self.range(name, text)

    def range(self, name: str, text: str) -> Range:
        """Return a range of an option, checked against the option's type and limits."""
        section, _, key = name.partition(".")
        now = resolve(self.tables({})).to_plain().get(section, {}).get(key)
        if now is None:
            resolve(self.tables({name: 0}))
        if isinstance(now, bool) or not isinstance(now, int | float):
            raise CafedclError(f"--range {name}: it is not a number; use --choice {name}=…,…")
        found = Range.parse(name, text, isinstance(now, int))
        for bound in (found.low, found.high):
            resolve(self.tables({name: bound}))
        return found

    @property
    def methods(self) -> list[str]:
        """The methods whose options are swept; empty for the default one."""
        name = "method.name"
        one = [self.settings[name]] if name in self.settings else []
        return list({**self.grid, **self.choices}.get(name, one))

    @property
    def space(self) -> list[Range]:
        """The ranges of a search."""
        return [self.range(name, text) for name, text in self.ranges.items()]

    @property
    def higher(self) -> bool:
        """Whether a higher score is better."""
        return not self.score.endswith(LOWER_IS_BETTER)

    def points(self) -> list[Point]:
        """Return all points of the grid; the first option varies slowest."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]

    def tables(self, point: Point, seed: int | None = None) -> Tables:
        """Return the config of a point."""
        if seed is None:
            seed = self.first_seed
        tables: Tables = {}
        overlay(tables, {**self.settings, **point, "run.seed": seed})
        return tables

    def jobs(self, out: Path, place: str, point: Point) -> list[RunSpec]:
        """Return the runs of a point, one per seed."""
        jobs = []
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            tables = with_one_worker(self.tables(point, seed))
            if self.on == "validation":
                # The held-out file already reflects how the original data are read (columns, sizes,
                # number of images), and has other names for them.
                tables["data"] = {"name": str((out / HELD_OUT).resolve())}
            jobs.append(RunSpec.of(out, f"{place}/s{seed}", tables))
        return jobs

    def place(self, point: Point) -> str:
        """Return the folder name of a point of the grid."""
        short = [name.partition(".")[2] for name in point]
        names = short if len(set(short)) == len(short) else list(point)
        shown = [value if isinstance(value, str) else to_toml(value) for value in point.values()]
        # A list's brackets would become dashes, as if its first number were negative.
        words = (f"{name}={text.strip('[]')}" for name, text in zip(names, shown, strict=True))
        return slug(",".join(words)) if point else ""

    def prepare(self, out: Path) -> str:
        """Hold images out if needed, and return a description of the images to score on."""
        if self.on == "test":
            return "the test set"
        swept = {**self.grid, **self.ranges, **self.choices}
        return write_held_out(out, self.tables({}), self.hold_out, swept)

    def value(self, jobs: Sequence[RunSpec]) -> float:
        """Return the mean score of finished runs in their last round; NaN if a run diverged."""
        return mean(self.score_of(job) for job in jobs)

    def score_of(self, job: RunSpec) -> float:
        """Return the score of a finished run; raises an error if its method has no such score.

        It is NaN if no round was aggregated: the score would be that of the initial model.
        """
        lines = RunFolder(job.folder).metrics()[: job.rounds]
        if not any_round_counted(lines):
            return math.nan
        value = self._last_score(lines)
        if value is None:
            raise CafedclError(
                f"{job.folder}: this run has no {self.score}; "
                "choose another --score and another --out"
            )
        return value

    def score_at(self, job: RunSpec, rounds: int) -> float | None:
        """Return a run's last score in its first ``rounds`` rounds, or None if there is none."""
        return self._last_score(RunFolder(job.folder).metrics()[:rounds])

    def _last_score(self, lines: Sequence[MetricsLine]) -> float | None:
        line = last_scored(lines, self.score)
        return None if line is None else value_of(line, self.score)

    @property
    def mean_words(self) -> str:
        """What a score is the mean of, in words."""
        return f"mean over {self.seeds} seed{'s' if self.seeds > 1 else ''}"

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Sweep":
        """Return the plan of plain values."""
        if plain.keys() != {field.name for field in fields(cls)}:
            raise CafedclError(
                f"{cls.FILE}: not a plan of `cafedcl {cls.COMMAND}`; choose another --out"
            )
        return cls(**plain)


def check_score(score: str, method: str) -> None:
    """Raise an error for a score that no run of the method has, before any run is trained."""
    kind = find_method(method)[0]
    part = score.partition(".")[0]
    if part == "server" and kind.personal == ALL_WEIGHTS and not kind.personal_is_optional:
        raise CafedclError(
            f"--score {score}: {method} has no server model; choose a score of clients' own "
            "models, such as own.client_mean"
        )
    if part == "own" and kind.pooled:
        raise CafedclError(
            f"--score {score}: {method} has no clients' own models; choose a score of the "
            "server's model, such as server.accuracy"
        )


def sweep_settings(
    tables: Mapping[str, Any], flags: Flags, settings: Iterable[str]
) -> dict[str, Any]:
    """Return the options that all runs of a sweep share, by flat names.

    Flags win over the tables of a config file, and settings over flags.
    """
    base = checked_tables(tables)
    set_flags(base, flags)
    for setting in settings:
        chosen: dict[str, dict[str, Any]] = {}
        assign(chosen, setting)
        refuse_seed(chosen)
        assign(base, setting)
    flat = flattened(base)
    flat["data.name"] = absolute_data_name(str(flat.get("data.name", "digits")))
    return {
        name: value for name, value in flat.items() if name not in ("run.seed", "engine.device")
    }
