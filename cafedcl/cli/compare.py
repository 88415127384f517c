"""Commands about many runs: `cafedcl compare`, `cafedcl sweep` and `cafedcl watch`.

Nothing here imports PyTorch before a command needs it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from cafedcl.cli.options import Quiet, RunPaths, Settings, with_flags
from cafedcl.cli.session import warn_of_presets
from cafedcl.config.flags import Flags
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG.toml]", help="A config file with the options of all runs."),
]
Out = Annotated[Path | None, typer.Option(help="The folder of all runs.")]
Resume = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Resume the plan that this folder holds.")
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; by default 1.")]
FirstSeed = Annotated[int | None, typer.Option(help="The first seed; by default 0.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at a time per device; by default one per core, or up to five on a GPU that they "
        "can share."
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(help="cpu, or cuda:0,cuda:1, …; by default every GPU, or else the CPU."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster that shares this file system: auto, HOST:PORT or local.",
    ),
]
JsonRuns = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per run, and nothing else.")
]


@with_flags("model", "clients", "rounds", "data_dir")
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="Methods, separated by commas; see `cafedcl methods`.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data sets, separated by commas; repeatable.")
    ] = None,
    splits: Annotated[
        list[str] | None,
        typer.Option(help="Splits, such as dirichlet:0.1,pathological:2,ir=10; repeatable."),
    ] = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    *,
    flags: Flags,
    out: Out = None,
    resume: Resume = None,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: RayAddress = None,
    quiet: Quiet = False,
    as_json: JsonRuns = False,
) -> None:
    """Train several methods on several data sets and splits with several seeds, and compare them.

    Each run has a run folder of its own: OUT/DATA/SPLIT/METHOD/sSEED.

    To resume after an interruption, repeat the command or use --resume OUT.
    """
    from cafedcl.compare.plan import (
        Comparison,
        data_names,
        first_seed_of,
        stored_plan,
        words_of,
    )
    from cafedcl.compare.run import Means, end_comparison, run_comparison
    from cafedcl.config.format import read_config

    means = Means(jobs, devices or (), ray, quiet, as_json)
    if resume is not None:
        planned = (config, methods, data, splits, seeds, first_seed, out, settings)
        refuse_with_resume("", *planned, *flags.values())
        plan = Comparison.from_plain(stored_plan(resume, Comparison.FILE, "compare"))
        end_comparison(run_comparison(plan, resume, means), resume)
        return
    if methods and not words_of(methods):
        raise CafedclError("--methods: it is empty; name methods, such as fedavg,cafedcl")
    tables = read_config(config)
    plan = Comparison.make(
        methods=words_of(methods or ()),
        data=data_names(data or ()),
        splits=splits or (),
        seeds=1 if seeds is None else seeds,
        first_seed=first_seed_of(tables, first_seed),
        tables=tables,
        flags=flags,
        settings=settings or (),
    )
    warn_of_presets(config, plan.methods, flags, settings or ())
    place = check_out(out)
    end_comparison(run_comparison(plan, place, means), place)


@with_flags("method", "data", "model", "split", "clients", "rounds", "data_dir")
def sweep(
    config: ConfigFile = None,
    *,
    flags: Flags,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=V,V,…",
            help="Values of an option; repeat it to try all combinations of several options.",
        ),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Search with Optuna instead, N trials in total."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="SECTION.KEY=LOW..HIGH[:log]",
            help="With --tune: range of a numeric option.",
        ),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--choice", metavar="SECTION.KEY=V,V,…", help="With --tune: values to choose from."
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="Score of the last round to optimise; by default server.balanced."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Images to score on. validation: training images that are held out, so that the "
            "test set is not used; test: the test set. By default validation with --tune, and "
            "test with --grid."
        ),
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(help="Fraction of each class's training images to hold out; default 0.1."),
    ] = None,
    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune",
            help="With --tune: stop trials that are below the median after a third of the rounds.",
        ),
    ] = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    out: Out = None,
    resume: Resume = None,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: RayAddress = None,
    quiet: Quiet = False,
    as_json: JsonRuns = False,
) -> None:
    """Train a method with several values of its options: a grid, or a search for the best values.

    The best point is printed, and written to OUT/best.toml for `cafedcl run`.

    To resume after an interruption, repeat the command or use --resume OUT.

    To extend a search, repeat the command with a larger --tune.
    """
    from cafedcl.compare.plan import first_seed_of, stored_plan
    from cafedcl.compare.run import Means, end_sweep, run_sweep
    from cafedcl.compare.sweep import Sweep, sweep_settings
    from cafedcl.compare.swept_values import parse_ranges, parse_values
    from cafedcl.config.format import read_config

    means = Means(jobs, devices or (), ray, quiet, as_json)
    if resume is not None:
        searched = (grid, ranges, choices, score, on, hold_out, prune)
        planned = (config, seeds, first_seed, out, settings)
        refuse_with_resume("--tune, ", *searched, *planned, *flags.values())
        plan = Sweep.from_plain(stored_plan(resume, Sweep.FILE, "sweep"))
        end_sweep(run_sweep(plan, resume, tune, means), resume)
        return
    tables = read_config(config)
    plan = Sweep.make(
        sweep_settings(tables, flags, settings or ()),
        tune=tune,
        grid=parse_values(grid or (), "--grid"),
        ranges=parse_ranges(ranges or ()),
        choices=parse_values(choices or (), "--choice"),
        score=score,
        on=on,
        hold_out=hold_out,
        prune=bool(prune),
        seeds=seeds,
        first_seed=first_seed_of(tables, first_seed),
    )
    method = flags.get("method")
    if method is not None:
        warn_of_presets(config, [method], flags, settings or ())
    place = check_out(out)
    end_sweep(run_sweep(plan, place, tune, means), place)


def watch(
    runs: RunPaths,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 8787,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two checks for new rounds.")
    ] = 2.0,
) -> None:
    """Serve a live report of runs on a web page that refreshes as rounds come in.

    Ctrl-C stops it.
    """
    from cafedcl.report.watch import Reports, serve_report

    with serve_report(Reports(runs, every), host, port) as server:
        console().print(f"serving {server.address}  (stop with Ctrl-C)", soft_wrap=True)
        server.run()


def check_out(out: Path | None) -> Path:
    """Return the folder of all runs; it must be given, so that the runs can be resumed."""
    if out is None:
        raise CafedclError("--out: name the folder of all runs, such as --out runs/compare-1")
    return out


def refuse_with_resume(allowed: str, *others: Any) -> None:
    """Raise an error if anything besides --resume specifies what to run.

    ``allowed`` are options that only one of the commands has.
    """
    if any(other not in (None, [], ()) for other in others):
        raise CafedclError(
            "--resume: the folder holds the plan; "
            f"only --jobs, --devices, --ray, {allowed}--quiet and --json can be added"
        )
