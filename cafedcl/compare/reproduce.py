"""`cafedcl reproduce`: a table or figure of the paper, run or gone on with, and set beside the paper's figures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.compare.commands import Devices, Jobs, Json, Ray
from cafedcl.errors import CafedclError, nearest
from cafedcl.listing import DataDir, Quiet, Settings, console

if TYPE_CHECKING:
    from cafedcl.compare.jobs import Job

FILE, TABLE = "reproduce.toml", "table.md"


def reproduce(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A study's name, or its file; without one, all are listed.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, short or paper; see experiments/scales.toml.")] = "short",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds; by default the scale's.", min=1)] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SETTING", help="These settings only, separated by commas; repeatable.")
    ] = None,
    methods: Annotated[list[str] | None, typer.Option(help="These methods only, separated by commas.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; by default runs/STUDY-SCALE.")] = None,
    data_dir: DataDir = None,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: Ray = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a table or figure of the paper and set it beside the paper's figures.

    The same command again goes on where it stopped. What is already there is kept, and counts whatever part of the
    study is asked for next.
    """
    from cafedcl.compare.jobs import run_all
    from cafedcl.compare.plan import planned, words_of
    from cafedcl.compare.run import Means, end, fetch_data, scheduled
    from cafedcl.compare.study import folder_of, read_scales, read_study
    from cafedcl.config import assign

    folder = folder_of()
    scales = read_scales(folder)
    if study is None:
        listing(folder)
        return
    if scale not in scales:
        raise CafedclError(f"--scale {scale}: there is no such scale; {nearest(scale, list(scales))}")
    place, size = out or Path("runs") / f"{Path(study).stem}-{scale}", scales[scale]
    chosen = read_study(study, folder).only(words_of(only or ()), words_of(methods or ())).at(size)
    overrides = [*([f"data.dir={data_dir}"] if data_dir else []), *(settings or ())]
    wanted = {"study": Path(study).stem, "scale": scale, "settings": list(settings or ())}
    means = Means(jobs, devices or (), ray, quiet, as_json)
    with planned(place, wanted, FILE, "reproduce"):
        todo, left_out = [], []
        for setting in chosen.settings:
            asked = list(chosen.jobs(place, setting, seeds or size.seeds, overrides))
            tables: dict[str, dict[str, Any]] = {"data": {"name": setting.data}}
            for override in overrides:
                if override.startswith("data."):
                    assign(tables, override)
            try:
                fetch_data([tables])
            except CafedclError as error:
                left_out.append(f"{setting.name}: {error}")
                continue
            todo += asked
        if todo:
            rounds = sum(job.rounds for job in todo)
            with scheduled(place, "reproduce", (len(todo), rounds), {}, means) as pool:
                outcomes = run_all(sorted(todo, key=seed_of), pool)
            write_table(place, chosen.title, f"{scale}: {size.about}", means.silent)
        for line in left_out:
            print(f"left out: {line}", file=sys.stderr)
    if todo:
        end(outcomes, "try them again with the same command")
    if left_out:
        raise typer.Exit(1)


def seed_of(job: "Job") -> int:
    """Return a run's seed: one seed of everything comes before the next."""
    return int(job.place.rpartition("/s")[2])


def listing(folder: Path) -> None:
    """List the studies and the scales."""
    from cafedcl.compare.study import read_scales, read_study, study_names

    screen = console()
    for name in study_names(folder):
        study = read_study(name, folder)
        screen.print(f"[bold]{name}[/]  {study.title}", soft_wrap=True)
        screen.print(f"    {', '.join(one.name for one in study.settings)}", style="dim", soft_wrap=True)
    for name, scale in read_scales(folder).items():
        screen.print(f"--scale {name}  {scale.about}", soft_wrap=True)


def write_table(out: Path, title: str, scale: str, silent: bool) -> None:
    """Write the table of all runs that are there beside the paper's figures, and print it."""
    from cafedcl.report.printed import as_markdown, as_rich
    from cafedcl.report.runs import read_runs
    from cafedcl.report.table import board
    from cafedcl.store import explained, write_atomically

    summary = read_runs([out])
    if not summary.groups:
        return
    text = f"# {title}\n\nScale {scale}.\n"
    for protocol, words in (("server", "The server's model"), ("own", "The clients' own models")):
        text += f"\n## {words}\n\n{as_markdown(board(summary, protocol), True)}"
    with explained(out):
        write_atomically(out / TABLE, text.encode())
    if not silent:
        screen = console()
        screen.print(as_rich(board(summary), True, screen.width))
        screen.print(f"written: {out / TABLE}", soft_wrap=True)
