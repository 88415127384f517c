"""Many runs at a time: a pool that starts them, follows their progress and stops them."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cafedcl.compare.jobs import (
    DeviceShare,
    Handle,
    Launcher,
    RunOutcome,
    RunSpec,
    sharing_code,
)
from cafedcl.core.errors import CafedclError
from cafedcl.core.interrupts import stop_signals_handled
from cafedcl.federation.metrics_file import MetricsLine, parse_line
from cafedcl.federation.run_folder import RunFolder, any_round_counted

POLL = 0.1
"""Seconds between two checks of the running processes."""
GRACE = 60.0
"""Seconds that a run has to save its state when it is stopped."""


class Tail:
    """Follows a growing metrics.jsonl: the number of its rounds, and the last one with scores."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.offset = 0
        self.rounds = 0
        self.last: MetricsLine | None = None

    def read(self) -> None:
        """Read what was written since the last call; a file that has shrunk is read again."""
        try:
            # A resumed run returns to its checkpoint and removes the rounds after it.
            if self.path.stat().st_size < self.offset:
                self.offset = 0
                self.rounds = 0
            with self.path.open("rb") as file:
                file.seek(self.offset)
                new = file.read()
        except OSError:
            return
        # The last line may be half written; it is read the next time.
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        for text in whole.splitlines():
            try:
                line = parse_line(text, self.rounds)
            except ValueError:
                # Progress ignores a damaged line; the run itself reports what is wrong.
                continue
            self.rounds += 1
            if line["server"] or line["own"]:
                self.last = line


@dataclass
class Running:
    """A run in progress."""

    job: RunSpec
    slot: DeviceShare
    handle: Handle
    tail: Tail
    began: float
    before: int
    """Number of rounds when it started."""
    stopping: bool = False

    @property
    def made(self) -> int:
        """Rounds since it started; 0 while a resumed run repeats rounds after its checkpoint."""
        return max(0, self.tail.rounds - self.before)

    @property
    def left(self) -> float | None:
        """Estimated seconds until it is finished; None before its first round."""
        if not self.made:
            return None
        seconds_per_round = (time.monotonic() - self.began) / self.made
        return seconds_per_round * (self.job.rounds - self.tail.rounds)


class View:
    """Watches the runs of a pool. Subclasses override the steps they need."""

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def started(self, job: RunSpec) -> None:
        """A run was started."""

    def moved(self, running: Sequence[Running]) -> None:
        """Some time has passed."""

    def ended(self, outcome: RunOutcome) -> None:
        """A run has ended, or was skipped."""


class Pool:
    """The runs in progress, never more than there are slots."""

    def __init__(self, launcher: Launcher, view: View) -> None:
        self.launcher = launcher
        self.view = view
        self.slots = list(launcher.slots)
        self.running: list[Running] = []
        self.compiled: dict[int, set[tuple[str, ...]]] = {slot.number: set() for slot in self.slots}
        """The code that each slot's process has compiled."""
        self.interrupted = False
        self.finishing = False

    @property
    def free(self) -> bool:
        """Whether another run can be started."""
        return bool(self.slots)

    def choose(self, waiting: Iterable[RunSpec]) -> RunSpec | None:
        """Return the run to start next: the first, or on a GPU a run of the same seed for which the
        process has already compiled the code, or else one whose code no process has compiled.

        So most code is compiled by only one process.
        """
        runs = iter(waiting)
        first = next(runs, None)
        slot = self.slots[0]
        if first is None or slot.device != "cuda":
            return first
        here = self.compiled[slot.number]
        anywhere = set().union(*self.compiled.values())
        alike = (first, *(job for job in runs if job.seed == first.seed))
        return min(alike, key=lambda job: (job.compiled not in here, job.compiled in anywhere))

    def start(self, job: RunSpec) -> None:
        """Start or resume a run in a free slot."""
        slot = self.slots.pop(0)
        try:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            handle = self.launcher.launch(job.command(slot.device), slot, job.log)
        except OSError as error:
            self.slots.append(slot)
            where = error.filename or job.log
            raise CafedclError(
                f"{where}: the run cannot be started: {error.strerror or error}"
            ) from None
        tail = Tail(job.folder)
        tail.read()
        self.compiled[slot.number].add(job.compiled)
        self.running.append(Running(job, slot, handle, tail, time.monotonic(), tail.rounds))
        self.view.started(job)

    def wait(self) -> list[RunOutcome]:
        """Wait a moment, and return the runs that have ended.

        Raises KeyboardInterrupt if there was an interrupt meanwhile.
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
        # The run folder decides, not the exit status: a run may be stopped right after its last
        # round, and a status of 0 does not mean that all rounds are there.
        if one.job.finished:
            return failed_if_untrained(ended)
        # The process and its compiled code have ended with its run.
        self.compiled[one.slot.number].clear()
        if one.stopping:
            return replace(ended, status="stopped")
        return replace(ended, status="failed", error=last_words(one.job.log, status))

    def stop(self, jobs: Iterable[RunSpec] | None = None) -> None:
        """Ask some runs, or all, to save their state and exit."""
        wanted = None if jobs is None else set(jobs)
        for one in self.running:
            if not one.stopping and (wanted is None or one.job in wanted):
                one.stopping = True
                one.handle.stop()

    def finish(self, grace: float = GRACE) -> list[RunOutcome]:
        """Stop all runs and wait for them.

        Runs that do not exit in time, or before a second interrupt, are killed.
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
    """Return the last line of a failed run's log, without the prefix `error:`.

    A warning is not the reason.
    """
    try:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        lines = []
    said = [line for line in lines if line and not line.startswith("warning: ")]
    message = said[-1] if said else ""
    if message:
        return message.removeprefix("error: ")
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended with status {status} before its last round"


