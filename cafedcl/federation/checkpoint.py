"""A checkpoint: the state of a federation after a round, with a digest and the run's config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cafedcl.config.format import FORMAT, upgrade
from cafedcl.config.options import flattened, to_toml
from cafedcl.config.sections import Config
from cafedcl.core.commands import retrain_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.core.tensors import (
    MODEL,
    OPTIMIZER,
    Tensors,
    digest,
    pack_with_digest,
    prefixed,
    under,
    unpack,
    without,
)
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.sparse_writing import with_all_rows
from cafedcl.functional.reply_check import Kind, mismatch
from cafedcl.methods import find_method
from cafedcl.task.resolve import resolve
from cafedcl.task.task import Task

MAY_CHANGE = (
    "engine.",
    "store.",
    "data.dir",
    "data.download",
    "evaluate.batch",
    "privacy.budget",
    "privacy.accountant",
)
"""Options that may differ when a run is resumed. `federation.rounds` may also be raised."""
Asked = Mapping[str, str]
"""Options given to a command, as text: they are not in the run's file yet."""
NOTHING_ASKED: Asked = {}


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to continue after the given number of rounds."""

    round: int
    tensors: Tensors
    config: dict[str, Any] = field(default_factory=dict)
    """The run's config as plain values; empty in a checkpoint of an earlier version."""
    record: MetricsLine | None = None
    """The last round's line of metrics, in case the metrics file has lost it."""

    def write(self, file: Path) -> None:
        """Write it with a digest of its content; a crash leaves no partial file."""
        header = {
            "round": self.round,
            "config": {"format": FORMAT, **self.config},
            "record": self.record,
        }
        write_atomically(file, pack_with_digest(self.tensors, header))

    @classmethod
    def read(cls, file: Path) -> "Checkpoint":
        """Read a checkpoint; raises ValueError if it is damaged."""
        tensors, header = unpack(file.read_bytes())
        expected = header.pop("digest", None)
        # Earlier versions took the digest of the tensors alone.
        whole = digest(tensors, header) if "config" in header else digest(tensors)
        if expected != whole:
            raise ValueError("its content does not match its digest")
        if header.get("round") != int(file.stem):
            raise ValueError(f"it is of round {header.get('round')}, not {int(file.stem)}")
        for name, value in tensors.items():
            if name.startswith("state/") and not value.isfinite().all():
                raise ValueError(f"it has NaN or Inf in '{name}'")
        tensors = with_all_rows(tensors)
        return cls(header["round"], tensors, header.get("config", {}), header.get("record"))

    def check_config(self, config: Config, where: Path, asked: Asked = NOTHING_ASKED) -> None:
        """Raise CafedclError if a run's config has changed in a way that changes its results."""
        if not self.config:
            return
        before = flattened(resolve(upgrade(dict(self.config))).to_plain())
        now = flattened(config.to_plain())
        for name in {**before, **now}:
            if name == "federation.rounds":
                self._check_rounds(int(before[name]), config, _Place(where, name, asked))
            elif before.get(name) != now.get(name) and not name.startswith(MAY_CHANGE):
                place = _Place(where, name, asked)
                raise CafedclError(
                    f"{place.file}: {name} = {_shown(now, name)}, but the run was made with "
                    f"{_shown(before, name)}; {place.undo}, or start a new run with "
                    f"`{place.retrain}`"
                )
        moved_machines = "flower" in (before["engine.name"], now["engine.name"])
        if moved_machines and before["engine.name"] != now["engine.name"]:
            place = _Place(where, "engine.name", asked)
            raise CafedclError(
                f"{place.file}: engine.name = {_shown(now, 'engine.name')}, but the run was "
                f"made with {_shown(before, 'engine.name')}: what clients keep is elsewhere; "
                f"{place.undo}"
            )

    def check_version(self, config: Config, where: Path) -> None:
        """Raise CafedclError if an earlier version would have continued differently.

        Until 0.2, CAFedCL divided conf_data by the largest number of real images, even where
        synthetic ones were counted.
        """
        counted = config.augment.name not in ("none", "resample")
        method, _ = find_method(config.method.name)
        if not self.config and counted and method.name == "cafedcl":
            raise CafedclError(
                f"{where}: made with an earlier version of cafedcl, in which synthetic images "
                f"counted differently in the confidence; start a new run with "
                f"`{retrain_command(where)}`"
            )

    def _check_rounds(self, before: int, config: Config, place: "_Place") -> None:
        rounds = config.federation.rounds
        if rounds < before:
            raise CafedclError(
                f"{place.file}: federation.rounds = {rounds}, but the run was made for "
                f"{before}; the number can only be raised"
            )
        method, _ = find_method(config.method.name)
        who = method.name if method.depends_on_rounds else ""
        if config.train.depends_on_rounds:
            who = f"train.schedule = {config.train.schedule}"
        if rounds > before and who:
            raise CafedclError(
                f"{place.file}: federation.rounds = {rounds}, but the run was made for "
                f"{before}, and {who} trains differently for another number; {place.undo}, "
                f"or start a new run with `{place.retrain}`"
            )


@dataclass(frozen=True)
class _Place:
    """Where an option of a run was changed: in its config file, or by an option of a command."""

    run: Path
    name: str
    asked: Asked

    @property
    def file(self) -> Path:
        return self.run if self.name in self.asked else self.run / "config.toml"

    @property
    def undo(self) -> str:
        return "leave it out" if self.name in self.asked else "change it back"

    @property
    def retrain(self) -> str:
        """Return the command that starts a new run with all changed options."""
        changed = [("--set", f"{name}={value}") for name, value in self.asked.items()]
        return retrain_command(self.run, *chain(*changed))


def _shown(options: Mapping[str, Any], name: str) -> str:
    return to_toml(options[name]) if name in options else "nothing"


def frozen_digest(task: Task) -> str:
    """Return a digest of the frozen weights; empty if all are trained."""
    weights = task.frozen_weights()
    return digest(weights) if weights else ""


def snapshot_of(state: Tensors, memories: Mapping[int, Tensors], own: Tensors) -> Tensors:
    """Return the server's state, what clients keep, and their last scores, in one table."""
    kept = {
        f"memory/{client}/{name}": value
        for client, memory in memories.items()
        for name, value in memory.items()
    }
    return {**prefixed("state/", state), **kept, **prefixed("own/", own)}


def check_snapshot(snapshot: Tensors, state: Tensors, own: Tensors) -> None:
    """Raise ValueError if a snapshot does not fit a federation with such a state and scores."""
    kinds: dict[str, Kind] = {}
    for name, value in {**prefixed("state/", state), **prefixed("own/", own)}.items():
        shape = tuple(value.shape)
        # The first axis of what a method keeps besides the model may grow.
        fixed = name.startswith(("state/" + MODEL, "state/" + OPTIMIZER))
        if name in snapshot and shape and not fixed:
            shape = (*snapshot[name].shape[:1], *shape[1:])
        kinds[name] = (shape, value.dtype)
    problem = mismatch(without("memory/", snapshot), kinds)
    if problem:
        raise ValueError(problem)


def memories_of(snapshot: Tensors) -> dict[int, Tensors]:
    """Return what each client keeps, from a snapshot's tensors."""
    memories: dict[int, Tensors] = {}
    for name, value in under("memory/", snapshot).items():
        client, _, entry = name.partition("/")
        memories.setdefault(int(client), {})[entry] = value
    return memories
