"""The run folder: enough to resume a run, to report it and to repeat it.

Reading one loads no PyTorch until a checkpoint is asked for.

config.toml           the fully resolved config, and the version of this format
environment.json      versions, device, commit, command
data.safetensors      training images per client and class
encoder/              the architecture of a pretrained encoder, if its name does not determine it
frozen.safetensors    the frozen weights, if there are any
metrics.jsonl         one line per round, flushed as it happens
evaluations/          per-client and per-class results of every evaluated round
checkpoints/          the last two, written atomically, each with a digest of its content
events.jsonl          on Flower: what happens, for other processes to watch
sites/                in a simulation on Flower: what clients keep
lock                  held while a process works on the run
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from cafedcl.config.format import upgrade
from cafedcl.config.sections import read_file
from cafedcl.core.arrays import Array
from cafedcl.core.client_names import client_title
from cafedcl.core.commands import cafedcl_command, retrain_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import TEMPORARY, explained
from cafedcl.federation.metrics_file import METRICS, MetricsFile, MetricsLine, last_round
from cafedcl.federation.run_files import read_data, read_environment, read_frozen

if TYPE_CHECKING:
    from cafedcl.config.sections import Config
    from cafedcl.core.tensors import Tensors
    from cafedcl.federation.checkpoint import Checkpoint

CONFIG = "config.toml"
DATA = "data.safetensors"
ENCODER_FOLDER = "encoder"
FROZEN = "frozen.safetensors"
WRITTEN_FIRST = {
    "lock",
    "evaluations",
    "checkpoints",
    DATA,
    ENCODER_FOLDER,
    FROZEN,
    "environment.json",
    "events.jsonl",
    "sites",
}
"""What a run may write before its config."""
_locks: set[int] = set()
"""The locks that this process holds, as descriptors of their files."""


def _release_inherited_locks() -> None:
    """Close the locks in a forked process: they are its parent's.

    A lock holds until every process that has inherited it closes it. Otherwise a worker that
    outlives a killed run by a moment would keep the run locked.
    """
    for descriptor in _locks:
        with suppress(OSError):
            os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_release_inherited_locks)


class RunFolder:
    """A run on disk: its files, and a lock for one process. A `Recorder` writes the rounds."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics_file = MetricsFile(self.path)
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Make a new, empty and locked run folder; an existing run is never touched."""
        folder = cls(path)
        folder.refuse_occupied()
        with explained(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            try:
                folder._make_folders()
            except OSError:
                folder.unlock()
                raise
        return folder

    def refuse_occupied(self) -> None:
        """Raise CafedclError unless a new run may be written here."""
        with explained(self.path):
            if self.path.exists() and not (self.path.is_dir() and self.has_not_started()):
                raise CafedclError(_occupied(self))
        refuse_inside_run(self.path)

    def _make_folders(self) -> None:
        for name in ("evaluations", "checkpoints"):
            if not (self.path / name).is_dir():
                (self.path / name).mkdir()

    def refuse_unwritable(self) -> None:
        """Raise CafedclError if files cannot be written, before a round is trained in vain."""
        with explained(self.path):
            self._make_folders()
            for folder in (self.path, self.path / "evaluations", self.path / "checkpoints"):
                TemporaryFile(dir=folder).close()

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Open an existing run."""
        folder = cls(path)
        if not folder.begun:
            if folder.path.is_dir():
                # A folder of runs has them below it; one of a comparison, four folders deep.
                patterns = (f"{'*/' * depth}{CONFIG}" for depth in range(1, 5))
                levels = (sorted(folder.path.glob(pattern)) for pattern in patterns)
                below = next(filter(None, levels), [])
                advice = f"; did you mean {below[0].parent}?" if below else ""
                raise CafedclError(f"{path}: there is no run here (no {CONFIG}){advice}")
            raise CafedclError(f"{path}: there is no such folder")
        return folder

    @property
    def begun(self) -> bool:
        """Whether there is a run to resume: the config is the last file that is written first."""
        return (self.path / CONFIG).is_file()

    def has_not_started(self) -> bool:
        """Return whether the folder is empty, or holds only what a run writes before its config."""
        return all(
            file.name.removesuffix(TEMPORARY) in WRITTEN_FIRST or file.name == CONFIG + TEMPORARY
            for file in self.path.iterdir()
        )

    def lock(self) -> None:
        """Lock the run for this process; raise if another process works on it."""
        with explained(self.path):
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        _locks.add(self._lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise CafedclError(
                f"{self.path}: in use by another run; wait for it or choose another folder"
            ) from None

    def unlock(self) -> None:
        """Release the run."""
        # In a forked process the lock is closed already.
        if self._lock in _locks:
            _locks.remove(self._lock)
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
        return read_data(self.path / DATA)

    def frozen(self) -> "Tensors":
        """Return the frozen weights; none if all are trained."""
        _, header = self.data()
        return read_frozen(self.path / FROZEN, needed=header.get("frozen", False))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted(_numbered(self.path / "checkpoints"), key=_number, reverse=True)

    def checkpoint_file(self, rounds: int) -> Path:
        """Return the file of the checkpoint after the given number of rounds."""
        return self.path / "checkpoints" / f"{rounds:06d}.safetensors"

    def evaluation_file(self, round: int) -> Path:
        """Return the file of a round's tables."""
        return self.path / "evaluations" / f"{round:06d}.safetensors"

    def newest(
        self, warn: Callable[[str], None], fits: "Callable[[Checkpoint], bool] | None" = None
    ) -> "Checkpoint | None":
        """Return the newest intact checkpoint that fits, with a warning for each damaged one."""
        from cafedcl.federation.checkpoint import Checkpoint

        for file in self.checkpoints():
            try:
                checkpoint = Checkpoint.read(file)
            except PermissionError as error:
                # It may be intact: with the right permission nothing has to be trained again.
                raise CafedclError(f"{file}: cannot be read: {error.strerror}") from None
            except (ValueError, OSError) as error:
                warn(f"{file}: damaged, so it is left out ({error})")
                continue
            if fits is None or fits(checkpoint):
                return checkpoint
        return None

    def is_finished(self, rounds: int) -> bool:
        """Return whether the run has all rounds: their metrics, and an intact last checkpoint."""
        metrics = self.metrics_file.read()
        lines = metrics.lines
        budget = None
        with suppress(CafedclError):
            budget = self.tables().get("privacy", {}).get("budget")
        rounds = last_round(lines, rounds, budget)
        # Names are cheap to check; a checkpoint is read only if there is one of the last round.
        has_last = any(_number(file) >= rounds for file in self.checkpoints())
        if not self.begun or not has_last or len(lines) < rounds or metrics.problem:
            # If the run only has an extra damaged line, resuming it rewrites its metrics.
            return False
        with suppress(CafedclError):
            last = self.newest(lambda _: None)
            return last is not None and last.round >= rounds
        return False

    def tables(self) -> dict[str, Any]:
        """Return the run's config as plain values, whatever version of cafedcl wrote it."""
        tables = read_file(self.path / CONFIG)
        missing = [f"[{name}]" for name in ("method", "data", "federation") if name not in tables]
        if missing:
            raise CafedclError(
                f"{self.path / CONFIG}: damaged: {', '.join(missing)} is missing; the config of a "
                "run has every option; restore it from a backup"
            )
        with _about(self.path / CONFIG):
            return upgrade(tables)

    def config(self) -> "Config":
        """Return the run's resolved config."""
        from cafedcl.task.resolve import resolve

        tables = self.tables()
        with _about(self.path / CONFIG):
            return resolve(tables)

    def environment(self) -> dict[str, Any]:
        """Return where and how the run was made; empty if the file does not exist."""
        return read_environment(self.path / "environment.json")

    def described(self, warn: Callable[[str], None]) -> dict[str, Any]:
        """Return where and how the run was made; empty, with a warning, if the file is damaged."""
        try:
            return self.environment()
        except CafedclError as error:
            warn(str(error))
            return {}

    def metrics(self) -> list[MetricsLine]:
        """Return the rounds written so far, without a last line that a crash cut off."""
        read = self.metrics_file.read()
        if read.problem:
            raise CafedclError(f"{read.problem}; {self.advice_for_metrics(len(read.lines))}")
        return read.lines

    def advice_for_metrics(self, rounds: int) -> str:
        """Return what to do if only the first ``rounds`` rounds of the metrics can be read."""
        numbers: list[int] = []
        # Where they cannot be listed, nothing can be resumed either.
        with suppress(CafedclError):
            numbers = [_number(file) for file in self.checkpoints()]
        # A checkpoint that is one round ahead has the line of that round.
        if any(number <= rounds + 1 for number in numbers):
            resume = cafedcl_command("resume", self.path)
            return f"restore it from a backup, or train the rounds after it again with `{resume}`"
        retrain = retrain_command(self.path)
        return f"restore it from a backup, or train again in a new folder with `{retrain}`"

    def rewind(self, rounds: int) -> None:
        """Remove what was written after the given number of rounds, and unfinished files."""
        with explained(self.path):
            self._make_folders()
            for file in _numbered(self.path / "evaluations"):
                if _number(file) >= rounds:
                    file.unlink()
            # A newer checkpoint is damaged, or the run would have been resumed from it.
            for file in self.checkpoints():
                if _number(file) > rounds:
                    file.unlink()
            for file in self.path.glob(f"**/*{TEMPORARY}"):
                file.unlink()
            # The metrics come last: if something is in the way above, they are still there.
            self.metrics_file.write(self.metrics_file.read().lines[:rounds])


@contextmanager
def _about(file: Path) -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except CafedclError as error:
        raise CafedclError(f"{file}: {error}") from None


def _numbered(folder: Path) -> list[Path]:
    """Return the files of rounds in a folder; any other files there are ignored."""
    try:
        files = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Its files may be intact. If it were treated as empty, the run would begin again.
        raise CafedclError(f"{folder}: cannot be read: {error.strerror}") from None
    return [
        file
        for file in files
        if file.suffix == ".safetensors" and file.stem.isdecimal() and file.stem.isascii()
    ]


def _number(file: Path) -> int:
    return int(file.stem)


def refuse_file_of_run(path: Path, option: str = "--out") -> None:
    """Raise CafedclError if a file that is about to be written belongs to a run."""
    for folder, name in zip(path.parents, path.parts[:0:-1], strict=False):
        if (name in {CONFIG, METRICS, *WRITTEN_FIRST}) and RunFolder(folder).begun:
            raise CafedclError(
                f"{option} {path}: it is a file of the run in {folder}; choose another name"
            )


def refuse_inside_run(path: Path) -> None:
    """Raise CafedclError for a path inside a run folder: no command looks for runs there."""
    for parent in path.absolute().parents:
        # A file config.toml alone may be anyone's.
        if (parent / CONFIG).is_file() and (parent / DATA).is_file():
            raise CafedclError(
                f"{path}: it is inside of a run, where other commands would not find it; choose "
                "another --out"
            )


def any_round_counted(lines: Sequence[MetricsLine]) -> bool:
    """Return whether any round was aggregated: if none was, the model has learned nothing."""
    return any(line["status"] != "skipped" for line in lines)


def check_learned(
    lines: Sequence[MetricsLine], path: Path | None, names: Sequence[str] = ()
) -> None:
    """Raise CafedclError if no round was aggregated: such a run must not look like a success.

    ``names`` are the clients' names, if they have names.
    """
    if any_round_counted(lines):
        return
    last = lines[-1] if lines else None
    causes = [last.get("reason", "")] if last else []
    if last and last["failed"]:
        failure = last["failed"][0]
        causes.append(f"{client_title(names, failure['client'])}: {failure['reason']}")
    why = "; ".join(filter(None, causes))
    raise CafedclError(
        f"{path or 'this run'}: no round was aggregated, so the model has learned nothing"
        + (f" (last round: {why})" if why else "")
    )


def _occupied(folder: RunFolder) -> str:
    if not folder.begun:
        what = "exists and is not an empty folder;"
        if (folder.path / DATA).exists() and folder.metrics_file.path.exists():
            what = f"holds a run whose {CONFIG} is missing; restore that file, or"
        return f"{folder.path}: {what} choose another --out"
    done = len(folder.metrics_file.read().lines)
    return (
        f"{folder.path}: already holds a run ({done} rounds); "
        f"resume it with `{cafedcl_command('resume', folder.path)}`, or choose another --out"
    )
