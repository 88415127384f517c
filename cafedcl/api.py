"""The Python API: run, resume, load, report, split and export."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from cafedcl.config.flags import RunFlags, check_flags
from cafedcl.config.options import to_toml
from cafedcl.config.sections import Config, full_name
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained
from cafedcl.federation import runs
from cafedcl.federation.callback import Callback
from cafedcl.federation.result import Run
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import load
from cafedcl.task.resolve import gather
from cafedcl.terminal.notebook import notebook_callbacks
from cafedcl.terminal.progress import Warnings

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "export", "load", "report", "resume", "run", "split", "start"]


def run(
    method: str = "cafedcl",
    data: str | Path = "digits",
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] | None = None,
    log: str | Sequence[str] = (),
    **flags: Unpack[RunFlags],
) -> Run:
    """Run a federation and return its results; with ``out``, a run folder is written as rounds end.

    Without ``callbacks``, progress is shown in a notebook, and elsewhere only warnings;
    ``callbacks=[]`` shows nothing.

    ``flags`` are those of the command line: ``augment``, ``split``, ``clients``, ``rounds``,
    ``seed``, ``device``, ``engine`` and so on (`cafedcl.config.flags.RunFlags`). ``settings`` sets
    any option by its name in the config: ``{"train.lr": 0.05, "method.tau": 0.2}``. ``log`` writes
    the rounds to ``"tensorboard"`` or ``"mlflow"`` too.
    """
    check_text("method", method, "a name such as 'cafedcl'")
    check_text("data", data, "a name, a path, or the path of an .npz file with your arrays")
    check_flags(flags, arguments_of(run))
    config = gather(settings=as_words(settings), method=method, data=str(data), **flags)
    if log and out is None:
        raise CafedclError(f"log = {log!r}: it needs a run folder; give out='runs/first'")
    with logging(log, out or "") as logs:
        finished = start(config, out, [*shown(callbacks), *logs])
    finished.require_learned()
    return finished


def arguments_of(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's arguments, without those that it takes as flags."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]


def check_text(argument: str, value: object, expected: str) -> None:
    """Raise an error unless an argument is text or a path."""
    if inspect.isclass(value) or inspect.isfunction(value):
        name = f"{value.__module__}:{value.__qualname__}"
        use = f"use {argument}='{name}'"
        if value.__module__ == "__main__" or "<" in name:
            # Other processes of the run could not import it.
            use = f"put it into a file, such as own.py, and use {argument}='own:{value.__name__}'"
        raise CafedclError(f"{argument}: its name is expected, not the thing itself; {use}")
    if not isinstance(value, str | Path):
        raise CafedclError(f"{argument}: {expected} is expected, not {type(value).__name__}")


def shown(callbacks: Sequence[Callback] | None) -> Sequence[Callback]:
    """Return the callbacks of a run: those given, or the progress in a notebook, or warnings."""
    if callbacks is None:
        return notebook_callbacks() or [Warnings()]
    if not isinstance(callbacks, Sequence):
        what = type(callbacks).__name__
        raise CafedclError(f"callbacks: a list of callbacks is expected, not {what}")
    for each in callbacks:
        if not isinstance(each, Callback):
            raise CafedclError(
                f"callbacks: {each!r} is not an object of a class derived from cafedcl.Callback"
            )
    return callbacks


@contextmanager
def logging(names: str | Sequence[str], path: str | Path) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks that log a run to TensorBoard or MLflow; ``path`` is its folder."""
    if not names:
        yield []
        return
    from cafedcl.federation.loggers import logging_to

    with logging_to([names] if isinstance(names, str) else names, path) as logs:
        yield logs


def as_words(settings: Mapping[str, Any] | None) -> list[str]:
    """Return settings as the command line writes them, ``section.key=value``."""
    if not isinstance(settings, Mapping | None):
        what = type(settings).__name__
        raise CafedclError(f"settings: a dict such as {{'train.lr': 0.1}} is expected, not {what}")
    for name in settings or ():
        if not isinstance(name, str):
            raise CafedclError(f"settings: names such as 'train.lr' are expected, not {name!r}")
        check_name("settings", name)
    # NumPy's truth values must be converted, unlike its numbers, which print like Python's.
    plain = {n: bool(v) if isinstance(v, np.bool_) else v for n, v in (settings or {}).items()}
    return [f"{name}={to_toml(value)}" for name, value in plain.items()]


