"""Many runs at a time: every job is a `cafedcl run` or `cafedcl resume` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cafedcl.config.flags import FLAGS
from cafedcl.config.options import to_toml
from cafedcl.core.errors import CafedclError
from cafedcl.federation.run_folder import MetricsLine, RunFolder
from cafedcl.task.resolve import resolve

PROGRAM = (sys.executable, "-m", "cafedcl")
"""What runs a job."""
POLL = 0.1
"""Seconds between two looks at the running jobs."""
GRACE = 60.0
"""Seconds that a job has to save itself when it is stopped."""
LOG_FOLDER = "logs"
"""The folder, beside the runs, with what each job wrote to its standard error."""


@dataclass(frozen=True)
class RunSpec:
    """A run that is wanted: where it lives below the folder of all runs, and how `cafedcl run` is
    asked for it.
    """

    out: Path
    place: str
    arguments: tuple[str, ...]
    rounds: int

    @classmethod
    def of(cls, out: Path, place: str, tables: Mapping[str, Mapping[str, Any]]) -> "RunSpec":
        """Make the job of a config's tables; a mistake in them is found here, before anything runs."""
        rounds = resolve(tables).federation.rounds
        flags = {option: name.replace("_", "-") for name, option in FLAGS.items()}
        arguments: list[str] = []
        settings: list[str] = []
        for section, table in tables.items():
            for key, value in table.items():
                name = f"{section}.{key}"
                # The device is chosen when the job starts, by the share that it gets.
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
        """Where the job's standard error goes."""
        return self.out / LOG_FOLDER / f"{self.place}.txt"

    @property
    def begun(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.folder / "config.toml").is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has all its rounds."""
        run = RunFolder(self.folder)
        return self.begun and len(run.metrics()) >= self.rounds and bool(run.checkpoints())

    def command(self, device: str) -> list[str]:
        """Return the arguments that start the run, or go on with it."""
        if self.begun:
            return ["resume", str(self.folder), "--quiet"]
        return ["run", *self.arguments, "--device", device, "--out", str(self.folder), "--quiet"]


@dataclass(frozen=True)
class RunOutcome:
    """How a job ended: finished, failed, stopped, or skipped because it was finished before."""

    job: RunSpec
    status: str
    error: str = ""
    seconds: float = 0.0
    made: int = 0
    """Rounds that were made by this process."""
    last: MetricsLine | None = None
    """The last scored round."""


@dataclass(frozen=True)
class DeviceShare:
    """A place for one job at a time: a device by its name in the config, and what the job's
    environment adds.
    """

    device: str
    variables: dict[str, str] = field(default_factory=dict)


class Handle(Protocol):
    """A job that was started."""

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""

    def stop(self) -> None:
        """Ask it to save itself and end."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """What can start jobs, and how many at a time."""

    slots: Sequence[DeviceShare]

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        """Start a job."""


class LocalLauncher:
    """Jobs as processes on this machine, out of reach of the terminal's Ctrl-C: they are stopped
    once, politely.
    """

    def __init__(self, slots: Sequence[DeviceShare]) -> None:
        self.slots = slots

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        """Start a process."""
        return RunProcess(arguments, slot, log)


class RunProcess:
    """A job in a process of this machine."""

    def __init__(self, arguments: list[str], slot: DeviceShare, log: Path) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **slot.variables},
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self.process.poll()

    def stop(self) -> None:
        """Ask it to save itself and end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


