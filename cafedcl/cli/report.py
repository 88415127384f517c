"""`cafedcl table`, `cafedcl report` and `cafedcl figures`. Nothing here imports PyTorch before a
command needs it.
"""

from pathlib import Path
from typing import Annotated

import typer

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.terminal.console import console

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUNS…", help="Run folders, or folders that contain run folders."),
]


def table(
    runs: Runs,
    form: Annotated[str, typer.Option("--format", help="rich, markdown, latex or csv.")] = "rich",
    protocol: Annotated[
        str | None,
        typer.Option(
            help="server or own; by default server, if every method has a server's model."
        ),
    ] = None,
    which: Annotated[
        str, typer.Option("--round", help="last or best: the scored round that counts.")
    ] = "last",
    paper: Annotated[
        bool, typer.Option("--paper", help="Put the paper's own figures beside ours.")
    ] = False,
) -> None:
    """Print the table of a paper: methods × settings, mean ± std over seeds, best bold, second
    underlined.
    """
    from cafedcl.report import printed
    from cafedcl.report.runs import read_runs
    from cafedcl.report.table import board

    one_of("--format", form, ("rich", "markdown", "latex", "csv"))
    one_of("--protocol", protocol, ("server", "own"))
    one_of("--round", which, ("last", "best"))
    made = board(read_runs(runs), protocol, which)
    if form == "rich":
        screen = console()
        screen.print(printed.as_rich(made, paper, screen.width))
        return
    writers = {"markdown": printed.as_markdown, "latex": printed.as_latex, "csv": printed.as_csv}
    print(writers[form](made, paper), end="")


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write one HTML file that shows runs and compares them; it opens offline."""
    from cafedcl.report.page import write_report
    from cafedcl.report.runs import read_runs

    summary = read_runs(runs)
    write_report(summary, out)
    screen = console()
    for run in summary.set_aside:
        screen.print(
            f"{run.state}: {run.path}: {run.problem}", style="yellow", soft_wrap=True, markup=False
        )
    screen.print(
        f"written: {out}  ({out.stat().st_size / 1e6:.1f} MB, {len(summary.runs)} runs)",
        soft_wrap=True,
    )


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("figures"),
    form: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Draw every figure of the report for a paper."""
    from cafedcl.report.figures import FORMATS, write_figures
    from cafedcl.report.runs import read_runs

    one_of("--format", form, FORMATS)
    written = write_figures(read_runs(runs), out, form)
    screen = console()
    for path in written:
        screen.print(f"written: {path}", soft_wrap=True)


def one_of(option: str, value: str | None, known: tuple[str, ...]) -> None:
    """Refuse a choice that there is not."""
    if value is not None and value not in known:
        raise CafedclError(
            f"{option} {value}: there is no such choice; {nearest(value, list(known))}"
        )
