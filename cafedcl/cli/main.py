"""The command line. Nothing here imports PyTorch before a command needs it."""

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from cafedcl.cli.compare import compare, sweep, watch
from cafedcl.cli.deploy import app as deploy
from cafedcl.cli.listing import augmenters, datasets, methods, models, show_config
from cafedcl.cli.options import DataDir, Quiet, Settings
from cafedcl.cli.report import figures, report, table
from cafedcl.cli.reproduce import reproduce
from cafedcl.cli.session import conclude, logging, new_folder, resumable, warn, watching
from cafedcl.cli.speed import bench
from cafedcl.core.errors import CafedclError
from cafedcl.core.version import __version__
from cafedcl.terminal.console import console
from cafedcl.theory.figure import theory

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="cafedcl",
    help="Federated learning for clients whose data are highly imbalanced.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Strict = Annotated[
    bool | None, typer.Option("--strict", help="Refuse your own data if any image is corrupt.")
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="tensorboard|mlflow", help="Also log the rounds there; repeatable."
    ),
]
JsonRounds = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per round, and nothing else.")
]


def main() -> NoReturn:
    """Run the command line: a mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except CafedclError as error:
        fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line, and leave."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def show_version(wanted: bool) -> None:
    """Print the version."""
    if wanted:
        print(f"cafedcl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Federated learning for clients whose data are highly imbalanced."""


@app.command()
def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="A config file; see `cafedcl config`."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Method, method:preset, or method+augmentation; see `cafedcl methods`."),
    ] = None,
    augment: Annotated[
        str | None, typer.Option(help="Tail augmentation; see `cafedcl augmenters`.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set; see `cafedcl datasets`.")] = None,
    split: Annotated[
        str | None, typer.Option(help="dirichlet:0.1, pathological:2,ir=10, iid, …")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, reference, cpu, cuda, flower.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default a new one under runs/.")
    ] = None,
    data_dir: DataDir = None,
    strict: Strict = None,
    settings: Settings = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: JsonRounds = False,
) -> None:
    """Train a method and write a run folder."""
    from cafedcl.task.resolve import gather

    flags: dict[str, Any] = {
        "split": split,
        "clients": clients,
        "rounds": rounds,
        "seed": seed,
        "device": device,
    }
    flags |= {"data": data, "data_dir": data_dir, "strict": strict}
    chosen = gather(
        config, method=method, augment=augment, engine=engine, settings=settings or [], **flags
    )
    words = (chosen.label, Path(chosen.data.name).stem, f"s{chosen.run.seed}")
    path = out or new_folder("-".join(re.sub(r"[^\w.]+", "-", word) for word in words))
    from cafedcl import api

    with logging(log, path) as logs, watching(quiet, as_json) as watchers, resumable(path):
        finished = api.start(chosen, path, [*watchers, *logs], ["cafedcl", *sys.argv[1:]])
    conclude(finished, quiet or as_json)


@app.command()
def resume(
    path: RunPath, log: Log = None, quiet: Quiet = False, as_json: JsonRounds = False
) -> None:
    """Go on with a run that was interrupted; it ends as if it had never stopped."""
    from cafedcl import api
    from cafedcl.federation.run_folder import RunFolder

    folder = RunFolder.open(path)
    if len(folder.metrics()) >= folder.config().federation.rounds and folder.checkpoints():
        if not quiet:
            print(f"{path}: already finished; `cafedcl show {path}`")
        return
    with logging(log, path) as logs, watching(quiet, as_json) as watchers, resumable(path):
        finished = api.resume(path, [*watchers, *logs], warn)
    conclude(finished, quiet or as_json)


@app.command()
def show(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders; several are compared.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print last and best round as JSON.")
    ] = False,
    split: Annotated[bool, typer.Option(help="Also show the clients × classes map.")] = False,
) -> None:
    """Show runs, finished or not; several side by side."""
    from cafedcl.config.sections import label
    from cafedcl.federation.run_folder import RunFolder
    from cafedcl.terminal.overview import (
        best_round,
        comparison_table,
        headline,
        last_scored,
        overview,
        split_map,
    )

    folders = [RunFolder.open(path) for path in runs]
    tables = [folder.tables() for folder in folders]
    names = [
        label(table["method"]["name"], table.get("augment", {}).get("name", "none"))
        for table in tables
    ]
    named = [(name, folder.metrics()) for name, folder in zip(names, folders, strict=True)]
    if as_json:
        for folder, (name, lines) in zip(folders, named, strict=True):
            path = headline(lines)
            summary = {"run": str(folder.path), "method": name, "rounds": len(lines), "score": path}
            print(
                json.dumps(
                    {**summary, "last": last_scored(lines, path), "best": best_round(lines, path)}
                )
            )
        return
    screen = console()
    if len(folders) > 1:
        screen.print(comparison_table(named, screen.width))
    else:
        rounds = int(tables[0]["federation"]["rounds"])
        screen.print(overview(*named[0], rounds, folders[0].environment()))
    if split:
        known, about = folders[0].data()
        screen.print(split_map(known["counts"], about["names"]))


