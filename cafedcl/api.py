"""The Python API: run, start, resume, load."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from cafedcl.config.flags import RunFlags
from cafedcl.config.options import to_toml
from cafedcl.config.sections import Config
from cafedcl.federation import runs
from cafedcl.federation.result import Run
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import load
from cafedcl.federation.watcher import Watcher
from cafedcl.task.resolve import gather

__all__ = ["Run", "load", "resume", "run", "start"]


def run(
    method: str = "cafedcl",
    data: str = "digits",
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watchers: Sequence[Watcher] = (),
    **flags: Unpack[RunFlags],
) -> Run:
    """Run a federation and return its results; with ``out``, a run folder is written as rounds end.

    ``flags`` are those of the command line: ``augment``, ``split``, ``clients``, ``rounds``,
    ``seed``, ``device``, ``engine`` and so on (`cafedcl.config.flags.RunFlags`). ``settings`` sets
    any option by its name in the config: ``{"train.lr": 0.05, "method.tau": 0.2}``.
    """
    words = [f"{name}={to_toml(value)}" for name, value in (settings or {}).items()]
    return start(gather(settings=words, method=method, data=data, **flags), out, watchers)


def start(
    config: Config,
    out: str | Path | None,
    watchers: Sequence[Watcher] = (),
    command: Sequence[str] = (),
) -> Run:
    """Run a resolved config from its first round: on this machine, or simulated on Flower if its
    engine says so.
    """
    if config.engine.name == "flower":
        from cafedcl.deploy.simulate import simulate

        return simulate(config, out, watchers)
    return runs.start(config, out, watchers, command)


def resume(
    path: str | Path,
    watchers: Sequence[Watcher] = (),
    warn: Callable[[str], None] = print,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Resume a run from its newest whole checkpoint; the result is the same as if it had never
    stopped.

    ``settings`` may raise the number of rounds, ``{"federation.rounds": 200}``, and change how the
    run is computed and stored (``engine.…``, ``store.…``).
    """
    folder = RunFolder.open(path)
    if settings:
        words = [f"{name}={to_toml(value)}" for name, value in settings.items()]
        runs.change_config(folder, words)
    if folder.config().engine.name == "flower":
        from cafedcl.deploy.simulate import resume_on_flower

        return resume_on_flower(folder, watchers)
    return runs.resume(path, watchers, warn)
