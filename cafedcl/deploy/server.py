"""A deployment's server: its SuperLink, the sites registered there, and the runs handed to it."""

import ipaddress
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.deploy.places import NODES, ServerOptions, node_names, read_server, site_names
from cafedcl.deploy.programs import ServerProcess, ask, require
from cafedcl.deploy.submit import submit
from cafedcl.deploy.superlink import NAME, Address, start_superlink
from cafedcl.federation.rounds import Watcher
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import Run, load


@dataclass(frozen=True)
class Server:
    """A server folder."""

    folder: Path
    options: ServerOptions

    @classmethod
    def of(cls, folder: Path) -> "Server":
        """Return the server of a folder."""
        require()
        return cls(folder.resolve(), read_server(folder))

    @property
    def home(self) -> Path:
        """Where Flower keeps its files."""
        return self.folder / "flower"

    @property
    def listen(self) -> str:
        """The address to listen on."""
        return self.options.listen or (
            self.options.host if is_loopback(self.options.host) else "0.0.0.0"
        )

    @property
    def address(self) -> Address:
        """Where commands on this machine reach the SuperLink."""
        nearby = self.listen if self.listen not in ("0.0.0.0", "::") else "127.0.0.1"
        return Address(
            nearby, self.options.port, None if self.options.insecure else self.folder / "ca.crt"
        )

    def start(self) -> ServerProcess:
        """Start the SuperLink and register the sites' keys."""
        words = ["--database", str(self.folder / "state.db")]
        if self.options.insecure:
            words += ["--insecure"]
        else:
            files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
            words += [
                word
                for name, file in files.items()
                for word in (f"--ssl-{name}", str(self.folder / file))
            ]
            words += ["--enable-supernode-auth"]
        process = start_superlink(
            self.address, self.listen, self.home, self.folder / "superlink.log", words
        )
        try:
            self.register()
        except BaseException:
            process.stop()
            raise
        return process

    def register(self) -> None:
        """Let every site in that is not yet let in."""
        if self.options.insecure:
            return
        there = {node["node-id"] for node in self.nodes()}
        names = node_names(self.folder)
        for name in site_names(self.folder):
            if names.get(name) not in there:
                key = self.folder / "sites" / f"{name}.pub"
                names[name] = str(
                    ask(self.home, "supernode", "register", str(key), NAME, "--name", name)[
                        "node-id"
                    ]
                )
        write_atomically(self.folder / NODES, json.dumps(names).encode())

    def nodes(self) -> list[dict[str, Any]]:
        """Return what the SuperLink says of its nodes."""
        said: dict[str, Any] = ask(self.home, "supernode", "list", NAME)
        return list(said["nodes"])

    def sites(self) -> list[dict[str, str]]:
        """Return the sites, whether each is online, and since when."""
        names = {node: name for name, node in node_names(self.folder).items()}
        return [
            {
                "name": names.get(node["node-id"], node["node-id"]),
                "status": str(node["status"]),
                "since": str(
                    node["online-at"]
                    if node["status"] == "online"
                    else node["offline-at"] or "never there"
                ),
            }
            for node in self.nodes()
        ]

    def runs(self) -> list[dict[str, str]]:
        """Return the runs that the SuperLink knows."""
        said: dict[str, Any] = ask(self.home, "list", NAME)
        return [
            {
                "run": str(run["run-id"]),
                "status": str(run["status"]),
                "seconds": f"{float(run['elapsed']):.0f}",
            }
            for run in said["runs"]
        ]

    def run(self, config: Config, path: Path, watchers: Sequence[Watcher]) -> Run:
        """Run a config at the sites and return its results."""
        self.check()
        RunFolder.create(path).unlock()
        submit(self.home, config, path, watchers, deployment=str(self.folder))
        return load(path)

    def check(self) -> None:
        """Say in one line if the SuperLink is not there."""
        if not self.address.healthy():
            raise CafedclError(
                f"no SuperLink at {self.address}; start it with: cafedcl deploy server {self.folder}"
            )


def resume_run(folder: Path, path: Path, watchers: Sequence[Watcher]) -> Run:
    """Go on with a run of a deployment."""
    server = Server.of(folder)
    server.check()
    submit(server.home, None, path, watchers, deployment=str(server.folder))
    return load(path)


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def watch(process: ServerProcess, say: Callable[[str], None]) -> None:
    """Wait for as long as the SuperLink runs."""
    say("ready")
    while process.alive:
        time.sleep(0.5)
    raise CafedclError(f"the SuperLink ended: {process.last_words()}")
