"""`cafedcl bench`: this machine's speed as a table."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.options import Settings
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from rich.table import Table

    from cafedcl.speed.measure import Measurement


def bench(
    tasks: Annotated[
        str,
        typer.Option(help="Which tasks, separated by commas; `all`, or `auto` for this device."),
    ] = "auto",
    methods: Annotated[
        str, typer.Option(help="Which methods, separated by commas; `all` for all of them.")
    ] = "fedavg,cafedcl",
    engine: Annotated[str, typer.Option(help="auto, reference, cpu, cuda.")] = "auto",
    against: Annotated[
        str | None, typer.Option(help="Another engine to measure beside it, such as reference.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    rounds: Annotated[
        int, typer.Option(help="Rounds that are timed; their median counts.", min=1)
    ] = 3,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the numbers, with versions and command, as JSON."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")
    ] = False,
) -> None:
    """Measure this machine: what a client's step costs, and what a round adds to it."""
    from cafedcl.config.sections import assign
    from cafedcl.core.environment import environment
    from cafedcl.methods import find_method, method_names
    from cafedcl.speed.measure import WORKLOADS, find_workload, matrix_ceiling, measure, tiny_setup

    tables: dict[str, Any] = {"engine": {"name": engine, "device": device}}
    for setting in settings or []:
        assign(tables, setting)
    asked = tiny_setup(tables)
    here = asked.task.device
    small = [name for name, workload in WORKLOADS.items() if workload.model != "resnet18"]
    names = {"all": list(WORKLOADS), "auto": list(WORKLOADS) if here.type == "cuda" else small}.get(
        tasks, tasks.split(",")
    )
    chosen = method_names() if methods == "all" else methods.split(",")
    for name in names:
        find_workload(name)
    for name in chosen:
        find_method(name)
    engines = [(tables, asked.config.engine.precision)]
    if against:
        other = {**tables, "engine": {**tables["engine"], "name": against, "precision": "auto"}}
        engines.append((other, tiny_setup(other).config.engine.precision))
    screen = console()
    about = environment(["cafedcl", *sys.argv[1:]], str(here))
    found: list[Measurement] = []
    ceilings: dict[str, float] = {}
    for name in names:
        for method in chosen:
            for each, precision in engines:
                if precision not in ceilings:
                    ceilings[precision] = matrix_ceiling(here, precision)
                if not as_json:
                    screen.print(f"measuring {name}, {method} …", style="dim")
                found.append(measure(name, method, each, rounds, ceilings[precision]))
                result = {
                    "ceiling_tflops": {kind: rate / 1e12 for kind, rate in ceilings.items()},
                    "measurements": [asdict(measurement) for measurement in found],
                    "environment": about,
                }
                if out:
                    save(out, result)
    if as_json:
        print(json.dumps(result))
        return
    screen.print(measurement_table(found, bool(against)))
    screen.print(f"\n{legend(found)}", style="dim", highlight=False, soft_wrap=True)
    screen.print(
        "ceiling: " + ", ".join(f"{v / 1e12:.2f} TFLOP/s in {n}" for n, v in ceilings.items()),
        style="dim",
    )
    if out:
        screen.print(f"written: {out}", soft_wrap=True)


def save(path: Path, result: dict[str, Any]) -> None:
    """Write what has been measured so far."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CafedclError(f"{path}: cannot be written: {error.strerror}") from None


LEGEND = """\
step: ms of a client's optimizer step; img/s: images trained per second
round, +own: ms of a whole round, and what scoring all clients' own models adds
ratio: a round over its training alone; peak: of a large matrix product's rate"""
"""What the columns are, in lines of at most 80 characters."""


def measurement_table(found: "list[Measurement]", compared: bool) -> "Table":
    """Return measurements as a table of at most 80 columns.

    In a comparison, how much faster it is than the other engine's row of the same task and method
    stands instead of the memory in MiB and of the seconds to the end of the first round.
    """
    from rich.table import Table

    shown = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("task", "method", "engine"):
        shown.add_column(head, no_wrap=True)
    for head in (
        "step",
        "img/s",
        "round",
        "+own",
        "ratio",
        "peak",
        *(["faster"] if compared else ["MiB", "start"]),
    ):
        shown.add_column(head, justify="right", no_wrap=True)
    slowest = {
        (m.task, m.method): max(
            o.step_ms for o in found if (o.task, o.method) == (m.task, m.method)
        )
        for m in found
    }
    for m in found:
        last = [f"{m.memory_mib:.0f}", f"{m.start_s:.1f}"]
        shown.add_row(
            m.task,
            m.method,
            m.engine,
            f"{m.step_ms:.{3 if m.step_ms < 100 else 0}f}",
            f"{m.samples_per_s:.0f}" if m.samples_per_s < 1e5 else f"{m.samples_per_s / 1000:.0f}k",
            f"{1000 * m.round_s:.0f}",
            f"{1000 * m.own_s:.0f}",
            f"{m.overhead:.2f}",
            f"{100 * m.ceiling:.0f}%",
            *([f"{slowest[m.task, m.method] / m.step_ms:.1f}×"] if compared else last),
        )
    return shown


def legend(found: "list[Measurement]") -> str:
    """Return what the names of the tasks stand for, and the heads of the columns."""
    from cafedcl.speed.measure import WORKLOADS

    names = list(dict.fromkeys(m.task for m in found))
    width = max(map(len, names))
    return "\n".join([*(f"{name:<{width}}  {WORKLOADS[name].title}" for name in names), "", LEGEND])