class Allowance(Protocol):
    """Decides which runs may still start."""

    def fits(self, job: RunSpec) -> bool:
        """Return whether a run may start now."""

    def learn(self, outcome: RunOutcome) -> None:
        """Record a run that has ended."""


def run_all(
    jobs: Iterable[RunSpec], pool: Pool, allowance: Allowance | None = None
) -> list[RunOutcome]:
    """Execute all unfinished runs, and return all outcomes in the order of their end.

    With an allowance, a run that does not fit is skipped, and has no outcome if it never fits.
    """
    outcomes: list[RunOutcome] = []
    waiting: deque[RunSpec] = deque()
    planned = sharing_code(list(jobs))
    for job in planned:
        job.check()
    for job in planned:
        if job.finished:
            outcomes.append(skipped(job))
            pool.view.ended(outcomes[-1])
        else:
            waiting.append(job)
    while waiting or pool.running:
        while pool.free:
            chosen = pool.choose(one for one in waiting if allowance is None or allowance.fits(one))
            if chosen is None:
                break
            waiting.remove(chosen)
            pool.start(chosen)
        if not pool.running:
            # The time left only shrinks: what does not fit now never will.
            break
        ended = pool.wait()
        outcomes += ended
        if allowance is not None:
            for outcome in ended:
                allowance.learn(outcome)
    return outcomes


def skipped(job: RunSpec) -> RunOutcome:
    """Return the outcome of a run that was finished before."""
    tail = Tail(job.folder)
    tail.read()
    return failed_if_untrained(RunOutcome(job, "skipped", last=tail.last))


def failed_if_untrained(outcome: RunOutcome) -> RunOutcome:
    """Return the outcome of a finished run; one whose rounds were all skipped has failed."""
    if any_round_counted(RunFolder(outcome.job.folder).metrics_file.read().lines):
        return outcome
    error = "no round was aggregated, so the model has learned nothing"
    return replace(outcome, status="failed", error=error)


@contextmanager
def polite(pool: Pool) -> Iterator[None]:
    """Run a block in which a first stop signal, such as Ctrl-C, stops all runs, and a second one
    kills them.

    The first one is only recorded; `Pool.wait` raises it as KeyboardInterrupt. If it were raised at
    once, it could hit while a run is being started, and nothing would stop that run.
    """

    def stop() -> None:
        if pool.interrupted:
            raise KeyboardInterrupt
        pool.interrupted = True

    with stop_signals_handled(stop):
        try:
            yield
        finally:
            try:
                pool.finish()
            finally:
                # Even if a second interrupt ends the wait, or a GPU's service would stay behind.
                pool.launcher.close()
