"""Commands that read run folders: `cafedcl show`, `table`, `report` and `figures`.

Nothing here imports PyTorch before a command needs it.
"""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.options import RunPaths
from cafedcl.cli.session import warn
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.printable import printable
from cafedcl.core.steps import step
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from cafedcl.report.class_scores import ClassScores


def show(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders; several are compared.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the last and the best round as JSON.")
    ] = False,
    split: Annotated[bool, typer.Option(help="Also show the clients × classes map.")] = False,
) -> None:
    """Show a run, finished or not; several runs are shown side by side."""
    from cafedcl.federation.run_folder import RunFolder
    from cafedcl.report.run_summary import read_run
    from cafedcl.terminal.class_overview import compared_classes
    from cafedcl.terminal.overview import (
        best_round,
        comparison_table,
        headline,
        last_scored,
        overview,
    )
    from cafedcl.terminal.split_map import split_map

    summaries = [read_run(RunFolder.open(path).path) for path in runs]
    found = [run for run in summaries if run.state != "damaged"]
    for run in summaries:
        if run.state == "damaged" and found:
            warn(f"{run.problem}; it is left out")
        elif run.state == "damaged":
            raise CafedclError(run.problem)
    classes = [run.last_classes() for run in found]
    for run in found:
        for problem in run.class_problems:
            warn(problem)
    if as_json:
        for run, of_classes in zip(found, classes, strict=True):
            score = headline(run.lines)
            summary = {
                "run": str(run.path),
                "method": run.method,
                "rounds": len(run.lines),
                "score": score,
                "last": last_scored(run.lines, score),
                "best": best_round(run.lines, score),
                **class_values(of_classes, score.partition(".")[0]),
            }
            print(json.dumps(summary))
        return
    # Read before anything is printed, so that an error comes alone.
    data = RunFolder(found[0].path).data() if split else None
    screen = console()
    if len(found) > 1:
        methods = [run.method for run in found]
        names = [
            run.method if methods.count(run.method) == 1 else f"{run.method}, {run.path.name}"
            for run in found
        ]
        rows = [(name, run.lines) for name, run in zip(names, found, strict=True)]
        screen.print(comparison_table(rows, screen.width, classes))
        served = any(each is not None and "server" in each.recall for each in classes)
        models = "server" if served else "own"
        for part in compared_classes(names, classes, models, screen.width):
            screen.print(part)
    else:
        (run,) = found
        about = RunFolder(run.path).described(warn)
        screen.print(
            overview(
                run.method,
                run.lines,
                run.rounds,
                about,
                run.trust,
                run.client_names,
                classes[0],
            )
        )
    if data is not None:
        arrays, described = data
        names = described.get("clients", ())
        screen.print(split_map(arrays["counts"], described["names"], names))


def class_values(classes: "ClassScores | None", part: str) -> dict[str, Any]:
    """Return the recall per class, the imbalance of the test labels and the warning of a run."""
    if classes is None or part not in classes.recall:
        return {"recall": None, "imbalance": None, "warning": None}
    values = [None if math.isnan(value) else float(value) for value in classes.recall[part]]
    return {
        "recall": dict(zip(classes.names, values, strict=True)),
        "imbalance": classes.imbalance,
        "warning": classes.one_class.get(part),
    }


def table(
    runs: RunPaths,
    form: Annotated[str, typer.Option("--format", help="rich, markdown, latex or csv.")] = "rich",
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Which models are scored: server, own (each client's own model) or own-prior "
            "(the same, with log π of the client's labels added for every method); by default "
            "server, if every method has a server model."
        ),
    ] = None,
    which: Annotated[
        str, typer.Option("--round", help="Which scored round to print: last or best.")
    ] = "last",
    paper: Annotated[
        bool, typer.Option("--paper", help="Print the paper's own numbers next to ours.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Also print macro-F1, AUROC, AUPRC, sensitivity and calibration error, which the "
            "last round has. CSV has them always.",
        ),
    ] = False,
) -> None:
    """Print a table of methods × settings, as in a paper, and the recall per class below it.

    Cells are mean ± std over seeds; the best is bold, the second best underlined. Where test labels
    are skewed, methods are ranked by balanced accuracy.
    """
    from cafedcl.report import printed
    from cafedcl.report.runs import read_runs
    from cafedcl.report.table import score_table

    check_choice("--format", form, ("rich", "markdown", "latex", "csv"))
    check_choice("--protocol", protocol, ("server", "own", "own-prior"))
    check_choice("--round", which, ("last", "best"))
    summary = read_runs(runs)
    summary.require_scores()
    made = score_table(summary, protocol, which)
    made.require_scores()
    for problem in made.problems:
        warn(problem)
    if form == "rich":
        from cafedcl.report.printed_rich import as_rich

        screen = console()
        screen.print(as_rich(made, paper, screen.width, full))
        return
    if form == "csv":
        text = printed.as_csv(made, paper)
        # Not among the rows: a program reads them.
        for note in made.notes:
            print(printable(note), file=sys.stderr)
    else:
        write = printed.as_markdown if form == "markdown" else printed.as_latex
        text = write(made, paper, full)
    print(printable(text), end="")


def report(
    runs: RunPaths,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write one HTML file that shows and compares runs; it works offline."""
    from cafedcl.report.page import write_report
    from cafedcl.report.runs import read_runs

    summary = read_runs(runs)
    with step(f"writing the report of {len(summary.runs)} runs"):
        write_report(summary, out, warn)
    screen = console()
    for run in summary.set_aside:
        screen.print(f"{run.state}: {run.path}: {run.problem}", style="yellow", soft_wrap=True)
    number = len(summary.runs)
    runs_read = f"{number} run{'' if number == 1 else 's'}"
    size = out.stat().st_size / 1e6
    screen.print(f"written: {out}  ({size:.1f} MB, {runs_read})", soft_wrap=True)


def figures(
    runs: RunPaths,
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("figures"),
    form: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Draw every figure of the report into a file of its own, for a paper."""
    from cafedcl.report.figures import FORMATS, write_figures
    from cafedcl.report.runs import read_runs

    check_choice("--format", form, FORMATS)
    summary = read_runs(runs)
    with step(f"drawing the figures of {len(summary.runs)} runs"):
        written = write_figures(summary, out, form, warn)
    screen = console()
    for path in written:
        screen.print(f"written: {path}", soft_wrap=True)


def check_choice(option: str, value: str | None, known: tuple[str, ...]) -> None:
    """Raise an error for a value that is not among the known ones."""
    if value is not None and value not in known:
        raise CafedclError(
            f"{option} {value}: there is no such choice; {nearest(value, list(known))}"
        )
