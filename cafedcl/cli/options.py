"""Options that several commands share."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Any option of the config; repeatable."
    ),
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", help="Folder with data files; else CAFEDCL_DATA or the cache."),
]
