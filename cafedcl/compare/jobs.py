"""Planned runs: each is a `cafedcl run` or `cafedcl resume` of its own."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cafedcl.config.flags import FLAGS
from cafedcl.config.options import flattened, to_toml
from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.resolve import resolve

METHOD_SECTIONS = ("train.", "server.", "method.", "augment.")
"""Sections whose options a preset may set, and a study may set for single methods."""
COMPARED = (
    *METHOD_SECTIONS,
    "split.",
    "model.",
    "federation.participation",
    "federation.dropout",
    "evaluate.protocol",
    "privacy.",
    "attack.",
    "defence.",
)
"""Options in which the runs of one table row must not differ."""
COMPILED = ("method", "model", "augment", "train")
"""Sections whose options are constants in compiled code."""
RATES = ("lr", "schedule", "lr_decay", "lr_decay_in_round", "warmup", "epochs")
"""Options of training that are not constants there: a table holds each step's learning rate."""
LOG_FOLDER = "logs"
"""The folder, next to the runs, for the standard error of each run."""


@dataclass(frozen=True)
class RunSpec:
    """A planned run: its place in the folder of all runs, and its arguments for `cafedcl run`."""

    out: Path
    place: str
    arguments: tuple[str, ...]
    rounds: int
    code: tuple[str, ...] = ()
    """Data, model and method: runs with the same ones can share most of the compiled code."""
    constants: str = field(default="", repr=False)
    """The options that are constants in the code: runs with the same ones share all of it."""
    alike: int = 1
    """How many runs of the plan share the compiled code."""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """The config that the arguments give."""

    @classmethod
    def of(cls, out: Path, place: str, tables: Mapping[str, Mapping[str, Any]]) -> "RunSpec":
        """Plan a run; a mistake in its config is found here, before anything runs."""
        config = resolve(tables)
        flags = {option: name.replace("_", "-") for name, option in FLAGS.items()}
        arguments: list[str] = []
        settings: list[str] = []
        for section, table in tables.items():
            for key, value in table.items():
                name = f"{section}.{key}"
                # The device is chosen when the run starts.
                if name == "engine.device":
                    continue
                # A flag without a value, such as --strict, cannot say false.
                if name in flags and not isinstance(value, bool):
                    arguments += [f"--{flags[name]}", str(value)]
                else:
                    settings += ["--set", f"{name}={to_toml(value)}"]
        return cls(
            out,
            place,
            (*arguments, *settings),
            config.federation.rounds,
            (config.data.name, config.model.name, config.method.name),
            compiled_constants(config),
            tables=tables,
        )

    @property
    def compiled(self) -> tuple[str, ...]:
        """The code that a process has compiled after this run; runs with the same need no more."""
        return (*self.code, self.constants)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out / self.place

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.place.rpartition("/s")[2])

    @property
    def log(self) -> Path:
        """The file for the run's standard error."""
        return self.out / LOG_FOLDER / f"{self.place}.txt"

    @property
    def begun(self) -> bool:
        """Whether there is a run to resume."""
        return RunFolder(self.folder).begun

    @property
    def finished(self) -> bool:
        """Whether the run has all its rounds."""
        return RunFolder(self.folder).is_finished(self.rounds)

    def check(self) -> None:
        """Raise CafedclError if the existing run's options differ from those of the planned one.

        A preset, or the file of a study, may have changed since the run was made.
        """
        if not self.begun:
            return
        try:
            made = flattened(RunFolder(self.folder).config().to_plain())
        except CafedclError:
            # The run itself reports what is wrong with its folder, and the others continue.
            return
        difference = other_option(self.tables, made)
        if difference:
            raise CafedclError(
                f"{self.folder}: it was made with {difference} today; move it away to run it "
                "again, or choose another --out"
            )

    def command(self, device: str) -> list[str]:
        """Return the arguments that start or resume the run."""
        if self.begun:
            return ["resume", str(self.folder), "--quiet"]
        arguments = list(self.arguments)
        if device == "cuda" and self.alike > 1:
            arguments += ["--set", f"engine.alike={self.alike}"]
        return ["run", *arguments, "--device", device, "--out", str(self.folder), "--quiet"]


def other_option(tables: Mapping[str, Mapping[str, Any]], made: Mapping[str, Any]) -> str | None:
    """Return the first option that matters in which a run differs from a planned one."""
    planned = flattened(resolve(tables).to_plain())
    for name, value in planned.items():
        found = made.get(name, value)
        # Options that are chosen when a run starts are not known before.
        is_known = "auto" not in (value, found)
        if name.startswith(COMPARED) and is_known and found != value:
            return f"{name} = {to_toml(found)}, which is {to_toml(value)}"
    return None


def compiled_constants(config: Config) -> str:
    """Return the options that are constants in a run's compiled code, as JSON."""
    plain = config.to_plain()
    sections = {name: plain[name] for name in COMPILED}
    sections["train"] = {
        name: value for name, value in sections["train"].items() if name not in RATES
    }
    return json.dumps(sections, sort_keys=True)


def sharing_code(jobs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the runs of a plan, each with the number of runs that share its compiled code."""
    alike = Counter(job.code for job in jobs)
    return [replace(job, alike=alike[job.code]) for job in jobs]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: finished, failed, stopped, or skipped because it was finished before."""

    job: RunSpec
    status: str
    error: str = ""
    seconds: float = 0.0
    made: int = 0
    """Rounds trained by this process."""
    last: MetricsLine | None = None
    """The last scored round."""


@dataclass(frozen=True)
class DeviceShare:
    """A share of a device for one run at a time: the device, and extra environment variables."""

    device: str
    variables: dict[str, str] = field(default_factory=dict)
    number: int = 0
    """Distinguishes the shares of one device; each has its own process."""


class Handle(Protocol):
    """A started run."""

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def stop(self) -> None:
        """Ask it to save its state and exit."""

    def kill(self) -> None:
        """Kill it at once."""


class Launcher(Protocol):
    """Starts runs, as many at a time as it has slots."""

    slots: Sequence[DeviceShare]

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        """Start a run."""

    def close(self) -> None:
        """End what was started for several runs."""
