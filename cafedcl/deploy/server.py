"""A deployment's server: its SuperLink, the registered sites, and the submitted runs."""

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
from cafedcl.deploy.folders import NODES, ServerOptions, node_names, read_server, site_names
from cafedcl.deploy.programs import ServerProcess, require_flower, run_flwr
from cafedcl.deploy.submit import submit
from cafedcl.deploy.superlink import SUPERLINK_NAME, Address, start_superlink
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import Run, load
from cafedcl.federation.watcher import Watcher


@dataclass(frozen=True)
class Server:
    """A server folder."""

    folder: Path
    options: ServerOptions

    @classmethod
    def of(cls, folder: Path) -> "Server":
        """Return the server of a folder."""
        require_flower()
        return cls(folder.resolve(), read_server(folder))

    @property
    def home(self) -> Path:
        """The folder of Flower's files."""
        return self.folder / "flower"

    @property
    def listen(self) -> str:
        """The address to listen on."""
        if self.options.listen:
            return self.options.listen
        return self.options.host if is_loopback(self.options.host) else "0.0.0.0"

    @property
    def address(self) -> Address:
        """The SuperLink's address for commands on this machine."""
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        ca = None if self.options.insecure else self.folder / "ca.crt"
        return Address(host, self.options.port, ca)

    def start(self) -> ServerProcess:
        """Start the SuperLink and register the sites' keys."""
        words = ["--database", str(self.folder / "state.db")]
        if self.options.insecure:
            words += ["--insecure"]
        else:
            files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
            for name, file in files.items():
                words += [f"--ssl-{name}", str(self.folder / file)]
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
        """Register the keys of all sites that are not registered yet."""
        if self.options.insecure:
            return
        registered = {node["node-id"] for node in self.nodes()}
        names = node_names(self.folder)
        for name in site_names(self.folder):
            if names.get(name) not in registered:
                key = self.folder / "sites" / f"{name}.pub"
                words = ["supernode", "register", str(key), SUPERLINK_NAME, "--name", name]
                names[name] = str(run_flwr(self.home, *words)["node-id"])
        write_atomically(self.folder / NODES, json.dumps(names).encode())

    def nodes(self) -> list[dict[str, Any]]:
        """Return the SuperLink's list of nodes."""
        answer: dict[str, Any] = run_flwr(self.home, "supernode", "list", SUPERLINK_NAME)
        return list(answer["nodes"])

    def sites(self) -> list[dict[str, str]]:
        """Return the sites, whether each is online, and since when."""
        names = {node: name for name, node in node_names(self.folder).items()}
        rows = []
        for node in self.nodes():
            if node["status"] == "online":
                since = node["online-at"]
            else:
                since = node["offline-at"] or "never connected"
            rows.append(
                {
                    "name": names.get(node["node-id"], node["node-id"]),
                    "status": str(node["status"]),
                    "since": str(since),
                }
            )
        return rows

    def runs(self) -> list[dict[str, str]]:
        """Return the runs of the SuperLink."""
        answer: dict[str, Any] = run_flwr(self.home, "list", SUPERLINK_NAME)
        return [
            {
                "run": str(run["run-id"]),
                "status": str(run["status"]),
                "seconds": f"{float(run['elapsed']):.0f}",
            }
            for run in answer["runs"]
        ]

    def run(self, config: Config, path: Path, watchers: Sequence[Watcher]) -> Run:
        """Run a config at the sites and return its results."""
        self.check()
        RunFolder.create(path).unlock()
        submit(self.home, config, path, watchers, deployment=str(self.folder))
        return load(path)

    def check(self) -> None:
        """Raise an error if the SuperLink does not answer."""
        if not self.address.healthy():
            raise CafedclError(
                f"no SuperLink at {self.address}; "
                f"start it with: cafedcl deploy server {self.folder}"
            )


def resume_run(folder: Path, path: Path, watchers: Sequence[Watcher]) -> Run:
    """Resume a run of a deployment."""
    server = Server.of(folder)
    server.check()
    submit(server.home, None, path, watchers, deployment=str(server.folder))
    return load(path)


def is_loopback(host: str) -> bool:
    """Return whether an address is the loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def wait_for_end(process: ServerProcess, say: Callable[[str], None]) -> None:
    """Wait while the SuperLink runs; its end is an error."""
    say("ready")
    while process.alive:
        time.sleep(0.5)
    raise CafedclError(f"the SuperLink ended: {process.last_error()}")
