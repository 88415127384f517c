"""Commands about one run: `cafedcl run`, `resume` and `demo`.

Nothing here imports PyTorch before a command needs it.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cafedcl.cli.options import JsonRounds, Quiet, RunOut, RunPath, Settings, with_flags
from cafedcl.cli.report import report
from cafedcl.cli.session import (
    conclude,
    folder_for,
    load_torch,
    resumable,
    warn,
    warn_of_presets,
    watching,
)
from cafedcl.config.flags import FLAGS, Flags
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.printable import printable
from cafedcl.core.slug import slug
from cafedcl.terminal.console import console

Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="tensorboard|mlflow", help="Also log the rounds there; repeatable."
    ),
]


@with_flags(*FLAGS)
def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="A config file; see `cafedcl config`."),
    ] = None,
    *,
    flags: Flags,
    out: RunOut = None,
    settings: Settings = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: JsonRounds = False,
) -> None:
    """Train a method and write a run folder."""
    load_torch(quiet or as_json)
    from cafedcl import api
    from cafedcl.task.resolve import gather

    chosen = gather(config, settings=settings or [], **flags)
    method = flags.get("method")
    if method is not None:
        warn_of_presets(config, [method], flags, settings or ())
    words = (chosen.label, Path(chosen.data.name).stem, f"s{chosen.run.seed}")
    name = slug("-".join(slug(word, keep=".") for word in words), keep=".-")
    with (
        folder_for(out, name) as path,
        api.logging(log or (), path) as logs,
        watching(quiet, as_json) as callbacks,
        resumable(path),
    ):
        finished = api.start(chosen, path, [*callbacks, *logs], ["cafedcl", *sys.argv[1:]])
    conclude(finished, quiet or as_json)


def resume(
    path: RunPath,
    rounds: Annotated[
        int | None, typer.Option(help="Extend the run to this number of rounds.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change an option that does not change results, such as engine.workers.",
        ),
    ] = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: JsonRounds = False,
) -> None:
    """Resume an interrupted run; its results are the same as without the interruption."""
    load_torch(quiet or as_json)
    from cafedcl import api
    from cafedcl.federation.run_folder import RunFolder, check_learned
    from cafedcl.federation.runs import change_config, check_unchanged, unchanged_if_refused

    folder = RunFolder.open(path)
    changes = list(settings or [])
    if rounds is not None:
        changes.append(f"federation.rounds={rounds}")
    with unchanged_if_refused(folder):
        if changes:
            change_config(folder, changes)
        # Only the run itself knows what another accountant or budget allows.
        counts_anew = any(change.startswith("privacy.") for change in changes)
        config = folder.config()
        if not counts_anew and folder.is_finished(config.federation.rounds):
            check_unchanged(folder, config)
            _, about = folder.data()
            check_learned(folder.metrics(), path, about.get("clients", ()))
            if not quiet:
                print(printable(f"{path}: already finished; `{cafedcl_command('show', path)}`"))
            return
        with watching(quiet, as_json) as callbacks, resumable(path, True):
            finished = api.resume(path, callbacks, warn, log=log or ())
    conclude(finished, quiet or as_json)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for both runs; by default a new one under runs/.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 15,
) -> None:
    """Train FedAvg and CAFedCL on handwritten digits, compare them and write a report.

    The digits are split over 20 clients by a Dirichlet distribution with α = 0.1.
    """
    load_torch()
    from cafedcl import api
    from cafedcl.task.build import prepare
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.overview import comparison_table
    from cafedcl.terminal.split_map import split_map

    screen = console()
    configs = [
        gather(method=name, rounds=rounds, split="dirichlet:0.1") for name in ("fedavg", "cafedcl")
    ]
    ready = prepare(configs[0])
    screen.print(
        "handwritten digits, 20 clients, Dirichlet 0.1: training images per client and class\n",
        style="bold",
    )
    screen.print(split_map(ready.counts, ready.task.clients.data.names))
    screen.print()
    with folder_for(out, "demo") as folder:
        finished = []
        for config in configs:
            path = folder / config.method.name
            if not screen.is_terminal:  # the live view shows the name itself
                print(printable(f"{config.method.name}:"))
            with watching(False, False) as callbacks, resumable(path):
                finished.append(api.start(config, path, callbacks, ["cafedcl", "demo"]))
            screen.print()
        screen.print(
            comparison_table(
                [(run.config.method.name, run.records) for run in finished], screen.width
            )
        )
        for run in finished:
            screen.print(
                f"written: {run.path}  ({cafedcl_command('show', run.path)})", soft_wrap=True
            )
        report([folder], folder / "report.html")
