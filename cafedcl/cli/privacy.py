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
        Path | None, typer.Argument(help="A config file, such as a deployment's run.toml.")
    ] = None,
    *,
    flags: Flags,
    settings: Settings = None,
    classes: Annotated[int, typer.Option(help="Number of classes.", min=2, max=10_000)] = 10,
    shape: Annotated[
        str, typer.Option(help="Channels, height and width of an image, such as 3,64,64.")
    ] = "1,28,28",
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List every tensor and number that would leave a site in a deployment of a config."""
    sizes = shape.split(",")
    if len(sizes) != 3 or not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise CafedclError(f"--shape {shape}: three numbers are expected, such as 3,64,64")
    channels, height, width = (int(size) for size in sizes)
    load_torch()
    from cafedcl.deploy.disclosure import as_table, disclosed, limits
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.disclosed_table import disclosed_table

    chosen = gather(config, settings=settings or [], **flags)
    found = disclosed(chosen, (channels, height, width), classes)
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in found]))
        return
    screen = console()
    screen.print(f"{chosen.label}, {classes} classes, images of {channels}×{height}×{width}")
    screen.print(disclosed_table(as_table(found)))
    for line in limits(chosen):
        screen.print(line, soft_wrap=True)
