"""Planned runs: each is a `cafedcl run` or `cafedcl resume` of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cafedcl.config.flags import FLAGS
from cafedcl.config.options import to_toml
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.resolve import resolve

LOG_FOLDER = "logs"
"""The folder, next to the runs, for the standard error of each run."""


@dataclass(frozen=True)
class RunSpec:
    """A planned run: its place in the folder of all runs, and its arguments for `cafedcl run`."""

    out: Path
    place: str
    arguments: tuple[str, ...]
    rounds: int

    @classmethod
    def of(cls, out: Path, place: str, tables: Mapping[str, Mapping[str, Any]]) -> "RunSpec":
        """Plan a run; a mistake in its config is found here, before anything runs."""
        rounds = resolve(tables).federation.rounds
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
        return cls(out, place, (*arguments, *settings), rounds)

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

    def command(self, device: str) -> list[str]:
        """Return the arguments that start or resume the run."""
        if self.begun:
            return ["resume", str(self.folder), "--quiet"]
        return ["run", *self.arguments, "--device", device, "--out", str(self.folder), "--quiet"]


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
        """End what was started for more runs than one."""
