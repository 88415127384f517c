"""`cafedcl deploy`: from nothing to sites that train together."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cafedcl.cli.options import Quiet, Settings
from cafedcl.core.errors import CafedclError
from cafedcl.terminal.console import console

app = typer.Typer(help="Run across machines, on Flower.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder, made by `deploy init`.")
]


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write; it must not exist yet.")
    ],
    site: Annotated[
        list[str], typer.Option(help="A site, as NAME or NAME=DATA, its own images; repeatable.")
    ],
    host: Annotated[
        str, typer.Option(help="Name or address under which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's port.")] = 8000,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Sites hold shards of the run's data set.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys. Only to try things out.")
    ] = False,
) -> None:
    """Write certificates, keys and configs for a server and its sites, and print the commands."""
    from cafedcl.deploy.places import ServerOptions, make_places

    named = dict(word.partition("=")[::2] for word in site)
    if len(named) < len(site):
        raise CafedclError("--site: every site has a name of its own")
    if simulated and any(named.values()):
        raise CafedclError("--simulated: then no site has data of its own; leave the =DATA out")
    places = make_places(
        folder, ServerOptions(host=host, port=port, insecure=insecure), named, simulated
    )
    server, *sites = places
    print(f"written: {folder}")
    if insecure:
        print("warning: without TLS and keys anyone can read along and take part")
    else:
        print(
            f"keep {folder / 'ca.key'} where nobody else can read it; nothing needs it while training"
        )
    print(f"\non {host}, with {server}:\n  cafedcl deploy server {server}")
    for name, place in zip(named, sites, strict=True):
        first = "" if named[name] or simulated else ", once its site.toml says where the data are"
        print(f"\nat {name}, with a copy of {place}{first}:")
        print(f"  cafedcl deploy site {place}")
    print(
        f"\nand when they are up, on {host}:\n  cafedcl deploy status {server}\n  cafedcl deploy run {server}"
    )


@app.command()
def server(folder: Folder) -> None:
    """Run the server: a SuperLink that lets in the sites whose keys it knows."""
    from cafedcl.deploy.server import Server, watch

    place = Server.of(folder)
    with stoppable() as say:
        process = place.start()
        try:
            say(
                f"server at {place.listen}:{place.options.port}"
                + (" (insecure)" if place.options.insecure else "")
            )
            watch(process, say)
        finally:
            process.stop()


@app.command()
def site(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The site's folder, made by `deploy init`.")
    ],
) -> None:
    """Run a site: its worker and its SuperNode."""
    from cafedcl.deploy.places import read_site
    from cafedcl.deploy.programs import require
    from cafedcl.deploy.site import RunningSite

    require()
    options = read_site(folder)
    with stoppable() as say:
        running = RunningSite(folder, options)
        try:
            say(
                f"site {options.name} for {options.host}:{options.port}"
                + (" (insecure)" if options.insecure else "")
            )
            running.watch(say)
        finally:
            running.stop()


@app.command()
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show which sites are connected and which runs there are."""
    import json

    from rich.table import Table

    from cafedcl.deploy.server import Server

    place = Server.of(folder)
    place.check()
    sites = place.sites()
    runs = place.runs()
    if as_json:
        print(json.dumps({"sites": sites, "runs": runs}))
        return
    table = Table("site", "status", "since", box=None, header_style="bold")
    for row in sites:
        table.add_row(row["name"], row["status"], row["since"])
    console().print(table)
    if runs:
        table = Table("run", "status", "seconds", box=None, header_style="bold")
        for row in runs:
            table.add_row(row["run"], row["status"], row["seconds"])
        console().print(table)


@app.command()
def run(
    folder: Folder,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]", help="A config file; by default the folder's run.toml."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method, or method:preset; see `cafedcl methods`.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default a new one under runs/.")
    ] = None,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per round, and nothing else.")
    ] = False,
) -> None:
    """Train at the sites of a deployment and write a run folder here."""
    from cafedcl.cli.session import conclude, new_folder, resumable, watching
    from cafedcl.deploy.server import Server
    from cafedcl.task.resolve import gather

    place = Server.of(folder)
    words = [*(settings or []), "engine.name=flower"]
    chosen = gather(
        config or folder / "run.toml", method=method, rounds=rounds, seed=seed, settings=words
    )
    path = out or new_folder(f"{chosen.method.name.replace(':', '-')}-deployed-s{chosen.run.seed}")
    with watching(quiet, as_json) as watchers, resumable(path):
        finished = place.run(chosen, path, watchers)
    conclude(finished, quiet or as_json)


@contextmanager
def stoppable() -> "Iterator[Any]":
    """End on Ctrl-C and on a polite kill without a word; gives what prints a line."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda line: print(line, flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
