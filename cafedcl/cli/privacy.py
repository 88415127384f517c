"""The command that lists what leaves a site."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from cafedcl.cli.options import Settings, with_flags
from cafedcl.cli.session import load_torch
from cafedcl.config.flags import Flags
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console


@with_flags("method", "privacy")
def privacy(
    config: Annotated[
        Path | None,
        typer.Argument(help="A config file, such as a deployment's run.toml, or that of a run."),
    ] = None,
    *,
    flags: Flags,
    settings: Settings = None,
    classes: Annotated[
        int | None,
        typer.Option(
            help="Number of classes; by default that of the run, or 10.", min=2, max=10_000
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Channels, height and width of an image, such as 3,64,64; by default those of "
            "the run, or 1,28,28."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List every tensor and number that would leave a site in a deployment of a config."""
    asked = None if shape is None else image_shape(shape)
    load_torch()
    from cafedcl.deploy.disclosure import as_table, disclosed, limits
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.disclosed_table import disclosed_table

    chosen = gather(config, settings=settings or [], **flags)
    if classes is None or asked is None:
        found_classes, found_shape = data_sizes(config)
        classes = classes or found_classes
        asked = asked or found_shape
    channels, height, width = asked
    found = disclosed(chosen, asked, classes)
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in found]))
        return
    screen = console()
    screen.print(f"{chosen.label}, {classes} classes, images of {channels}×{height}×{width}")
    screen.print(disclosed_table(as_table(found)))
    for line in limits(chosen):
        screen.print(line, soft_wrap=True)


def image_shape(text: str) -> tuple[int, int, int]:
    """Return the numbers of ``--shape``; raises CafedclError for anything else."""
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise CafedclError(f"--shape {text}: three numbers are expected, such as 3,64,64")
    channels, height, width = (int(size) for size in sizes)
    return channels, height, width


def data_sizes(config: Path | None) -> tuple[int, tuple[int, int, int]]:
    """Return the number of classes and the image shape of the run that a config file belongs to.

    The config of a deployment has neither: only sites have the images.
    """
    from cafedcl.federation.run_folder import CONFIG, DATA, RunFolder

    if config is None or config.name != CONFIG or not (config.parent / DATA).is_file():
        return 10, (1, 28, 28)
    _, about = RunFolder(config.parent).data()
    channels, height, width = about["shape"]
    return len(about["names"]), (channels, height, width)
