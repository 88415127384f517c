"""`cafedcl compare`, `cafedcl sweep` and `cafedcl watch`. Nothing here imports PyTorch before a
command needs it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from cafedcl.cli.options import DataDir, Quiet, Settings
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG.toml]", help="A config file with what all runs share."),
]
Out = Annotated[Path | None, typer.Option(help="The folder of all runs.")]
Resume = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Go on with the plan that this folder holds.")
]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; by default 1.")]
FirstSeed = Annotated[int | None, typer.Option(help="The first seed; by default 0.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs at a time per device; by default one per core, or one per GPU."),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(help="cpu, or cuda:0,cuda:1, …; by default every GPU, or else the processor."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster that shares this file system: auto, HOST:PORT, local.",
    ),
]
JsonRuns = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per run, and nothing else.")
]


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
    clients: Clients = None,
    rounds: Rounds = None,
    out: Out = None,
    resume: Resume = None,
    data_dir: DataDir = None,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: RayAddress = None,
    quiet: Quiet = False,
    as_json: JsonRuns = False,
) -> None:
    """Train several methods on several data sets and splits with several seeds, and compare them.

    Every run is a run folder OUT/DATA/SPLIT/METHOD/sSEED of its own.

    The same command again, or --resume OUT, goes on where it stopped.
    """
    from cafedcl.compare.plan import Comparison, stored_plan, words_of
    from cafedcl.compare.run import Means, run_comparison

    means = Means(jobs, devices or (), ray, quiet, as_json)
    if resume is not None:
        refuse_with_resume(
            config,
            methods,
            data,
            splits,
            seeds,
            first_seed,
            clients,
            rounds,
            out,
            data_dir,
            settings,
        )
        run_comparison(
            Comparison.from_plain(stored_plan(resume, Comparison.FILE, "compare")), resume, means
        )
        return
    plan = Comparison.make(
        methods=words_of(methods or ()),
        data=words_of(data or ()),
        splits=splits or (),
        seeds=1 if seeds is None else seeds,
        first_seed=first_seed or 0,
        tables=read_config_file(config),
        settings=[*flags(clients, rounds, data_dir), *(settings or ())],
    )
    run_comparison(plan, wanted(out), means)


def sweep(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option(help="The method; see `cafedcl methods`.")] = None,
    data: Annotated[str | None, typer.Option(help="The data set.")] = None,
    split: Annotated[str | None, typer.Option(help="The split, such as dirichlet:0.1.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=V,V,…", help="Values of an option; several options make a grid."
        ),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Search by Optuna instead, with N trials in all."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="SECTION.KEY=LOW..HIGH[:log]",
            help="With --tune: numbers to search in.",
        ),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--choice", metavar="SECTION.KEY=V,V,…", help="With --tune: values to choose from."
        ),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="What counts in the last round; by default server.accuracy.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="validation: training images are held out and scored, nobody looks at the test set; test: the test "
            "set. By default validation with --tune, and test with --grid."
        ),
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Part of every class's training images that is held out; by default 0.1."
        ),
    ] = None,
    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune",
            help="With --tune: give up what is below the median after a third of the rounds.",
        ),
    ] = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    clients: Clients = None,
    rounds: Rounds = None,
    out: Out = None,
    resume: Resume = None,
    data_dir: DataDir = None,
    settings: Settings = None,
    jobs: Jobs = None,
    devices: Devices = None,
    ray: RayAddress = None,
    quiet: Quiet = False,
    as_json: JsonRuns = False,
) -> None:
    """Train a method with several values of its options: a grid, or a search for the best ones.

    It ends with the best point, and writes OUT/best.toml for `cafedcl run`.

    The same command again, or --resume OUT, goes on where it stopped.

    A larger --tune makes a search longer.
    """
    from cafedcl.compare.plan import stored_plan
    from cafedcl.compare.run import Means, run_sweep
    from cafedcl.compare.sweep import Sweep, parse_ranges, parse_values, sweep_settings

    means = Means(jobs, devices or (), ray, quiet, as_json)
    if resume is not None:
        refuse_with_resume(
            config, method, data, split, grid, ranges, choices, score, on, hold_out, prune
        )
        refuse_with_resume(seeds, first_seed, clients, rounds, out, data_dir, settings)
        plan = Sweep.from_plain(stored_plan(resume, Sweep.FILE, "sweep"))
        run_sweep(plan, resume, tune, means)
        return
    check_kind(grid, tune, [*(ranges or ()), *(choices or ())], prune)
    plan = Sweep(
        settings=sweep_settings(
            read_config_file(config),
            method,
            data,
            split,
            [*flags(clients, rounds, data_dir), *(settings or ())],
        ),
        seeds=1 if seeds is None else seeds,
        first_seed=first_seed or 0,
        score=score or "server.accuracy",
        on=on or ("validation" if tune else "test"),
        hold_out=0.1 if hold_out is None else hold_out,
        grid=parse_values(grid or (), "--grid"),
        ranges=parse_ranges(ranges or ()),
        choices=parse_values(choices or (), "--choice"),
        prune=bool(prune),
    )
    run_sweep(plan, wanted(out), tune, means)


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders that contain them."),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 8787,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks at the runs.")
    ] = 2.0,
) -> None:
    """Serve the report of runs while they run: the page renews itself as rounds come in. Ctrl-C
    ends it.
    """
    from cafedcl.report.watch import Reports, serve_report

    with serve_report(Reports(runs, every), host, port) as server:
        console().print(f"serving {server.address}  (Ctrl-C ends it)", soft_wrap=True)
        server.run()


def read_config_file(config: Path | None) -> dict[str, Any]:
    """Return a config file's tables, if there is one."""
    from cafedcl.config.sections import read_file

    return {} if config is None else read_file(config)


def flags(clients: int | None, rounds: int | None, data_dir: str | None) -> list[str]:
    """Return the flags that are settings with a shorter name."""
    from cafedcl.config.options import to_toml

    named = {"federation.clients": clients, "federation.rounds": rounds, "data.dir": data_dir}
    return [f"{name}={to_toml(value)}" for name, value in named.items() if value is not None]


def wanted(out: Path | None) -> Path:
    """Return the folder of all runs, which must be named so that it can be gone on with."""
    if out is None:
        raise CafedclError("--out: name the folder of all runs, such as --out runs/compare-1")
    return out


def refuse_with_resume(*others: Any) -> None:
    """Refuse anything that --resume knows already."""
    if any(other not in (None, [], ()) for other in others):
        raise CafedclError(
            "--resume: the plan is in the folder; besides, only --jobs, --devices, --ray, --tune and --quiet fit"
        )


def check_kind(
    grid: list[str] | None, tune: int | None, space: list[str], prune: bool | None
) -> None:
    """Refuse a sweep that is neither a grid nor a search, or both."""
    if grid and (tune or space or prune):
        raise CafedclError("--grid: it goes without --tune, --range, --choice and --prune")
    if not grid and not tune:
        raise CafedclError(
            "give --grid SECTION.KEY=VALUE,VALUE, or --tune N with --range or --choice"
        )
    if tune and not space:
        raise CafedclError(
            "--tune: name what to search with --range SECTION.KEY=LOW..HIGH or --choice SECTION.KEY=A,B"
        )
