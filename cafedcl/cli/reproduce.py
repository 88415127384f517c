"""`cafedcl reproduce`: run a table or figure of the paper, and compare it with the paper."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.cli.compare import Devices, Jobs, JsonRuns, RayAddress
from cafedcl.cli.options import Quiet, Settings, with_flags
from cafedcl.config.flags import Flags
from cafedcl.config.options import flattened, to_toml
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.printable import printable
from cafedcl.core.steps import spoken, step
from cafedcl.terminal.console import console, headed

if TYPE_CHECKING:
    from cafedcl.compare.cost import Costs
    from cafedcl.compare.jobs import RunOutcome, RunSpec
    from cafedcl.compare.results import Member
    from cafedcl.compare.run import Means
    from cafedcl.compare.study import Study, StudyScale

TABLE_FILE = "table.md"
USUAL = "fedavg"
"""The method whose run is measured, if it is among those of a setting."""
LONG = 200
"""Rounds from which a study is measured beforehand, even without being asked."""


@with_flags("data_dir")
def reproduce(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]", help="Name or file of a study; without one, all studies are listed."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke, short, medium, large, paper or protocol; "
            "without a study, all are explained."
        ),
    ] = "short",
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; the default depends on the scale.", min=1)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING", help="Run only these settings, separated by commas; repeatable."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="Run only these methods, separated by commas.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of all runs; by default runs/STUDY-SCALE.")
    ] = None,
    gather: Annotated[
        bool,
        typer.Option(
            "--gather", help="Run nothing; write table.md and results.json from existing runs."
        ),
    ] = False,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FOLDER|RESULTS.JSON",
            help="Runs made elsewhere, which are not run again. If a run appears twice, the last "
            "one is used. Repeatable.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start only runs that are expected to end within this time, such as 30m or 2h. "
            "Repeat the command for the others.",
        ),
    ] = None,
    cost: Annotated[
        bool,
        typer.Option("--cost", help="Measure and print what the runs would cost; run nothing."),
    ] = False,
    *,
    flags: Flags,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: RayAddress = None,
    quiet: Quiet = False,
    as_json: JsonRuns = False,
) -> None:
    """Run a table or figure of the paper and compare it with the paper's numbers.

    To resume after an interruption, repeat the command.

    Finished runs are kept, and used again with other settings, methods or seeds.

    Before a long study, short runs measure what it will cost on this device.
    """
    from cafedcl.compare.cost import parse_duration
    from cafedcl.compare.elsewhere import (
        PLAN_FILE,
        check_same_options,
        done_elsewhere,
        read_elsewhere,
    )
    from cafedcl.compare.plan import planned, stored_plan, words_of
    from cafedcl.compare.run import Means, end
    from cafedcl.compare.study import read_scales, read_study

    begun = time.monotonic()
    seconds = None if budget is None else parse_duration(budget, "--budget")
    scales = read_scales()
    if study is None:
        list_studies()
        return
    if scale not in scales:
        raise CafedclError(
            f"--scale {scale}: there is no such scale; {nearest(scale, list(scales))}"
        )
    place = out or Path("runs") / f"{Path(study).stem}-{scale}"
    size = scales[scale]
    whole = read_study(study)
    part = (words_of(only or ()), words_of(methods or ()))
    chosen = whole.only(*part).at(size)
    data_dir = flags.get("data_dir")
    overrides = [*([f"data.dir={to_toml(data_dir)}"] if data_dir else []), *(settings or ())]
    wanted = {"study": Path(study).stem, "scale": scale, "settings": list(settings or ())}
    means = Means(jobs, devices or (), ray, quiet, as_json)
    if gather and not settings and (place / PLAN_FILE).is_file():
        wanted["settings"] = stored_plan(place, PLAN_FILE, "reproduce")["settings"]
    elif gather and not sources and not place.exists():
        raise CafedclError(
            f"{place}: there are no runs to gather; "
            "run the study, or name existing runs with --from"
        )
    with planned(place, wanted, PLAN_FILE, "reproduce"):
        elsewhere = [read_elsewhere(path, whole, wanted, size) for path in sources or ()]
        if gather:
            write_results(place, whole, wanted, size, elsewhere, means.silent, part)
            return
        asked = [
            (one, list(chosen.jobs(place, one, seeds or size.seeds, overrides)))
            for one in chosen.settings
        ]
        known = done_elsewhere(place, whole, size, elsewhere)
        for _, its in asked:
            check_same_options(its, known)
        absent = unreadable(dict.fromkeys(one.data for one, _ in asked), overrides)
        todo = {
            one.name: [job for job in its if job.folder not in known]
            for one, its in asked
            if one.data not in absent
        }
        left_out = [f"{one.name}: {absent[one.data]}" for one, _ in asked if one.data in absent]
        costs = None
        left = unfinished(todo)
        if cost or seconds is not None or (not means.silent and is_long(left)):
            costs = measured(left, means, seconds)
        if cost:
            return
        if costs is not None and seconds is not None:
            costs = costs.until(begun + seconds)
        outcomes = run_study(todo, means, costs)
        if outcomes or sources:
            write_results(place, whole, wanted, size, elsewhere, means.silent)
        for line in left_out:
            print(printable(f"skipped: {line}"), file=sys.stderr)
    end(outcomes, "try them again with the same command")
    if left_out:
        raise typer.Exit(1)


def unfinished(todo: "Mapping[str, Sequence[RunSpec]]") -> "dict[str, list[RunSpec]]":
    """Return the unfinished runs of every setting; the one to measure comes first."""
    left = {name: [job for job in its if not job.finished] for name, its in todo.items()}
    return {
        name: sorted(jobs, key=lambda job: job.code[-1] != USUAL)
        for name, jobs in left.items()
        if jobs
    }


def is_long(left: "Mapping[str, Sequence[RunSpec]]") -> bool:
    """Return whether these runs are worth a measurement beforehand."""
    return sum(job.rounds for its in left.values() for job in its) >= LONG


def measured(
    left: "Mapping[str, Sequence[RunSpec]]", means: "Means", budget: float | None
) -> "Costs":
    """Measure what unfinished runs cost, with a short run for every setting, and print it."""
    from cafedcl.compare.cost import MEASURED_ROUNDS, Costs, measure
    from cafedcl.compare.pool import run_all
    from cafedcl.compare.run import scheduled

    screen = console()
    if not left:
        if not means.silent:
            screen.print("all runs are finished")
        return Costs({})
    silently = replace(means, quiet=True, as_json=False)
    size = (len(left), MEASURED_ROUNDS * len(left))
    first = next(iter(left.values()))[0]
    with (
        step("measuring what the runs cost", total=len(left), unit="settings"),
        scheduled("the same command", size, flattened(first.tables), silently) as pool,
    ):
        slots = len(pool.slots)
        costs = measure(list(left.values()), lambda short: run_all(short, pool))
    if means.silent:
        return costs
    for name, its in left.items():
        each = costs.total(its, 1) / len(its)
        screen.print(
            f"{name}: {len(its)} runs of about {spoken(each)}: {spoken(costs.total(its, slots))}",
            soft_wrap=True,
        )
    jobs = [job for its in left.values() for job in its]
    whole = costs.total(jobs, slots)
    methods = ", ".join(dict.fromkeys(its[0].code[-1] for its in left.values()))
    screen.print(
        f"in all {len(jobs)} runs, {slots} at a time: about {spoken(whole)} "
        f"(measured with {methods}; other methods differ)",
        soft_wrap=True,
    )
    if budget is not None and whole > budget:
        screen.print(
            f"about {budget / whole:.0%} of them fit into {spoken(budget)}: "
            "one seed of every method first",
            soft_wrap=True,
        )
    return costs


def run_study(
    todo: "Mapping[str, Sequence[RunSpec]]", means: "Means", costs: "Costs | None"
) -> "list[RunOutcome]":
    """Execute the runs of a study; those that do not fit into the time are left for later."""
    from cafedcl.compare.pool import run_all
    from cafedcl.compare.run import scheduled

    # One seed of every method first: a table is complete before the next seed starts.
    jobs = sorted((job for its in todo.values() for job in its), key=lambda job: job.seed)
    if not jobs:
        return []
    size = (len(jobs), sum(job.rounds for job in jobs))
    with scheduled("the same command", size, flattened(jobs[0].tables), means) as pool:
        outcomes = run_all(jobs, pool, costs)
    left = len(jobs) - len(outcomes)
    if left and not means.silent:
        console().print(
            f"{left} runs did not fit into the time; repeat the command to run them",
            soft_wrap=True,
        )
    return outcomes


def unreadable(names: Iterable[str], overrides: Sequence[str]) -> dict[str, CafedclError]:
    """Return which data sets are unavailable, and why; the others are downloaded and decoded."""
    from cafedcl.compare.run import fetch_data
    from cafedcl.config.sections import assign

    absent = {}
    for name in names:
        tables: dict[str, dict[str, Any]] = {"data": {"name": name}}
        for override in overrides:
            if override.startswith("data."):
                assign(tables, override)
        try:
            fetch_data([tables])
        except CafedclError as error:
            absent[name] = error
    return absent


def list_studies() -> None:
    """List the studies and the scales."""
    from cafedcl.compare.study import read_scales, read_study, study_names

    screen = console()
    for name in study_names():
        study = read_study(name)
        screen.print(headed(name, study.title), soft_wrap=True)
        screen.print(
            f"    {', '.join(one.name for one in study.settings)}", style="dim", soft_wrap=True
        )
    for name, scale in read_scales().items():
        screen.print(f"--scale {name}  {scale.about}", soft_wrap=True)


def write_results(
    out: Path,
    study: "Study",
    plan: dict[str, Any],
    size: "StudyScale",
    elsewhere: "Sequence[Sequence[Member]]",
    silent: bool,
    part: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> None:
    """Write the table and the results of all runs in this folder, and of those from elsewhere.

    ``part`` names the settings and the methods to write; an empty list stands for all of them.
    """
    from cafedcl.compare.results import RESULTS_FILE, as_text, merged, read_study_folder, results_of
    from cafedcl.core.files import explained, write_atomically

    name = plan["study"]
    scale = plan["scale"]
    settings, methods = part
    found = merged([read_study_folder(out, study, size, plan["settings"]), *elsewhere], study)
    members = [
        one
        for one in found
        if (not settings or one.key[0] in settings) and (not methods or one.key[1] in methods)
    ]
    with explained(out):
        write_atomically(
            out / RESULTS_FILE, as_text(results_of(members, name, study, scale, size)).encode()
        )
    write_table(out, members, f"# {study.title}\n\nScale {scale}: {size.about}.\n", silent)


def write_table(out: Path, members: "Sequence[Member]", head: str, silent: bool) -> None:
    """Write the table of runs next to the paper's numbers, and print it."""
    from cafedcl.core.files import explained, write_atomically
    from cafedcl.report.printed import as_markdown
    from cafedcl.report.printed_rich import as_rich
    from cafedcl.report.runs import summarise
    from cafedcl.report.table import score_table

    summary = summarise([member.run for member in members])
    if not summary.groups:
        return
    text = head
    titles = {
        "server": "The server's model",
        "own": "The clients' own models",
        "own-prior": "The clients' own models, with the logarithm of their label distributions",
    }
    for protocol, words in titles.items():
        # Results of earlier versions lack the last one.
        if protocol != "own-prior" or any(member.run.scored(protocol) for member in members):
            text += f"\n## {words}\n\n{as_markdown(score_table(summary, protocol), True)}"
    with explained(out):
        write_atomically(out / TABLE_FILE, text.encode())
    if not silent:
        screen = console()
        screen.print(as_rich(score_table(summary), True, screen.width))
        screen.print(f"written: {out / TABLE_FILE}", soft_wrap=True)
