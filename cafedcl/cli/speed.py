"""`cafedcl bench`: benchmark this machine and print a table."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.options import Settings, with_flags
from cafedcl.config.flags import Flags
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from rich.table import Table

    from cafedcl.speed.measure import Measurement


@with_flags("engine", "device")
def bench(
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks, separated by commas; all, or auto for those that suit the device."
        ),
    ] = "auto",
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas, or all.")
    ] = "fedavg,cafedcl",
    *,
    flags: Flags,
    against: Annotated[
        str | None, typer.Option(help="Another engine to compare with, such as reference.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Number of timed rounds; their median is reported.", min=1)
    ] = 3,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write the numbers, the versions and the command to this JSON file."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")
    ] = False,
) -> None:
    """Benchmark this machine: time per step, overhead per round, share of peak throughput."""
    from cafedcl.config.flags import set_flags
    from cafedcl.config.sections import assign
    from cafedcl.core.environment import environment
    from cafedcl.methods import find_method, method_names
    from cafedcl.speed.measure import WORKLOADS, find_workload, matrix_ceiling, measure, tiny_setup

    tables: dict[str, Any] = {"engine": {}}
    set_flags(tables, flags)
    for setting in settings or []:
        assign(tables, setting)
    asked = tiny_setup(tables)
    here = asked.task.device
    small = [name for name, workload in WORKLOADS.items() if workload.model != "resnet18"]
    if tasks == "all" or (tasks == "auto" and here.type == "cuda"):
        names = list(WORKLOADS)
    elif tasks == "auto":
        names = small
    else:
        names = tasks.split(",")
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
    """Write the measurements made so far."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CafedclError(f"{path}: cannot be written: {error.strerror}") from None


LEGEND = """\
step: ms per optimizer step of a client; img/s: images trained per second
round: ms per round; +own: extra ms to score all clients' own models
ratio: time of a round / time of its training; peak: share of peak throughput,
measured by a large matrix product"""
"""The meaning of the columns, in lines of at most 80 characters."""


def measurement_table(found: "list[Measurement]", compared: bool) -> "Table":
    """Return measurements as a table at most 80 characters wide.

    A comparison of two engines shows the speed-up over the slower one, instead of the memory in MiB
    and the seconds until the end of the first round.
    """
    from rich.table import Table

    shown = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("task", "method", "engine"):
        shown.add_column(head, no_wrap=True)
    last_heads = ["faster"] if compared else ["MiB", "start"]
    for head in ("step", "img/s", "round", "+own", "ratio", "peak", *last_heads):
        shown.add_column(head, justify="right", no_wrap=True)
    slowest: dict[tuple[str, str], float] = {}
    for each in found:
        key = (each.task, each.method)
        slowest[key] = max(each.step_ms, slowest.get(key, 0.0))
    for each in found:
        if compared:
            last = [f"{slowest[each.task, each.method] / each.step_ms:.1f}×"]
        else:
            last = [f"{each.memory_mib:.0f}", f"{each.start_s:.1f}"]
        rate = each.samples_per_s
        shown.add_row(
            each.task,
            each.method,
            each.engine,
            f"{each.step_ms:.{3 if each.step_ms < 100 else 0}f}",
            f"{rate:.0f}" if rate < 1e5 else f"{rate / 1000:.0f}k",
            f"{1000 * each.round_s:.0f}",
            f"{1000 * each.own_s:.0f}",
            f"{each.overhead:.2f}",
            f"{100 * each.ceiling:.0f}%",
            *last,
        )
    return shown


def legend(found: "list[Measurement]") -> str:
    """Return the meaning of the tasks' names and of the columns."""
    from cafedcl.speed.measure import WORKLOADS

    names = list(dict.fromkeys(m.task for m in found))
    width = max(map(len, names))
    titles = [f"{name:<{width}}  {WORKLOADS[name].title}" for name in names]
    return "\n".join([*titles, "", LEGEND])
