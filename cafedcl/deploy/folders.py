"""The folders of a deployment: one for the server and one per site, each with a config file."""

import fcntl
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from cafedcl.config.options import option, read_options, toml_section
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, why_unwritten, write_atomically
from cafedcl.deploy.keys import make_certificates, make_node_key, write_secret
from cafedcl.deploy.proxy import write_proxy_config

T = TypeVar("T")
PORT = 8000
NODES = "nodes.json"
"""The server's file with the Flower node of each site's key."""
RUNS = "runs.json"
"""The server's file with the folder of each run."""
MOST_RUNS = 1000
"""The most runs in that file."""


@dataclass(frozen=True)
class ServerOptions:
    """The server of a deployment."""

    host: str = option("127.0.0.1", "host name or address at which sites reach the server")
    port: int = option(PORT, "port at which sites reach the server", low=1, high=65535)
    superlink: int = option(
        PORT + 1, "port of Flower's SuperLink, for this machine only", low=1, high=65535
    )
    listen: str = option(
        "", "address to listen on; empty: the host if it is a loopback address, else all addresses"
    )
    classes: tuple[str, ...] = option(
        (), "names of all classes; a site with another class is refused. Empty: what sites have"
    )
    images_per_class: int = option(
        0, "most images of one class that a site may enrol with; 0: no limit", low=0
    )
    insecure: bool = option(False, "no TLS and no keys: anyone can read the traffic and join")

    @property
    def listen_address(self) -> str:
        """The address at which the proxy listens for sites."""
        if self.listen:
            return self.listen
        return self.host if is_loopback(self.host) else "0.0.0.0"


@dataclass(frozen=True)
class SiteOptions:
    """A site of a deployment."""

    name: str = option("", "name of the site; do not change it during a run")
    host: str = option("127.0.0.1", "host name or address of the server")
    port: int = option(PORT, "port of the server", low=1, high=65535)
    data: str = option("", "this site's data, in any form that --data accepts")
    client: int = option(
        -1,
        "for trials without own data: number of the client whose shard of the run's data set this "
        "site holds",
        low=-1,
    )
    device: str = option("auto", "device to train on: auto, cpu, cuda, cuda:1 or mps")
    plugins: bool = option(
        False, "allow the server to use methods and models from this site's own packages"
    )
    fewest: int = option(
        5,
        "smallest number of images for which this site reports a class; a run that asks for less "
        "is refused",
        low=1,
    )
    details: bool = option(
        False,
        "allow runs that ask for exact class counts, raw prototypes or notes, and methods whose "
        "messages reveal as much",
    )
    grid: int = option(
        10,
        "this site rounds its class counts to multiples of this number at least; a run that asks "
        "for less is refused",
        low=1,
    )
    secure: bool = option(False, "take part only in runs with secure aggregation (privacy.secure)")
    insecure: bool = option(False, "no TLS and no keys: anyone can read the traffic and join")


def is_loopback(host: str) -> bool:
    """Return whether an address is the loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_config(folder: Path, file: str, options: type[T], section: str) -> T:
    """Return the options in the config file of a deployment's folder."""
    path = folder / file
    if not path.exists():
        # Users may give the deployment's folder, or be in the one above it.
        near = [*folder.glob(f"*/{file}"), *folder.parent.glob(f"*/{folder.name}/{file}")]
        advice = f"did you mean {min(near).parent}?" if near else "`cafedcl deploy init` makes one"
        raise CafedclError(f"{folder}: there is no {file}; {advice}")
    tables = read_file(path)
    if tables.keys() != {section}:
        raise CafedclError(f"{path}: one section [{section}] is expected")
    try:
        return read_options(options, tables[section], section)
    except CafedclError as error:
        raise CafedclError(f"{path}: {error}") from None


def read_server(folder: Path) -> ServerOptions:
    """Return a server folder's options."""
    return _read_config(folder, "server.toml", ServerOptions, "server")


def read_site(folder: Path) -> SiteOptions:
    """Return a site folder's options."""
    return _read_config(folder, "site.toml", SiteOptions, "site")