def check_name(argument: str, name: str) -> None:
    """Raise an error for the name of an option without its section."""
    if "." not in name:
        meant = full_name(name)
        advice = f"did you mean '{meant}'?" if meant else "a name such as 'train.lr' is expected"
        raise CafedclError(f"{argument}: '{name}': {advice}")


def start(
    config: Config,
    out: str | Path | None,
    callbacks: Sequence[Callback] = (),
    command: Sequence[str] = (),
) -> Run:
    """Run a resolved config from its first round: on this machine, or simulated on Flower if its
    engine says so.
    """
    if config.engine.name == "flower":
        from cafedcl.deploy.simulate import simulate

        return simulate(config, out, callbacks)
    return runs.start(config, out, callbacks, command)


def resume(
    path: str | Path,
    callbacks: Sequence[Callback] | None = None,
    warn: Callable[[str], None] = print,
    settings: Mapping[str, Any] | None = None,
    log: str | Sequence[str] = (),
    rounds: int | None = None,
) -> Run:
    """Resume a run from its newest intact checkpoint; the result is the same as if it had never
    stopped.

    ``rounds`` may raise the number of rounds, and ``settings`` change how the run is computed and
    stored (``engine.…``, ``store.…``). A ``log`` continues where it ended.
    """
    folder = RunFolder.open(path)
    if rounds is not None:
        settings = {**(settings or {}), "federation.rounds": rounds}
    if settings:
        runs.change_config(folder, as_words(settings))
    with logging(log, path) as logs:
        told = [*shown(callbacks), *logs]
        if folder.config().engine.name == "flower":
            from cafedcl.deploy.simulate import resume_on_flower

            finished = resume_on_flower(folder, told)
        else:
            finished = runs.resume(path, told, warn)
    finished.require_learned()
    return finished


def export(
    run: Run | str | Path,
    out: str | Path,
    to: str | None = None,
    client: int | str | None = None,
    licence: str = "",
) -> Path:
    """Write a run's model into one file with a model card beside it; return the card's path.

    The format is onnx, torch or safetensors; by default it follows from the file's name. A card
    that was edited is kept, and the new one is called ``NAME.new.md``.
    """
    from cafedcl.export.card import write_card
    from cafedcl.export.formats import ENDINGS, write_model

    file = Path(out)
    known = {ending: name for name, ending in ENDINGS.items()}
    form = to or known.get(file.suffix.lower())
    if form is None:
        raise CafedclError(
            f"{file}: its name must end with {', '.join(known)}; or give the format: --to onnx, "
            "in Python to='onnx'"
        )
    if form not in ENDINGS:
        raise CafedclError(f"to = {form!r}: expected one of {', '.join(ENDINGS)}")
    ending = file.suffix.lower()
    # A program chooses its reader by the ending, and the model card would replace a file .md.
    if ending == ".md" or known.get(ending, form) != form:
        raise CafedclError(f"{file}: a file for {form} must not end with {ending}; rename it")
    loaded = run if isinstance(run, Run) else load(run)
    model = write_model(loaded, form, file, client)
    with explained(file):
        return write_card(loaded, model, file, client, licence)


def report(runs: str | Path | Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write one HTML file that shows and compares run folders; return its path."""
    from cafedcl.report.page import write_report
    from cafedcl.report.runs import read_runs

    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    write_report(read_runs(paths), Path(out))
    return Path(out)


def split(
    how: str | None = None,
    data: str | Path = "digits",
    *,
    settings: Mapping[str, Any] | None = None,
    **flags: Unpack[RunFlags],
) -> "pd.DataFrame":
    """Return how a split assigns training images: a row per client and a column per class.

    ``how`` is as on the command line: ``dirichlet:0.1``, ``pathological:2,ir=10`` and so on.
    """
    import pandas as pd

    from cafedcl.core.client_names import client_title
    from cafedcl.task.build import load_data, settle_split

    check_flags(flags, arguments_of(split))
    chosen: RunFlags = {**flags, "split": how} if how else flags
    config = gather(settings=as_words(settings), data=str(data), **chosen)
    images = load_data(config)
    _, shards = settle_split(config, images)
    clients = [client_title(shards.names, client) for client in range(len(shards))]
    return pd.DataFrame(shards.counts.numpy(), index=clients, columns=list(images.names))
