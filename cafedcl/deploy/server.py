"""A deployment's server: its SuperLink behind a proxy, the registered sites, and the runs."""

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cafedcl.config.sections import Config
from cafedcl.core.commands import cafedcl_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import read_content, write_atomically
from cafedcl.deploy.folders import (
    NODES,
    ServerOptions,
    check_site_name,
    lock_folder,
    node_names,
    read_server,
    run_folders,
    site_names,
)
from cafedcl.deploy.keys import (
    days_left,
    make_certificates,
    read_node_key,
    refuse_expired,
    refuse_missing,
    write_secret,
)
from cafedcl.deploy.programs import ServerProcess, require_flower
from cafedcl.deploy.proxy import nginx_program, start_proxy, write_proxy_config
from cafedcl.deploy.superlink import Address, start_superlink

if TYPE_CHECKING:
    from cafedcl.deploy.flower.control import Control
    from cafedcl.federation.callback import Callback
    from cafedcl.federation.result import Run

NOTICE_DAYS = 60
"""A server warns when its certificate expires within this time."""


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
    def address(self) -> Address:
        """The SuperLink's address, which only this machine can reach."""
        ca = None if self.options.insecure else self.folder / "ca.crt"
        return Address("127.0.0.1", self.options.superlink, ca)

    @property
    def control(self) -> "Control":
        """The SuperLink's interface to its nodes and runs."""
        # Flower takes a second to import, and a server that cannot start does not need it.
        from cafedcl.deploy.flower.control import Control

        return Control(self.address)

    @property
    def secret(self) -> Path:
        """The file with the secret that is needed to execute runs."""
        return self.folder / "runtime.secret"

    def start(self) -> "RunningServer":
        """Start the SuperLink, register the sites' keys, and start the proxy."""
        options = self.options
        listen = options.listen_address
        nginx_program()
        if not options.insecure:
            renew = cafedcl_command("deploy", "renew", self.folder)
            renewed = f"`{renew}` makes new ones; then copy ca.crt to every site"
            refuse_missing(
                self.folder, dict.fromkeys(("ca.crt", "server.crt", "server.key"), renewed)
            )
        refuse_expired(self.folder)
        lock = lock_folder(self.folder, "server")
        running: list[ServerProcess] = []
        try:
            refuse_used_port(listen, options.port, "port")
            refuse_used_port("127.0.0.1", options.superlink, "superlink")
            if not self.secret.exists():
                write_secret(self.secret, secrets.token_bytes(32))
            # Without a database, the SuperLink keeps everything in memory, which is faster. Nothing
            # needs to last: keys are registered at every start, runs resume from their folders.
            words = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
            if options.insecure:
                words += ["--insecure"]
            else:
                files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
                for name, file in files.items():
                    words += [f"--ssl-{name}", str(self.folder / file)]
                words += ["--enable-supernode-auth"]
            log = self.folder / "superlink.log"
            running.append(start_superlink(self.address, self.home, log, words))
            self.register()
            write_proxy_config(
                self.folder,
                listen,
                options.port,
                options.superlink,
                options.insecure,
            )
            running.append(start_proxy(self.folder, listen, options.port))
        except BaseException:
            RunningServer(running, lock).stop()
            raise
        return RunningServer(running, lock)

    def expiry_notice(self) -> str:
        """Return a line that says when the certificate expires, if that is soon."""
        if self.options.insecure:
            return ""
        days = days_left(self.folder)
        if days > NOTICE_DAYS:
            return ""
        return f"the certificate expires in {days} days; see `cafedcl deploy renew --help`"

    def register(self) -> None:
        """Register the keys of all sites at the SuperLink, and remove all others.

        Raises an error at the end if the SuperLink refuses a key; the other keys are registered.
        """
        if self.options.insecure:
            return
        control = self.control
        registered = {node.id for node in control.nodes()}
        names = node_names(self.folder)
        current = {name: names.get(name, "") for name in site_names(self.folder)}
        for node in registered - {*current.values()}:
            control.unregister(node)
        refused: dict[str, str] = {}
        for name in [name for name, node in current.items() if node not in registered]:
            try:
                current[name] = control.register(self.folder / "sites" / f"{name}.pub", name)
            except CafedclError as error:
                refused[name] = str(error)
                del current[name]
        write_atomically(self.folder / NODES, json.dumps(current).encode())
        for name, why in refused.items():
            # Flower remembers removed keys until it ends.
            raise CafedclError(
                f"site {name}: its key is saved, but not accepted now ({why}); if it was removed "
                "before, make a new key with `cafedcl deploy renew` at the site and admit that, or "
                "stop the server and start it again"
            )

    def revoke(self, name: str) -> None:
        """Remove a site; a running server refuses it from now on."""
        self._refuse_without_keys()
        if name not in site_names(self.folder):
            known = ", ".join(site_names(self.folder)) or "none"
            raise CafedclError(f"{self.folder}: there is no site {name}; its sites are: {known}")
        (self.folder / "sites" / f"{name}.pub").unlink()
        self._forget(name)

    def admit(self, name: str, key: Path) -> None:
        """Add a site with its public key, or replace a site's key."""
        self._refuse_without_keys()
        check_site_name(name)
        content = read_node_key(key)
        for other in {*site_names(self.folder)} - {name}:
            known = read_node_key(self.folder / "sites" / f"{other}.pub")
            # A key may end with a comment, which does not make it another key.
            if known.split()[:2] == content.split()[:2]:
                raise CafedclError(
                    f"{key}: this is the key of site {other}; every site needs its own "
                    "(`cafedcl deploy renew`)"
                )
        write_atomically(self.folder / "sites" / f"{name}.pub", content)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Forget which node has a site's key; a running SuperLink is informed at once."""
        names = node_names(self.folder)
        names.pop(name, None)
        write_atomically(self.folder / NODES, json.dumps(names).encode())
        if self.address.healthy():
            self.register()

    def renew(self) -> None:
        """Make a new certificate, with a new authority, whose certificate all sites need."""
        self._refuse_without_keys()
        if self.address.healthy():
            raise CafedclError(f"{self.folder}: stop the server before its certificate is renewed")
        authority = make_certificates(self.options.host, self.folder)
        write_atomically(self.folder / "ca.crt", authority)

    def _refuse_without_keys(self) -> None:
        if self.options.insecure:
            raise CafedclError(f"{self.folder}: an insecure deployment has no keys")

    def sites(self) -> list[dict[str, str]]:
        """Return the sites, whether each is online, and since when."""
        names = {node: name for name, node in node_names(self.folder).items()}
        rows = []
        for node in self.control.nodes():
            if node.status == "online":
                since = node.online_at
            else:
                since = node.offline_at or "never connected"
            name = names.get(node.id) or node.name or node.id
            rows.append({"name": name, "status": node.status, "since": since})
        return rows

    def runs(self) -> list[dict[str, str]]:
        """Return all runs, the newest first, with their folders if they are known here.

        The SuperLink forgets runs when it is restarted; the state of those is read from their
        folders.
        """
        from cafedcl.report.run_summary import read_run

        folders = run_folders(self.folder)
        rows = [
            {
                "run": str(run.id),
                "folder": folders.pop(run.id, ""),
                "status": run.status,
                "seconds": f"{run.seconds:.0f}",
            }
            for run in self.control.runs()
        ]
        listed = {row["folder"] for row in rows}
        for number, folder in reversed(folders.items()):
            # A run that was resumed has several numbers, and a folder may have been removed.
            if folder in listed or not Path(folder).is_dir():
                continue
            listed.add(folder)
            run = read_run(Path(folder))
            rows.append(
                {
                    "run": str(number),
                    "folder": folder,
                    "status": run.state,
                    "seconds": f"{run.seconds:.0f}",
                }
            )
        return rows

    def run(self, config: Config | None, path: Path, callbacks: "Sequence[Callback]") -> "Run":
        """Run a config at the sites; without a config, resume the run at ``path``."""
        # Only a run needs PyTorch; the server itself starts without it.
        from cafedcl.deploy.flower.server_task import conduct
        from cafedcl.deploy.submit import submit_app

        self.check()
        secret = read_content(self.secret)
        return conduct(
            self.folder,
            self.address,
            secret,
            lambda: submit_app(self.control, self.home),
            config,
            path,
            callbacks,
        )

    def check(self) -> None:
        """Raise an error if the certificate has expired or the SuperLink does not answer."""
        refuse_expired(self.folder)
        if not self.address.healthy():
            raise CafedclError(
                f"no SuperLink at {self.address}; "
                f"start it with: {cafedcl_command('deploy', 'server', self.folder)}"
            )


class RunningServer:
    """The processes of a server: its SuperLink and its proxy."""

    def __init__(self, processes: Sequence[ServerProcess], lock: TextIO) -> None:
        self.processes = processes
        self.lock = lock

    def watch(self, say: Callable[[str], None]) -> None:
        """Wait while all processes run; the end of one is an error."""
        say("ready")
        while True:
            for process in self.processes:
                if not process.alive:
                    raise CafedclError(f"a process of the server ended: {process.last_error()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop all processes, the proxy first."""
        for process in reversed(self.processes):
            process.stop()
        self.lock.close()


def refuse_used_port(host: str, port: int, option: str) -> None:
    """Raise an error that names the port if another program listens on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the servers do, so that a port that was in use a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CafedclError(
                f"port {port} of {host} cannot be used: {error.strerror}; see which program has "
                f"it (ss -ltnp), stop it, or change {option} in server.toml"
            ) from None