@app.command()
def split(
    how: Annotated[
        str | None,
        typer.Argument(metavar="[SPLIT]", help="dirichlet:0.1, pathological:2,ir=10, iid, …"),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data set; several are drawn side by side.")
    ] = None,
    data_dir: DataDir = None,
    strict: Strict = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed.")] = None,
    settings: Settings = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it into this file (.png, .svg, .pdf).")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the indices, for `--split file:PATH`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show how a split deals the images, before any training."""
    import dataclasses

    from cafedcl.data.shards import save_shards
    from cafedcl.task.build import load, settle_split
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.overview import split_map, split_numbers
    from cafedcl.terminal.split_statistics import draw_splits, statistics

    sets: list[str | None] = [*data] if data else [None]
    if export and len(sets) > 1:
        raise CafedclError("--export: one data set at a time")
    screen = console()
    drawn = []
    for name in sets:
        flags: dict[str, Any] = {
            "clients": clients,
            "seed": seed,
            "data_dir": data_dir,
            "strict": strict,
        }
        config = gather(data=name, split=how, settings=settings or [], **flags)
        images = load(config)
        config, shards = settle_split(config, images)
        numbers = statistics(shards.counts)
        drawn.append((config.data.name, shards.counts, images.names))
        if as_json:
            print(
                json.dumps(
                    {
                        "data": config.data.name,
                        **dataclasses.asdict(numbers),
                        "counts": shards.counts.tolist(),
                    }
                )
            )
        else:
            screen.print(
                f"[bold]{config.data.name}[/], {config.split.kind}: training images per client and class\n"
            )
            screen.print(split_map(shards.counts, images.names))
            screen.print(split_numbers(numbers), "")
        if export:
            save_shards(shards, images.train_y, export)
    if figure:
        draw_splits(drawn, figure)
    for path in filter(None, (figure, export)):
        if not as_json:
            screen.print(f"written: {path}", soft_wrap=True)


@app.command()
def predict(
    path: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Image files.")],
    client: Annotated[
        int | None, typer.Option(help="Use this client's own model instead of the server's.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per image.")
    ] = False,
) -> None:
    """Classify images with a run's model: class, similarity, and how far the class can be trusted."""
    from cafedcl import api
    from cafedcl.data.images import read_images

    loaded = api.load(path, warn)
    found = loaded.predict(read_images(images, loaded.shape), client)
    trusts = [None] * len(images) if found.confidence is None else found.confidence.tolist()
    rows = list(zip(images, found.names, found.similarity.tolist(), trusts, strict=True))
    if as_json:
        for image, name, similarity, trust in rows:
            print(
                json.dumps(
                    {
                        "image": str(image),
                        "class": name,
                        "similarity": similarity,
                        "confidence": trust,
                    }
                )
            )
        return
    from rich.table import Table

    table = Table("image", "class", "similarity", "confidence", box=None, header_style="bold")
    for image, name, similarity, trust in rows:
        table.add_row(
            str(image), name, f"{similarity:.3f}", "–" if trust is None else f"{trust:.3f}"
        )
    console().print(table)


app.command()(methods)
app.command()(augmenters)
app.command()(models)
app.command()(datasets)
app.command(name="config")(show_config)
app.command()(compare)
app.command()(sweep)
app.command()(reproduce)
app.command()(table)
app.command()(report)
app.command()(watch)
app.command()(figures)
app.command()(bench)
app.command()(theory)
app.add_typer(deploy, name="deploy")


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for both runs; by default a new one under runs/.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 15,
) -> None:
    """Train FedAvg and CAFedCL on handwritten digits, 20 clients, Dirichlet 0.1, compare them and
    write a report.
    """
    from cafedcl.task.build import prepare
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.overview import comparison_table, split_map

    folder = out or new_folder("demo")
    screen = console()
    configs = [
        gather(method=name, rounds=rounds, split="dirichlet:0.1") for name in ("fedavg", "cafedcl")
    ]
    ready = prepare(configs[0])
    screen.print(
        "[bold]handwritten digits over 20 clients, Dirichlet 0.1: training images per client and class[/]\n"
    )
    screen.print(split_map(ready.counts, ready.task.clients.data.names))
    screen.print()
    from cafedcl import api

    finished = []
    for config in configs:
        path = folder / config.method.name
        with watching(False, False) as watchers, resumable(path):
            finished.append(api.start(config, path, watchers, ["cafedcl", "demo"]))
        screen.print()
    screen.print(
        comparison_table([(run.config.method.name, run.records) for run in finished], screen.width)
    )
    for run in finished:
        screen.print(f"written: {run.path}  (cafedcl show {run.path})", soft_wrap=True)
    report([folder], folder / "report.html")