class Tail:
    """The end of a growing metrics.jsonl: how many rounds it has, and the last one with scores."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.offset = self.rounds = 0
        self.last: MetricsLine | None = None

    def read(self) -> None:
        """Take in what was written since the last look; a file that was rewound is read again."""
        try:
            if self.path.stat().st_size < self.offset:
                self.offset = self.rounds = 0
            with self.path.open("rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            self.rounds += 1
            if line.get("server") or line.get("own"):
                self.last = line


@dataclass
class Running:
    """A job at work."""

    job: RunSpec
    slot: DeviceShare
    handle: Handle
    tail: Tail
    began: float
    before: int
    """Rounds that were there when it started."""
    stopping: bool = False

    @property
    def made(self) -> int:
        """Rounds made since it started; a resumed run may first go back by some."""
        return max(0, self.tail.rounds - self.before)

    @property
    def left(self) -> float | None:
        """Seconds until it is done, by its own pace; None before its first round."""
        spent = time.monotonic() - self.began
        return spent / self.made * (self.job.rounds - self.tail.rounds) if self.made else None


class View:
    """Sees jobs come and go. Every step may be overridden; none has to be."""

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, job: RunSpec) -> None:
        """A job was started."""

    def moved(self, running: Sequence[Running]) -> None:
        """Some time has passed."""

    def ended(self, outcome: RunOutcome) -> None:
        """A job has ended, or needs not be run."""


class Pool:
    """The running jobs, never more than there are slots."""

    def __init__(self, launcher: Launcher, view: View) -> None:
        self.launcher = launcher
        self.view = view
        self.slots = list(launcher.slots)
        self.running: list[Running] = []
        self.interrupted = self.finishing = False

    @property
    def free(self) -> bool:
        """Whether another job can be started."""
        return bool(self.slots)

    def start(self, job: RunSpec) -> None:
        """Start a job, or go on with it, in a free slot."""
        slot = self.slots.pop(0)
        try:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            handle = self.launcher.launch(job.command(slot.device), slot, job.log)
        except OSError as error:
            self.slots.append(slot)
            where = error.filename or job.log
            raise CafedclError(
                f"{where}: the job cannot be started: {error.strerror or error}"
            ) from None
        tail = Tail(job.folder)
        tail.read()
        self.running.append(Running(job, slot, handle, tail, time.monotonic(), tail.rounds))
        self.view.started(job)

    def wait(self) -> list[RunOutcome]:
        """Let some time pass, and return what has ended; raises KeyboardInterrupt if one has come
        meanwhile.
        """
        time.sleep(POLL)
        outcomes = []
        for one in list(self.running):
            status = one.handle.poll()
            one.tail.read()
            if status is not None:
                self.running.remove(one)
                self.slots.append(one.slot)
                outcomes.append(self._ended(one, status))
        for outcome in outcomes:
            self.view.ended(outcome)
        self.view.moved(self.running)
        if self.interrupted and not self.finishing:
            raise KeyboardInterrupt
        return outcomes

    def _ended(self, one: Running, status: int) -> RunOutcome:
        ended = RunOutcome(
            one.job, "finished", "", time.monotonic() - one.began, one.made, one.tail.last
        )
        if one.job.finished:
            return ended
        if one.stopping:
            return replace(ended, status="stopped")
        return replace(ended, status="failed", error=last_words(one.job.log, status))

    def stop(self, jobs: Iterable[RunSpec] | None = None) -> None:
        """Ask jobs, or all of them, to save themselves and end."""
        wanted = None if jobs is None else set(jobs)
        for one in self.running:
            if not one.stopping and (wanted is None or one.job in wanted):
                one.stopping = True
                one.handle.stop()

    def finish(self, grace: float = GRACE) -> list[RunOutcome]:
        """Stop everything and wait for it; what does not end in time, or on a second interrupt, is
        killed.
        """
        outcomes: list[RunOutcome] = []
        self.finishing = True
        try:
            self.stop()
            until = time.monotonic() + grace
            while self.running and time.monotonic() < until:
                outcomes += self.wait()
        finally:
            for one in self.running:
                one.handle.kill()
            outcomes += self.wait() if self.running else []
        return outcomes


def last_words(log: Path, status: int) -> str:
    """Return the last line that a failed job wrote, without the word «error»."""
    try:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        lines = []
    said = next((line for line in reversed(lines) if line), "")
    if said:
        return said.removeprefix("error: ")
    return (
        f"killed by signal {-status}"
        if status < 0
        else f"ended with status {status} before its last round"
    )


def run_all(jobs: Iterable[RunSpec], pool: Pool) -> list[RunOutcome]:
    """Run what is not finished yet, and return how every job ended, in the order in which they
    ended.
    """
    outcomes: list[RunOutcome] = []
    waiting: deque[RunSpec] = deque()
    for job in jobs:
        if job.finished:
            outcomes.append(skipped(job))
            pool.view.ended(outcomes[-1])
        else:
            waiting.append(job)
    while waiting or pool.running:
        while waiting and pool.free:
            pool.start(waiting.popleft())
        outcomes += pool.wait()
    return outcomes


def skipped(job: RunSpec) -> RunOutcome:
    """Return the outcome of a job that was finished before."""
    tail = Tail(job.folder)
    tail.read()
    return RunOutcome(job, "skipped", last=tail.last)


@contextmanager
def polite(pool: Pool) -> Iterator[None]:
    """Run a block in which the first Ctrl-C or SIGTERM stops all jobs politely, and a second one
    kills them.

    The first one is noted, and raised as KeyboardInterrupt where no job is just being started.
    """

    def interrupt(*_: object) -> None:
        if pool.interrupted:
            raise KeyboardInterrupt
        pool.interrupted = True

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        try:
            pool.finish()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
