"""`cafedcl deploy`: set up and run a federation across machines, on Flower."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cafedcl.cli.command import Command
from cafedcl.cli.options import JsonRounds, Quiet, RunOut, Settings, with_flags
from cafedcl.config.flags import Flags
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.interrupts import stop_signals_handled
from cafedcl.core.printable import printable
from cafedcl.core.slug import slug
from cafedcl.terminal.console import console
from cafedcl.terminal.streams import NoReaderError

app = typer.Typer(help="Run across machines, on Flower.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder, made by `deploy init`.")
]


@app.command(cls=Command)
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to create; it must not exist yet.")
    ],
    site: Annotated[
        list[str], typer.Option(help="A site, as NAME or NAME=DATA (its own images); repeatable.")
    ],
    host: Annotated[
        str, typer.Option(help="Host name or address at which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8000,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class", help="Name of a class; repeatable. A site with another class is refused."
        ),
    ] = None,
    images_per_class: Annotated[
        int,
        typer.Option(
            min=0, help="Most images of one class that a site may enrol with; 0: no limit."
        ),
    ] = 0,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Sites hold shards of the run's data set.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys; for local tests only.")
    ] = False,
) -> None:
    """Write certificates, keys and configs for a server and its sites, and print the commands."""
    from cafedcl.deploy.folders import ServerOptions, make_folders

    named = dict(word.partition("=")[::2] for word in site)
    if len(named) < len(site):
        raise CafedclError("--site: each site needs a different name")
    if simulated and any(named.values()):
        raise CafedclError("--simulated: sites have no data of their own; remove =DATA")
    # The port after it, or before it for the last port.
    superlink = port + 1 if port < 65535 else port - 1
    if len(set(classes or ())) < len(classes or ()):
        raise CafedclError("--class: each class needs a different name")
    if not all(name.strip() for name in classes or ()):
        raise CafedclError("--class: a class has no name")
    options = ServerOptions(
        host=host,
        port=port,
        superlink=superlink,
        classes=tuple(classes or ()),
        images_per_class=images_per_class,
        insecure=insecure,
    )
    places = make_folders(folder, options, named, simulated)
    server, *sites = places
    print(printable(f"written: {folder}"))
    if insecure:
        print("warning: without TLS and keys, anyone can read the traffic and join")
    print(printable(f"\non {host}, with {server}:"))
    print(printable(f"  {cafedcl_command('deploy', 'server', server)}"))
    for name, place in zip(named, sites, strict=True):
        has_data = named[name] or simulated
        first = "" if has_data else ", once its site.toml says where the data are"
        print(printable(f"\nat {name}, with a copy of {place}{first}:"))
        print(printable(f"  {cafedcl_command('deploy', 'site', place)}"))
    print(printable(f"\nonce they are running, on {host}:"))
    for step in ("status", "run"):
        print(printable(f"  {cafedcl_command('deploy', step, server)}"))


@app.command(cls=Command)
def server(folder: Folder) -> None:
    """Run the server: a Flower SuperLink behind nginx, for the sites whose keys it knows."""
    from cafedcl.deploy.server import Server

    place = Server.of(folder)
    with stoppable() as say:
        running = place.start()
        try:
            say(
                f"server at {place.options.listen_address}:{place.options.port}"
                + (" (insecure)" if place.options.insecure else "")
            )
            notice = place.expiry_notice()
            if notice:
                say(notice)
            running.watch(say)
        finally:
            running.stop()


@app.command(cls=Command)
def site(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The site's folder, made by `deploy init`.")
    ],
) -> None:
    """Run a site: its worker process and its Flower SuperNode."""
    from cafedcl.deploy.folders import read_site
    from cafedcl.deploy.programs import require_flower
    from cafedcl.deploy.site import RunningSite

    require_flower()
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


@app.command(cls=Command)
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the connected sites and the runs."""
    import json

    from rich.table import Table
    from rich.text import Text

    from cafedcl.deploy.server import Server
    from cafedcl.terminal.overview import duration

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
        table = Table("status", "time", box=None, header_style="bold")
        table.add_column("run", overflow="fold")
        for row in runs:
            # A run of another machine's operator has no folder here, but Flower's number.
            named = row["folder"] or f"number {row['run']}"
            # Flower's word for the state, and how it ended.
            state = row["status"].removeprefix("finished:")
            table.add_row(state, duration(float(row["seconds"])), Text(printable(named)))
        console().print(table)


