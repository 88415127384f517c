"""The folders of a deployment: the server's and one per site, each with a small config that says
what it is.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cafedcl.config.options import option, read_options, toml_section
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.keys import make_certificates, make_node_key, write_secret

T = TypeVar("T")
PORT = 8000
NODES = "nodes.json"
"""Where a server notes which Flower node has which site's key."""


@dataclass(frozen=True)
class ServerOptions:
    """The server of a deployment."""

    host: str = option("127.0.0.1", "name or address under which sites reach the server")
    port: int = option(PORT, "its port", low=1, high=65535)
    listen: str = option(
        "", "address to listen on; empty: the host if it is a loopback address, else all"
    )
    insecure: bool = option(False, "no TLS and no keys: anyone can read along and take part")


@dataclass(frozen=True)
class SiteOptions:
    """A site of a deployment."""

    name: str = option("", "by which the server knows the site; never change it during a run")
    host: str = option("127.0.0.1", "name or address of the server")
    port: int = option(PORT, "its port", low=1, high=65535)
    data: str = option(
        "", "where this site's images are, in any form that --data takes; empty: a simulated shard"
    )
    client: int = option(
        0, "without data of its own: which client of the run's data set this site is", low=0
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps")
    plugins: bool = option(
        False, "let the server name code of this site's own packages as method or model"
    )
    insecure: bool = option(False, "no TLS and no keys: anyone can read along and take part")


def read_place(folder: Path, file: str, options: type[T], section: str) -> T:
    """Return what a folder of a deployment says of itself."""
    path = folder / file
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CafedclError(
            f"{folder}: there is no {file}; `cafedcl deploy init` makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise CafedclError(f"{path}: cannot be read: {error}") from None
    if tables.keys() != {section}:
        raise CafedclError(f"{path}: one section [{section}] is expected")
    return read_options(options, tables[section], section)


def read_server(folder: Path) -> ServerOptions:
    """Return a server folder's options."""
    return read_place(folder, "server.toml", ServerOptions, "server")


def read_site(folder: Path) -> SiteOptions:
    """Return a site folder's options."""
    return read_place(folder, "site.toml", SiteOptions, "site")


def make_places(
    folder: Path, server: ServerOptions, sites: dict[str, str], simulated: bool
) -> list[Path]:
    """Write a deployment: ``folder/server`` and ``folder/NAME`` for every site, given with its
    data; returns them.
    """
    for site in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", site) or site == "server":
            raise CafedclError(
                f"--site {site}: a name is letters, digits, '.', '_' and '-', and not 'server'"
            )
    if folder.exists() and any(folder.iterdir()):
        raise CafedclError(f"{folder}: exists and is not empty; choose another folder")
    try:
        return _written(folder, server, sites, simulated)
    except OSError as error:
        raise CafedclError(
            f"{error.filename or folder}: cannot be written: {error.strerror}"
        ) from None


def _written(
    folder: Path, server: ServerOptions, sites: dict[str, str], simulated: bool
) -> list[Path]:
    home = folder / "server"
    for path in (folder, home, home / "sites"):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca = b"" if server.insecure else make_certificates(server.host, folder, home)
    _write(
        home / "server.toml",
        "cafedcl deploy server THIS-FOLDER",
        toml_section("server", server, explain=True),
    )
    run = ["# `cafedcl config` prints every option there is", "", "[data]"]
    run += [
        f'name = "{"digits" if simulated else "sites"}"',
        "",
        "[federation]",
        f"clients = {len(sites)}",
    ]
    _write(home / "run.toml", "cafedcl deploy run THIS-FOLDER", run)
    places = [home]
    for client, (name, data) in enumerate(sites.items()):
        place = folder / name
        place.mkdir(mode=0o700)
        options: dict[str, Any] = {
            "name": name,
            "host": server.host,
            "port": server.port,
            "client": client,
        }
        options |= {"insecure": server.insecure, "data": data}
        lines = toml_section("site", SiteOptions(**options), explain=True)
        _write(place / "site.toml", "cafedcl deploy site THIS-FOLDER", lines)
        if not server.insecure:
            make_node_key(place / "node.key", home / "sites" / f"{name}.pub")
        else:
            (home / "sites" / f"{name}.pub").touch()
        places.append(place)
    if ca:
        for place in places:
            (place / "ca.crt").write_bytes(ca)
    return places


def _write(path: Path, command: str, lines: list[str]) -> None:
    write_secret(path, ("\n".join([f"# {command}", "", *lines]).rstrip() + "\n").encode())


def node_names(server: Path) -> dict[str, str]:
    """Return which node has which site's key, by the sites' names; nothing where there are no keys."""
    try:
        return dict(json.loads((server / NODES).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def site_names(server: Path) -> list[str]:
    """Return the sites that a server expects."""
    return sorted(path.stem for path in (server / "sites").glob("*.pub"))
