"""Commands that list available methods, augmentations, models, data sets, splits and options."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.options import COMPOSITE_HELP, Settings, with_flags
from cafedcl.cli.session import load_torch
from cafedcl.config.flags import Flags
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import refuse_other_file
from cafedcl.core.printable import printable
from cafedcl.terminal.console import console, headed

if TYPE_CHECKING:
    from rich.console import Console

    from cafedcl.methods.base import Method

Advanced = Annotated[
    bool, typer.Option("--advanced", help="Also show options that few people need.")
]
LISTED_OPTIONS = 7
"""The most options per method in the list of all methods."""


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the details of one method.")] = None,
    advanced: Advanced = False,
) -> None:
    """List the methods; with a name, show the options and presets of one."""
    from cafedcl.config.options import to_toml
    from cafedcl.methods import find_method, method_names
    from cafedcl.report.runs import base_method

    screen = console()
    if name is None:
        for known in method_names():
            method, _ = find_method(known)
            list_method(screen, known, method)
        print("details of one method: cafedcl methods NAME")
        print("a method of your own: --method package.module:Class")
        return
    method, preset = find_method(name)
    screen.print(headed(name, source_of(method)), soft_wrap=True)
    screen.print(inspect.cleandoc(method.__doc__ or ""), soft_wrap=True)
    show_options(screen, method.Options, preset, advanced=advanced)
    for title, values in method.presets.items():
        words = ", ".join(f"{key} = {to_toml(value)}" for key, value in values.items())
        screen.print(f"{base_method(name)}:{title}  {words}")


def source_of(method: "type[Method]") -> str:
    """Return the paper of a method with its year, or a description if it has none."""
    if "paper" not in vars(method):
        # An inherited paper is about the method that the class was derived from.
        return f"derived from {method.__bases__[0].__name__}"
    return f"{method.paper} ({method.year})" if method.year else method.paper


def list_method(screen: "Console", name: str, method: "type[Method]") -> None:
    """Print a method in a few lines: its paper, its messages, its first options and its presets."""
    import dataclasses

    from cafedcl.config.options import to_toml

    screen.print(headed(name, source_of(method), "dim"), soft_wrap=True)
    screen.print(f"    sends {method.sends}; predicts by {method.predicts}", soft_wrap=True)
    options = dataclasses.fields(method.Options)
    words = [f"{field.name} = {to_toml(field.default)}" for field in options[:LISTED_OPTIONS]]
    if len(options) > LISTED_OPTIONS:
        words.append(f"… {len(options) - LISTED_OPTIONS} more")
    if words:
        screen.print(f"    {', '.join(words)}", soft_wrap=True)
    if method.presets:
        presets = ", ".join(f"{name}:{title}" for title in method.presets)
        screen.print(f"    presets: {presets}", soft_wrap=True)


def show_options(
    screen: "Console", options: type[Any], preset: Mapping[str, Any], *, advanced: bool
) -> None:
    """Print options with their meanings and their defaults, or the values of a preset."""
    import dataclasses

    from rich.table import Table

    from cafedcl.config.options import is_hidden, meaning, to_toml

    table = Table("option", "default", "meaning", box=None, header_style="bold")
    hidden = 0
    for field in dataclasses.fields(options):
        value = preset.get(field.name, field.default)
        if not advanced and is_hidden(field, value):
            hidden += 1
        else:
            table.add_row(field.name, to_toml(value), meaning(field))
    if table.row_count:
        screen.print(table)
    if hidden:
        screen.print(f"{hidden} advanced options are not shown; add --advanced to see them")


def first_paragraph(documented: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    text = inspect.getdoc(documented) or ""
    return " ".join(text.partition("\n\n")[0].split())


def augmenters(
    name: Annotated[
        str | None, typer.Argument(help="Show the options of one augmentation.")
    ] = None,
) -> None:
    """List the tail augmentations; with a name, show the options of one."""
    from rich.table import Table

    from cafedcl.augment import AUGMENTERS, find_augmenter

    screen = console()
    if name is not None:
        found = find_augmenter(name)
        screen.print(headed(name, inspect.getdoc(found) or ""), soft_wrap=True)
        show_options(screen, found.Options, {}, advanced=True)
        return
    table = Table("augmentation", "what it does", box=None, header_style="bold")
    for known in AUGMENTERS:
        table.add_row(known, first_paragraph(find_augmenter(known)))
    screen.print(table)
    print("with any method: --augment NAME, or --method METHOD+NAME")
    print("an augmentation of your own: --augment package.module:Class")


def models() -> None:
    """List the encoders."""
    from rich.table import Table

    from cafedcl.models import MODELS, build_encoder, feature_dim

    table = Table(
        "model", "features", "parameters (3×32×32)", "description", box=None, header_style="bold"
    )
    for name, factory in MODELS.items():
        encoder = build_encoder(name, (3, 32, 32), 1.0)
        parameters = sum(p.numel() for p in encoder.parameters())
        table.add_row(
            name,
            str(feature_dim(encoder, (3, 32, 32))),
            f"{parameters:,}",
            first_paragraph(factory),
        )
    console().print(table)
    print("pretrained: --model timm:NAME, torchvision:NAME or hf:NAME_OR_PATH")
    print("a model of your own: --model package.module:factory,")
    print("which is called as factory(shape, width)")


@with_flags("data_dir")
def datasets(*, flags: Flags) -> None:
    """List the data sets."""
    from cafedcl.data import dataset_names, describe_dataset

    for name in dataset_names(flags.get("data_dir") or ""):
        print(printable(f"{name}  {describe_dataset(name)}"))
    print("the last two numbers are training and test images")
    print("data of your own: --data PATH (folder, .csv, .parquet, .npz, .npy),")
    print("hf:NAME, or package.module:function")


@with_flags("method", "augment")
def config(*, flags: Flags, advanced: Advanced = False) -> None:
    """Print the options with their defaults and meanings, as a config file for `cafedcl run`.

    Options that few people need are left out; --advanced prints them too.
    """
    from cafedcl.task.resolve import gather

    text = gather(**flags).to_toml(explain=True, advanced=advanced)
    print(printable(f"# cafedcl run this-file.toml\n\n{text}"), end="")


@with_flags("data_dir", "group", "strict", "clients", "seed")
def split(
    how: Annotated[
        str | None, typer.Argument(metavar="[SPLIT]", help=COMPOSITE_HELP["split"])
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data set; repeatable, to show several side by side."),
    ] = None,
    *,
    flags: Flags,
    settings: Settings = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the split into this file (.png, .svg, .pdf).")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the image indices, for `--split file:PATH`: a table if the name ends with "
            ".csv."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON.")] = False,
) -> None:
    """Show how a split assigns the training images to clients, without any training."""
    import dataclasses

    load_torch()
    from cafedcl.data.shards import OWN_FILE, save_shards
    from cafedcl.data.split_tables import OWN_TABLE, is_table, save_table
    from cafedcl.federation.run_folder import refuse_file_of_run
    from cafedcl.task.build import load_data, settle_split
    from cafedcl.task.resolve import gather
    from cafedcl.terminal.split_map import split_map, split_numbers
    from cafedcl.terminal.split_statistics import DrawnSplit, draw_splits, statistics

    sets: list[str | None] = [*data] if data else [None]
    if export and len(sets) > 1:
        raise CafedclError("--export: one data set at a time")
    if export:
        refuse_file_of_run(export, "--export")
        own = OWN_TABLE if is_table(export) else OWN_FILE
        refuse_other_file(export, own, "saved split", "--export")
    screen = console()
    drawn = []
    for name in sets:
        chosen: Flags = {**flags, "data": name, "split": how}
        config = gather(settings=settings or [], **chosen)
        images = load_data(config)
        config, shards = settle_split(config, images)
        found = statistics(shards.counts)
        drawn.append(DrawnSplit(config.data.name, shards.counts, images.names, shards.names))
        if as_json:
            row = {"data": config.data.name, **dataclasses.asdict(found)}
            row |= {"client_names": shards.names, "group": images.group_kind}
            row["counts"] = shards.counts.tolist()
            print(json.dumps(row))
        else:
            title = f"{config.split.kind}: training images per client and class\n"
            screen.print(headed(config.data.name, title), soft_wrap=True)
            screen.print(split_map(shards.counts, images.names, shards.names))
            screen.print(split_numbers(found), "")
            if images.group_kind:
                number = len(images.groups.unique())
                screen.print(
                    f"{number} values of '{images.group_kind}': the images of each stay together\n",
                    soft_wrap=True,
                )
        if export:
            save = save_table if is_table(export) else save_shards
            save(shards, images.train_y, export)
    if figure:
        draw_splits(drawn, figure)
    for path in filter(None, (figure, export)):
        if not as_json:
            screen.print(f"written: {path}", soft_wrap=True)