@app.command(cls=Command)
def revoke(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site to remove.")],
) -> None:
    """Remove a site: the server refuses its key from now on."""
    from cafedcl.deploy.server import Server

    Server.of(folder).revoke(name)
    print(printable(f"site {name} is removed; adapt federation.clients in run.toml"))


@app.command(cls=Command)
def admit(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    key: Annotated[
        Path, typer.Argument(metavar="KEY.pub", help="The site's public key, from `deploy renew`.")
    ],
) -> None:
    """Accept a site's new public key, or a new site."""
    from cafedcl.deploy.folders import site_names
    from cafedcl.deploy.server import Server

    server = Server.of(folder)
    known = site_names(folder)
    server.admit(name, key)
    # A mistyped name would add another site.
    what = "site" if name in known else "the new site"
    print(printable(f"{what} {name} is admitted with the key {key}"))


@app.command(cls=Command)
def renew(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of the server or of a site.")
    ],
) -> None:
    """Make new keys: the server's certificate, or a site's key.

    Stop a server first; then copy its new ca.crt into the folder of every site.
    Send a site's new .pub file to the operator, who runs `cafedcl deploy admit`.
    """
    from cafedcl.deploy.server import Server
    from cafedcl.deploy.site import renew_key

    if (folder / "server.toml").exists():
        Server.of(folder).renew()
        print(printable(f"new certificate; copy {folder / 'ca.crt'} into the folder of every site"))
        print("no site can connect with the old one; start the server and the sites again")
    else:
        public = renew_key(folder)
        print(printable(f"new key; send {public} to the operator of the server, who runs"))
        print(printable(f"  cafedcl deploy admit SERVER-FOLDER {public.stem} {public.name}"))
        print("then start the site again")


@app.command(cls=Command)
@with_flags("method", "model", "defence", "rounds", "seed")
def run(
    folder: Folder,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]", help="A config file; by default the folder's run.toml."
        ),
    ] = None,
    *,
    flags: Flags,
    out: RunOut = None,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: JsonRounds = False,
) -> None:
    """Train on the sites of a deployment, and write a run folder on this machine."""
    from cafedcl.cli.session import conclude, folder_for, resumable, watching
    from cafedcl.config.sections import read_file
    from cafedcl.deploy.server import Server
    from cafedcl.task.resolve import gather

    place = Server.of(folder)
    file = config or folder / "run.toml"
    words = [*(settings or []), "engine.name=flower"]
    if "checkpoint_every" not in read_file(file).get("store", {}):
        # A round at sites is expensive, so none is lost unless the config says otherwise.
        words.insert(0, "store.checkpoint_every=1")
    chosen = gather(file, settings=words, **flags)
    name = slug(chosen.method.name, keep=".-")
    with (
        folder_for(out, f"{name}-deployed-s{chosen.run.seed}") as path,
        watching(quiet, as_json) as callbacks,
        resumable(path),
    ):
        finished = place.run(chosen, path, callbacks)
    conclude(finished, quiet or as_json)


@contextmanager
def stoppable() -> "Iterator[Any]":
    """Exit quietly on a stop signal such as Ctrl-C; yield a function that prints a line at once."""
    with stop_signals_handled():
        try:
            yield lambda line: print(printable(line), flush=True)
        except (KeyboardInterrupt, NoReaderError):
            sys.exit(130)
