"""The run folder: enough to resume a run, to report it and to repeat it.

Reading one loads no PyTorch until a checkpoint is asked for.

config.toml           the fully resolved config, and the version of this format
environment.json      versions, device, commit, command
data.safetensors      training images per client and class
metrics.jsonl         one line per round, flushed as it happens
evaluations/          per-client and per-class results of every evaluated round
checkpoints/          the last two, written atomically, each with a digest of its content
events.jsonl          on Flower: what happens, for other processes to watch
sites/                in a simulation on Flower: what clients keep
lock                  held while a process works on the run
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cafedcl.config.format import upgrade
from cafedcl.config.sections import read_file
from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.federation.run_files import read_data, read_environment

if TYPE_CHECKING:
    from cafedcl.config.sections import Config
    from cafedcl.core.tensors import Header, Tensors

MetricsLine = dict[str, Any]
"""A line of metrics.jsonl: what is recorded of one round."""


class RunFolder:
    """A run on disk: its files, and a lock for one process. A `Recorder` writes the rounds."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Make a new, empty and locked run folder; an existing run is never touched."""
        folder = cls(path)
        with explained(folder.path):
            if folder.path.exists() and not (folder.path.is_dir() and folder.has_not_started()):
                raise CafedclError(_occupied(folder))
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            for name in ("evaluations", "checkpoints"):
                (folder.path / name).mkdir(exist_ok=True)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Open an existing run."""
        folder = cls(path)
        if not (folder.path / "config.toml").is_file():
            if folder.path.is_dir():
                raise CafedclError(f"{path}: there is no run here (no config.toml)")
            raise CafedclError(f"{path}: there is no such folder")
        return folder

    def has_not_started(self) -> bool:
        """Return whether the folder is empty, or holds only what a run writes before its config."""
        ours = {
            "lock",
            "evaluations",
            "checkpoints",
            "data.safetensors",
            "environment.json",
            "events.jsonl",
            "sites",
        }
        return all(
            file.name.removesuffix(".tmp") in ours or file.name == "config.toml.tmp"
            for file in self.path.iterdir()
        )

    def lock(self) -> None:
        """Lock the run for this process; raise if another process works on it."""
        with explained(self.path):
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise CafedclError(
                f"{self.path}: in use by another run; wait for it or choose another folder"
            ) from None

    def unlock(self) -> None:
        """Release the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run while a block runs; its folder is made if there is none."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def data(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return counts per client and class, mean and std of pixels; names and image shape."""
        return read_data(self.path / "data.safetensors")

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)

    def newest(self, warn: Callable[[str], None]) -> "tuple[Tensors, Header] | None":
        """Return the newest intact checkpoint; damaged ones are skipped with a warning."""
        from cafedcl.core.tensors import unpack

        for file in self.checkpoints():
            try:
                tensors, header = unpack(file.read_bytes())
                if header.pop("digest") != digest(tensors):
                    raise ValueError("its content does not match its digest")  # noqa: TRY301
            except (ValueError, KeyError, OSError) as error:
                warn(f"{file}: damaged, using the one before it ({error})")
                continue
            return tensors, header
        return None

    def tables(self) -> dict[str, Any]:
        """Return the run's config as plain values, whatever version of cafedcl wrote it."""
        return upgrade(read_file(self.path / "config.toml"))

    def config(self) -> "Config":
        """Return the run's resolved config."""
        from cafedcl.task.resolve import resolve

        return resolve(self.tables())

    def environment(self) -> dict[str, Any]:
        """Return where and how the run was made; nothing if the file does not exist."""
        return read_environment(self.path / "environment.json")

    def metrics(self) -> list[MetricsLine]:
        """Return the rounds written so far, up to a line that a crash cut off."""
        rounds: list[MetricsLine] = []
        try:
            text = (self.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        for line in text.splitlines():
            try:
                rounds.append(json.loads(line))
            except ValueError:
                break
        return rounds

    def rewind(self, rounds: int) -> list[MetricsLine]:
        """Remove what was written after a checkpoint of ``rounds`` rounds; return what is left."""
        kept = self.metrics()[:rounds]
        if len(kept) < rounds:
            raise CafedclError(
                f"{self.path}/metrics.jsonl: damaged: {len(kept)} of {rounds} rounds can be read"
            )
        with explained(self.path):
            lines = "".join(json.dumps(line) + "\n" for line in kept)
            write_atomically(self.path / "metrics.jsonl", lines.encode())
            for file in (self.path / "evaluations").glob("*.safetensors"):
                if int(file.stem) >= rounds:
                    file.unlink()
        return kept


def any_round_counted(lines: Sequence[MetricsLine]) -> bool:
    """Return whether any round was aggregated: if none was, the model has learned nothing."""
    return any(line["status"] != "skipped" for line in lines)


def digest(tensors: "Tensors") -> str:
    """Return a digest of names, types, shapes and content."""
    import torch

    hasher = blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        hasher.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return hasher.hexdigest()


def _occupied(folder: RunFolder) -> str:
    if not (folder.path / "config.toml").is_file():
        return f"{folder.path}: exists and is not an empty folder; choose another --out"
    done = len(folder.metrics())
    return (
        f"{folder.path}: already holds a run ({done} rounds); "
        f"resume it with `cafedcl resume {folder.path}`, or choose another --out"
    )
