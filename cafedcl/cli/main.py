"""The command line: all commands together, and how mistakes are reported.

Nothing here imports PyTorch before a command needs it.
"""

import os
import sys
from typing import Annotated, NoReturn

import typer

from cafedcl.cli.command import Command
from cafedcl.cli.compare import compare, sweep, watch
from cafedcl.cli.deploy import app as deploy
from cafedcl.cli.listing import augmenters, config, datasets, methods, models, split
from cafedcl.cli.predict import export, predict
from cafedcl.cli.privacy import privacy
from cafedcl.cli.report import figures, report, show, table
from cafedcl.cli.reproduce import reproduce
from cafedcl.cli.run import demo, resume, run
from cafedcl.cli.speed import bench
from cafedcl.core.errors import CafedclError, in_words, own_frames
from cafedcl.core.imports import OWN_CODE
from cafedcl.core.printable import printable
from cafedcl.core.version import __version__
from cafedcl.terminal.streams import lasting_streams
from cafedcl.terminal.waiting import showing_steps

TRACEBACK = "CAFEDCL_TRACEBACK"
"""If this environment variable is set, errors in the user's own code have a traceback."""

app = typer.Typer(
    name="cafedcl",
    help="Federated learning for clients whose data are highly imbalanced.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> NoReturn:
    """Run the command line: a mistake is one line and exit code 2, never a traceback."""
    with lasting_streams():
        try:
            with showing_steps():
                app()
        except CafedclError as error:
            fail(str(error))
        except Exception as error:
            message = in_one_line(error)
            # Any other error is ours, and its traceback shows where.
            if os.environ.get(TRACEBACK) or not message:
                raise
            fail(message)
        sys.exit(0)


def in_one_line(error: Exception) -> str:
    """Return an error caused by a path or the user's own code in one line; empty for any other
    error.
    """
    in_own_code = bool(own_frames(error))
    if isinstance(error, OSError) and not in_own_code and isinstance(error.filename, str | bytes):
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if not (in_own_code or OWN_CODE):
        return ""
    where = "in code of your own"
    if not in_own_code:
        where = f"perhaps caused by {' or '.join(OWN_CODE)}"
    said = " ".join(in_words(error).split())
    return f"{said}, {where}; {TRACEBACK}=1 shows the whole traceback"


def fail(message: str) -> NoReturn:
    """Print an error in one line, and exit."""
    print(printable(f"error: {message}"), file=sys.stderr)
    sys.exit(2)


def show_version(wanted: bool) -> None:
    """Print the version."""
    if wanted:
        print(printable(f"cafedcl {__version__}"))
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Federated learning for clients whose data are highly imbalanced."""


# The order here is the order in `cafedcl --help`.
for function in (
    demo,
    run,
    resume,
    show,
    predict,
    export,
    split,
    privacy,
    methods,
    augmenters,
    models,
    datasets,
    config,
    compare,
    sweep,
    reproduce,
    table,
    report,
    watch,
    figures,
    bench,
):
    app.command(cls=Command)(function)
app.add_typer(deploy, name="deploy")
