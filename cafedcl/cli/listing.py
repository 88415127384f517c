"""The commands that list what there is: methods, tail augmentations, models, data sets and options."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.options import DataDir
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from rich.console import Console


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's options.")] = None,
) -> None:
    """List the methods; with a name, everything about one."""
    import dataclasses

    from cafedcl.config.options import to_toml
    from cafedcl.methods import find_method, method_names

    screen = console()
    if name is None:
        for known in method_names():
            method, _ = find_method(known)
            screen.print(
                f"[bold]{known}[/]  [dim]{method.paper} ({method.year})[/]", soft_wrap=True
            )
            screen.print(
                f"    sends {method.travels}; predicts by {method.predicts}", soft_wrap=True
            )
            options = dataclasses.fields(method.Options)
            if options:
                words = [f"{field.name} = {to_toml(field.default)}" for field in options[:7]]
                more = [f"… {len(options) - 7} more"] if len(options) > 7 else []
                screen.print(f"    {', '.join(words + more)}", soft_wrap=True, markup=False)
            if method.presets:
                screen.print(
                    f"    presets: {', '.join(f'{known}:{title}' for title in method.presets)}",
                    soft_wrap=True,
                )
        print(
            "everything about one method: cafedcl methods NAME; your own: --method package.module:Class"
        )
        return
    method, preset = find_method(name)
    screen.print(
        f"[bold]{name}[/]  {method.paper} ({method.year})\n{method.__doc__}", soft_wrap=True
    )
    show_options(screen, method.Options, preset)
    for title, values in method.presets.items():
        screen.print(
            f"{method.name}:{title}  " + ", ".join(f"{k} = {to_toml(v)}" for k, v in values.items())
        )


def show_options(screen: "Console", options: type[Any], preset: Mapping[str, Any]) -> None:
    """Print options with their defaults, or what a preset makes of them, and their meanings, if
    there are any.
    """
    import dataclasses

    from rich.table import Table

    from cafedcl.config.options import meaning, to_toml

    table = Table("option", "default", "meaning", box=None, header_style="bold")
    for field in dataclasses.fields(options):
        table.add_row(field.name, to_toml(preset.get(field.name, field.default)), meaning(field))
    if table.row_count:
        screen.print(table)


def augmenters(
    name: Annotated[str | None, typer.Argument(help="Show one's options.")] = None,
) -> None:
    """List the tail augmentations; with a name, its options."""
    from rich.table import Table

    from cafedcl.augment import AUGMENTERS, find_augmenter

    screen = console()
    if name is not None:
        found = find_augmenter(name)
        screen.print(f"[bold]{name}[/]  {found.__doc__}", soft_wrap=True)
        show_options(screen, found.Options, {})
        return
    table = Table("augmentation", "what it does", box=None, header_style="bold")
    for known in AUGMENTERS:
        table.add_row(known, str(find_augmenter(known).__doc__).splitlines()[0])
    screen.print(table)
    print(
        "with any method: --augment NAME, or --method METHOD+NAME; your own: --augment package.module:Class"
    )


def models() -> None:
    """List the encoders."""
    from rich.table import Table

    from cafedcl.models import MODELS, build_encoder, feature_dim

    table = Table(
        "model", "features", "parameters (3×32×32)", "what it is", box=None, header_style="bold"
    )
    for name, factory in MODELS.items():
        encoder = build_encoder(name, (3, 32, 32), 1.0)
        parameters = sum(p.numel() for p in encoder.parameters())
        table.add_row(
            name,
            str(feature_dim(encoder, (3, 32, 32))),
            f"{parameters:,}",
            str(factory.__doc__).splitlines()[0],
        )
    console().print(table)
    print("your own: --set model.name=package.module:factory, called as factory(shape, width)")


def datasets(data_dir: DataDir = None) -> None:
    """List the data sets."""
    from cafedcl.data import dataset_names, describe

    for name in dataset_names(data_dir or ""):
        print(f"{name}  {describe(name)}")
    print(
        "your own: --data PATH (folder, .csv, .parquet, .npz, .npy), hf:NAME, or package.module:function"
    )


def show_config(
    method: Annotated[str, typer.Option(help="Whose options to print.")] = "cafedcl",
    augment: Annotated[
        str | None, typer.Option(help="With the options of this tail augmentation.")
    ] = None,
) -> None:
    """Print every option with its default and meaning, as TOML that can be fed back."""
    from cafedcl.task.resolve import gather

    print(
        f"# cafedcl run this-file.toml\n\n{gather(method=method, augment=augment).to_toml(explain=True)}",
        end="",
    )