def lock_folder(folder: Path, what: str) -> TextIO:
    """Lock the folder of a server or a site for this process; raise if another one runs in it.

    Two of them would share logs, and what a site keeps between rounds.
    """
    path = folder / f"{what}.lock"
    with explained(path):
        file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or "unknown"
        file.close()
        raise CafedclError(
            f"{folder}: a {what} runs in this folder already (process {holder})"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def check_site_name(name: str) -> None:
    """Raise an error if a site's name cannot be that of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) or name.lower() == "server":
        raise CafedclError(
            f"site '{name}': use letters a to z, digits, '.', '_' and '-', 63 at most, a letter or "
            "digit first, and not the name 'server'"
        )


def check_host(host: str) -> None:
    """Raise an error for a text that is neither an address nor a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", host):
            raise CafedclError(
                f"--host {host}: a host name or an address is expected, without http:// and port, "
                "such as fl.example.org; write other letters than a to z as DNS does (xn--…)"
            ) from None


def make_folders(
    folder: Path, server: ServerOptions, sites: dict[str, str], simulated: bool
) -> list[Path]:
    """Write a deployment, ``folder/server`` and ``folder/NAME`` for every site; return the folders.

    ``sites`` maps each site's name to its data.
    """
    check_host(server.host)
    for site in sites:
        check_site_name(site)
    if len({site.lower() for site in sites}) < len(sites):
        raise CafedclError("--site: names must differ by more than upper and lower case")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CafedclError(f"{folder}: exists and is not an empty folder; choose another one")
    try:
        return _write_folders(folder, server, sites, simulated)
    except OSError as error:
        raise CafedclError(
            f"{error.filename or folder}: cannot be written: {why_unwritten(error)}"
        ) from None


def _write_folders(
    folder: Path, server: ServerOptions, sites: dict[str, str], simulated: bool
) -> list[Path]:
    server_folder = folder / "server"
    for path in (folder, server_folder, server_folder / "sites"):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca = b"" if server.insecure else make_certificates(server.host, server_folder)
    _write_config(
        server_folder / "server.toml",
        "cafedcl deploy server THIS-FOLDER",
        toml_section("server", server, explain=True),
    )
    write_proxy_config(
        server_folder, server.listen_address, server.port, server.superlink, server.insecure
    )
    run = [
        "# `cafedcl config --advanced` prints all options",
        "",
        "[data]",
        'name = "digits"' if simulated else 'name = "sites"',
        "",
        "[federation]",
        f"clients = {len(sites)}",
        "",
        "# Leave out sites whose updates disagree with those of sites with similar classes:",
        "# [defence]",
        '# kind = "peers"',
    ]
    _write_config(server_folder / "run.toml", "cafedcl deploy run THIS-FOLDER", run)
    folders = [server_folder]
    for client, (name, data) in enumerate(sites.items()):
        site_folder = folder / name
        site_folder.mkdir(mode=0o700)
        site = SiteOptions(
            name=name,
            host=server.host,
            port=server.port,
            data=data,
            client=client if simulated else -1,
            insecure=server.insecure,
        )
        lines = toml_section("site", site, explain=True)
        _write_config(site_folder / "site.toml", "cafedcl deploy site THIS-FOLDER", lines)
        public_key = server_folder / "sites" / f"{name}.pub"
        if server.insecure:
            # Without keys, an empty file still tells the server which sites to expect.
            public_key.touch()
        else:
            make_node_key(site_folder / "node.key", public_key)
        folders.append(site_folder)
    if ca:
        for path in folders:
            (path / "ca.crt").write_bytes(ca)
    return folders


def _write_config(path: Path, command: str, lines: list[str]) -> None:
    """Write a config file that begins with the command that uses it."""
    text = "\n".join([f"# {command}", "", *lines]).rstrip() + "\n"
    write_secret(path, text.encode())


def node_names(server: Path) -> dict[str, str]:
    """Return the node of every site's key, by site name; empty without keys."""
    try:
        return dict(json.loads((server / NODES).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def run_folders(server: Path) -> dict[int, str]:
    """Return the folders of the runs that were submitted on this machine, by Flower's number."""
    try:
        found = json.loads((server / RUNS).read_text(encoding="utf-8"))
        return {int(number): str(folder) for number, folder in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember_run(server: Path, number: int, folder: Path) -> None:
    """Store which folder a run writes. Flower must not know, because it would tell every site."""
    known = [*run_folders(server).items(), (number, str(folder.resolve()))]
    path = server / RUNS
    with explained(path):
        write_atomically(path, json.dumps(dict(known[-MOST_RUNS:])).encode())


def site_names(server: Path) -> list[str]:
    """Return the names of the sites that a server expects."""
    return sorted(path.stem for path in (server / "sites").glob("*.pub"))
