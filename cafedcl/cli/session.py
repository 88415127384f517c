"""Helpers of the commands that run something: messages, progress, interrupts, folder names."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from cafedcl.federation.runs import Run
    from cafedcl.federation.watcher import Watcher


def warn(message: str) -> None:
    """Print a warning in one line."""
    print(f"warning: {message}", file=sys.stderr)


def conclude(finished: "Run", silent: bool) -> None:
    """Print the scores of a finished run and the files it wrote."""
    if silent:
        return
    from cafedcl.federation.run_folder import RunFolder
    from cafedcl.terminal.overview import overview

    assert finished.path is not None
    about = RunFolder(finished.path).environment()
    screen = console()
    screen.print(
        overview(finished.config.label, finished.records, finished.config.federation.rounds, about)
    )
    screen.print(
        f"written to {finished.path}: config.toml, metrics.jsonl, evaluations/, checkpoints/, "
        "environment.json",
        soft_wrap=True,
    )


@contextmanager
def logging(names: list[str] | None, path: Path) -> "Iterator[list[Watcher]]":
    """Yield the watchers that log a run to TensorBoard or MLflow."""
    if not names:
        yield []
        return
    from cafedcl.federation.loggers import logging_to

    with logging_to(names, path) as logs:
        yield logs


@contextmanager
def watching(quiet: bool, as_json: bool) -> "Iterator[list[Watcher]]":
    """Yield the watchers that show progress: live, as plain lines or as JSON."""
    from cafedcl.terminal.progress import JsonProgress, LiveProgress, PlainProgress

    screen = console()
    if as_json:
        yield [JsonProgress(sys.stdout)]
    elif quiet:
        yield []
    elif screen.is_terminal:
        with LiveProgress(screen) as live:
            yield [live]
    else:
        yield [PlainProgress(sys.stdout)]


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Print how to resume when Ctrl-C or SIGTERM stops a run; the run is saved by then."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # A SIGTERM becomes a KeyboardInterrupt, so that the run is saved as on Ctrl-C.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted; saved. Resume with: cafedcl resume {path}", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def new_folder(name: str) -> Path:
    """Return a folder under runs/ that does not exist yet."""
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
        number += 1
