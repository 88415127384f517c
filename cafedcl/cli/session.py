"""Helpers of the commands that run something: messages, progress, interrupts, folder names."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cafedcl.config.flags import Flags
from cafedcl.config.privacy_options import short_privacy
from cafedcl.config.trust_options import short_attack, short_defence, trust_words
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.files import explained
from cafedcl.core.interrupts import stop_signals_handled
from cafedcl.core.printable import printable
from cafedcl.core.steps import step
from cafedcl.terminal.console import console
from cafedcl.terminal.streams import NoReaderError
from cafedcl.terminal.waiting import silent_steps

if TYPE_CHECKING:
    from cafedcl.federation.callback import Callback
    from cafedcl.federation.result import Run
    from cafedcl.federation.run_folder import RunFolder


def warn(message: str) -> None:
    """Print a warning in one line."""
    print(printable(f"warning: {message}"), file=sys.stderr)


def warn_of_presets(
    config: Path | None, methods: Iterable[str], flags: Flags, settings: Iterable[str]
) -> None:
    """Warn if a config file that names another method replaces options of a preset.

    Options set by flags and ``--set`` are intended.
    """
    from cafedcl.config.flags import set_flags
    from cafedcl.config.format import read_config
    from cafedcl.config.options import flattened, to_toml
    from cafedcl.config.sections import assign
    from cafedcl.task.resolve import replaced_of_preset

    tables = read_config(config)
    named = str(tables.get("method", {}).get("name", "")).partition("+")[0]
    asked: dict[str, dict[str, Any]] = {}
    set_flags(asked, flags)
    for setting in settings:
        assign(asked, setting)
    for method in methods:
        if method.partition("+")[0] == named:
            continue
        replaced = replaced_of_preset(tables, method)
        for name in flattened(asked):
            replaced.pop(name, None)
        if replaced:
            changes = ", ".join(
                f"{name} = {to_toml(given)} ({method}: {to_toml(value)})"
                for name, (given, value) in replaced.items()
            )
            warn(
                f"{config} replaces options of {method}: {changes}; to train with those of the "
                "preset, leave these lines out of the file"
            )


def load_torch(silent: bool = False) -> None:
    """Import PyTorch, which can take seconds, and say so meanwhile unless ``silent``.

    Ctrl-C is delayed until it is imported. PyTorch imports numpy in a way that swallows an
    interrupt and leaves numpy incomplete, which fails much later.
    """
    asked: list[bool] = []
    with (
        stop_signals_handled(lambda: asked.append(True)),
        silent_steps() if silent else nullcontext(),
        step("loading PyTorch"),
    ):
        import torch  # noqa: F401
    if asked:
        print("\ninterrupted; nothing had begun", file=sys.stderr)
        sys.exit(130)


def conclude(finished: "Run", silent: bool) -> None:
    """Print the scores of a finished run and the files it wrote."""
    assert finished.path is not None
    if not silent:
        _print_result(finished, finished.path)
    finished.require_learned()


def _print_result(finished: "Run", path: Path) -> None:
    from cafedcl.federation.run_folder import RunFolder
    from cafedcl.report.run_summary import read_run
    from cafedcl.terminal.overview import overview

    config = finished.config
    # If this is damaged, resuming the run warns about it.
    about = RunFolder(path).described(lambda _: None)
    trust = trust_words(
        short_attack(asdict(config.attack)),
        short_defence(asdict(config.defence)),
        short_privacy(asdict(config.privacy)),
    )
    screen = console()
    screen.print(
        overview(
            config.label,
            finished.records,
            config.federation.rounds,
            about,
            trust,
            finished.client_names,
            read_run(path).last_classes(),
        )
    )
    screen.print(
        f"written to {path}: config.toml, metrics.jsonl, evaluations/, checkpoints/, "
        "environment.json",
        soft_wrap=True,
    )


@contextmanager
def watching(quiet: bool, as_json: bool) -> "Iterator[list[Callback]]":
    """Yield the callbacks that show progress: live, as plain lines or as JSON."""
    from cafedcl.terminal.progress import JsonProgress, LiveProgress, PlainProgress, Warnings

    screen = console()
    if as_json:
        with silent_steps():
            yield [JsonProgress(sys.stdout)]
    elif quiet:
        with silent_steps():
            yield [Warnings()]
    elif screen.is_terminal:
        # The live view shows the current step itself.
        with silent_steps(), LiveProgress(screen) as live:
            yield [live]
    else:
        yield [PlainProgress(sys.stdout)]


@contextmanager
def resumable(path: Path, resumed: bool = False) -> Iterator[None]:
    """Print what is saved, and how to resume, when Ctrl-C or another signal stops a run.

    ``resumed`` is whether the folder already holds this run.
    """
    from cafedcl.federation.run_folder import RunFolder

    folder = RunFolder(path)
    belongs_to_another = folder.begun and not resumed

    with stop_signals_handled():
        try:
            yield
        except (KeyboardInterrupt, NoReaderError):
            saved = "nothing is saved" if belongs_to_another else what_is_saved(folder)
            print(printable(f"\ninterrupted; {saved}"), file=sys.stderr)
            sys.exit(130)


def what_is_saved(folder: "RunFolder") -> str:
    """Return what an interrupted run has saved in its folder, and how to resume it."""
    if not folder.begun:
        return "the run had not begun, nothing is saved"
    done = len(folder.metrics_file.read().lines)
    rounds = "1 round is" if done == 1 else f"{done} rounds are"
    return f"{rounds} saved. Resume with: {cafedcl_command('resume', folder.path)}"


@contextmanager
def folder_for(out: Path | None, name: str) -> Iterator[Path]:
    """Yield the folder to write to: the given one, or else a new one under runs/.

    A new folder is created at once, so that two commands that start together do not use the same
    one. It is removed if nothing was written into it.
    """
    if out is not None:
        yield out
        return
    with explained(Path("runs")):
        path = new_folder(name)
    try:
        yield path
    finally:
        # Only empty folders can be removed.
        with suppress(OSError):
            path.rmdir()
            path.parent.rmdir()


def new_folder(name: str) -> Path:
    """Make a folder under runs/ that did not exist, and return it."""
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path
