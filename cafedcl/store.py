"""The run folder: enough to resume a run, to report it and to repeat it.

config.toml           the fully resolved config
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from cafedcl.config import Config, read_file, resolve
from cafedcl.environment import environment
from cafedcl.errors import CafedclError
from cafedcl.federation import Federation, Record, Watcher
from cafedcl.pack import Header, Tensors, pack, unpack

KEPT = 2


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one: temporary file, fsync, rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class RunFolder(Watcher):
    """A run on disk. As a watcher it writes down every round."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Make a new, empty and locked run folder; an existing run is never touched."""
        folder = cls(path)
        with explained(folder.path):
            if folder.path.exists() and not (folder.path.is_dir() and folder.unbegun()):
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
            what = "there is no run here (no config.toml)" if folder.path.is_dir() else "there is no such folder"
            raise CafedclError(f"{path}: {what}")
        return folder

    def unbegun(self) -> bool:
        """Return whether the folder holds nothing but what a run leaves that ended before it began."""
        ours = {"lock", "evaluations", "checkpoints", "data.safetensors", "environment.json", "events.jsonl", "sites"}
        return all(
            file.name.removesuffix(".tmp") in ours or file.name == "config.toml.tmp" for file in self.path.iterdir()
        )

    def lock(self) -> None:
        """Hold the run for this process; another process that works on it is an error."""
        with explained(self.path):
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise CafedclError(f"{self.path}: in use by another run; wait for it or choose another folder") from None

    def unlock(self) -> None:
        """Let go of the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run while a block runs; its folder is made if there is none."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def begin(self, federation: Federation, command: list[str]) -> None:
        """Write down what is about to run."""
        with explained(self.path):
            write_atomically(self.path / "data.safetensors", self._data(federation))
            about = environment(command, str(federation.bench.device))
            about |= {"enrolment_bytes": federation.enrolment, **federation.about}
            write_atomically(self.path / "environment.json", json.dumps(about, indent=1).encode())
            write_atomically(self.path / "config.toml", federation.config.to_toml().encode())

    def _data(self, federation: Federation) -> bytes:
        data = federation.bench.data
        tensors = {"counts": federation.counts, "mean": data.mean, "std": data.std}
        return pack(tensors, {"names": list(data.names), "shape": list(data.shape)})

    def data(self) -> tuple[Tensors, Header]:
        """Return what is known of the data: images per client and class, names, shape, mean and standard deviation."""
        try:
            return unpack((self.path / "data.safetensors").read_bytes())
        except (OSError, ValueError) as error:
            raise CafedclError(f"{self.path}/data.safetensors: cannot be read: {error}") from None

    def round_done(self, federation: Federation, record: Record) -> None:
        """Append the round's line, its tables, and a checkpoint when one is due."""
        with explained(self.path):
            if record.tables:
                file = self.path / "evaluations" / f"{record.round:06d}.safetensors"
                write_atomically(file, pack(record.tables, {"round": record.round}))
            self._append(record)
            if federation.is_due(record.round, federation.config.store.checkpoint_every):
                self.checkpoint(federation)

    def _append(self, record: Record) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record.line()) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def checkpoint(self, federation: Federation) -> None:
        """Save the federation's state; the one before is kept, older ones go once the new one is complete.

        A round whose line was cut short by an interrupt gets it now: a checkpoint never knows more than the metrics.
        """
        for record in federation.history[len(self.metrics()) :]:
            self._append(record)
        tensors, header = federation.snapshot()
        file = self.path / "checkpoints" / f"{federation.round:06d}.safetensors"
        with explained(self.path):
            write_atomically(file, pack(tensors, {**header, "digest": digest(tensors)}))
            for old in self.checkpoints()[KEPT:]:
                old.unlink()

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted((self.path / "checkpoints").glob("*.safetensors"), reverse=True)

    def newest(self, warn: Callable[[str], None]) -> tuple[Tensors, Header] | None:
        """Return the newest whole checkpoint; one that is truncated or corrupted is named and passed over."""
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

    def config(self) -> Config:
        """Return the run's resolved config."""
        return resolve(read_file(self.path / "config.toml"))

    def environment(self) -> dict[str, Any]:
        """Return where and how the run was made."""
        try:
            about: dict[str, Any] = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return about

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rounds written so far; a line cut off by a crash ends them."""
        rounds: list[dict[str, Any]] = []
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

    def rewind(self, rounds: int) -> list[dict[str, Any]]:
        """Forget what was written after a checkpoint of ``rounds`` rounds, and return what is left."""
        kept = self.metrics()[:rounds]
        if len(kept) < rounds:
            raise CafedclError(f"{self.path}/metrics.jsonl: damaged: {len(kept)} of {rounds} rounds can be read")
        with explained(self.path):
            lines = "".join(json.dumps(line) + "\n" for line in kept)
            write_atomically(self.path / "metrics.jsonl", lines.encode())
            for file in (self.path / "evaluations").glob("*.safetensors"):
                if int(file.stem) >= rounds:
                    file.unlink()
        return kept


def digest(tensors: Tensors) -> str:
    """Return a digest of names, types, shapes and content."""
    hasher = blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        hasher.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return hasher.hexdigest()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal (read-only, full disk, no permission) into one clear line."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CafedclError(f"{where}: cannot be written: {error.strerror}; nothing already saved is lost") from error


def _occupied(folder: RunFolder) -> str:
    if not (folder.path / "config.toml").is_file():
        return f"{folder.path}: exists and is not an empty folder; choose another --out"
    done = len(folder.metrics())
    return f"{folder.path}: already holds a run ({done} rounds); `cafedcl resume {folder.path}` or choose another --out"
