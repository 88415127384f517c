"""`cafedcl bench`: this machine's speed as a table."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.errors import CafedclError
from cafedcl.listing import Settings, console

if TYPE_CHECKING:
    from rich.table import Table

    from cafedcl.bench import Measurement


def bench(
    tasks: Annotated[
        str, typer.Option(help="Which tasks, separated by commas; `all`, or `auto` for this device.")
    ] = "auto",
    methods: Annotated[
        str, typer.Option(help="Which methods, separated by commas; `all` for all of them.")
    ] = "fedavg,cafedcl",
    engine: Annotated[str, typer.Option(help="auto, eager, graphs.")] = "auto",
    against: Annotated[str | None, typer.Option(help="Another engine to measure beside it, such as eager.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    rounds: Annotated[int, typer.Option(help="Rounds that are timed; their median counts.", min=1)] = 3,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the numbers, with versions and command, as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")] = False,
) -> None:
    """Measure this machine: what a client's step costs, and what a round adds to it."""
    from cafedcl.bench import TASKS, find_task, matrix_ceiling, measure, settled
    from cafedcl.config import assign
    from cafedcl.environment import environment
    from cafedcl.methods import find_method, method_names

    tables: dict[str, Any] = {"engine": {"name": engine, "device": device}}
    for setting in settings or []:
        assign(tables, setting)
    asked = settled(tables)
    here = asked.bench.device
    small = [name for name, task in TASKS.items() if task.model != "resnet18"]
    names = {"all": list(TASKS), "auto": list(TASKS) if here.type == "cuda" else small}.get(tasks, tasks.split(","))
    chosen = method_names() if methods == "all" else methods.split(",")
    for name in names:
        find_task(name)
    for name in chosen:
        find_method(name)
    engines = [(tables, asked.config.engine.precision)]
    if against:
        other = {**tables, "engine": {**tables["engine"], "name": against, "precision": "auto"}}
        engines.append((other, settled(other).config.engine.precision))
    screen, about = console(), environment(["cafedcl", *sys.argv[1:]], str(here))
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
    screen.print(table(found, bool(against)))
    screen.print("ceiling: " + ", ".join(f"{v / 1e12:.2f} TFLOP/s in {n}" for n, v in ceilings.items()), style="dim")
    if out:
        screen.print(f"written: {out}", soft_wrap=True)


def save(path: Path, result: dict[str, Any]) -> None:
    """Write what has been measured so far."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CafedclError(f"{path}: cannot be written: {error.strerror}") from None


def table(found: "list[Measurement]", compared: bool) -> "Table":
    """Return measurements as a table; a ratio is against the other engine's row of the same task and method."""
    from rich.table import Table

    from cafedcl.bench import TASKS

    heads = (
        "task",
        "method",
        "engine",
        "ms per step",
        "images/s",
        "round",
        "own models",
        "round/training",
        "of ceiling",
    )
    shown = Table(*heads, "MiB", "start", box=None, header_style="bold")
    if compared:
        shown.add_column("faster")
    slowest = {
        (m.task, m.method): max(o.step_ms for o in found if (o.task, o.method) == (m.task, m.method)) for m in found
    }
    for m in found:
        cells = [TASKS[m.task].title, m.method, m.engine, f"{m.step_ms:.4f}", f"{m.samples_per_s:,.0f}"]
        cells += [
            f"{1000 * m.round_s:.0f} ms",
            f"+{1000 * m.own_s:.0f} ms",
            f"{m.overhead:.2f}",
            f"{100 * m.ceiling:.1f} %",
        ]
        cells += [f"{m.memory_mib:.0f}", f"{m.start_s:.1f} s"]
        shown.add_row(*cells, *([f"{slowest[m.task, m.method] / m.step_ms:.1f}×"] if compared else []))
    return shown
