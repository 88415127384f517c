"""A running site: its worker and its SuperNode, started and stopped together."""

import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cafedcl.core.commands import cafedcl_command
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import write_atomically
from cafedcl.core.imports import python_command
from cafedcl.core.paths import is_path
from cafedcl.deploy.folders import SiteOptions, lock_folder, read_site
from cafedcl.deploy.keys import (
    make_certificates,
    make_node_key,
    refuse_broken_key,
    refuse_expired,
    refuse_missing,
    write_secret,
)
from cafedcl.deploy.programs import ServerProcess
from cafedcl.deploy.reach import unreachable
from cafedcl.deploy.superlink import Address, free_port

MOST_CRASHES = 5
CRASH_WINDOW = 60.0
"""A worker that ends ``MOST_CRASHES`` times within this number of seconds is not restarted."""
RETRY = 5.0
"""Seconds before a SuperNode that lost its server is restarted."""
REFUSED = "Failed to activate SuperNode"
"""Flower's message for a node whose key is not registered, or that is still online."""
SENT_AWAY = re.compile(r"^INFO|401 Unauthorized")
"""The last log line of a SuperNode that the server no longer knows: no error, or this one."""
KILLED = 128
"""Beyond this exit status, a signal ended a process, for example because memory ran out."""
REFUSAL_LIMIT = 150.0
"""Seconds after which a refused site gives up. Flower counts a killed node as online for 100 s."""
UNTRUSTED = re.compile(r"certificate verify failed: ([^(.]+)")
"""Python's message for a server whose certificate cannot be verified, and why."""
FOR_PEOPLE = ("enrolled: ", "error: ", "refused: ", "warning: ")
"""Prefixes of the lines in the worker's log that are also shown."""
PROBE = 5.0
"""Seconds between two attempts to reach the server, until one succeeds."""
LATER_PROBE = 30.0
"""Seconds between two attempts from then on: the SuperNode retries silently."""
ADDRESS = "address"
CA = "ca.crt"
READY = "ready"
SECRET = "secret"
"""Files of the folder that worker and SuperNode share: the address of the SuperNode's Runtime API,
its certificate authority, a sign that the worker is ready, and the secret that only the worker has.
"""


def refuse_missing_data(options: SiteOptions) -> None:
    """Raise an error if a site has no data: it must not be online and fail in every run."""
    if not options.data and options.client < 0:
        raise CafedclError(
            f"site {options.name}: it has no data; set data in its site.toml to the path of its "
            "images"
        )
    if not is_path(options.data) or options.data.startswith("hf:"):
        return
    path = Path(options.data).expanduser()
    try:
        if not path.exists():
            wrong = "there is no such path" + ("" if path.is_absolute() else f" in {Path.cwd()}")
        elif path.is_dir() and not any(path.iterdir()):
            wrong = "this folder is empty"
        elif path.is_file() and not path.stat().st_size:
            wrong = "this file is empty"
        else:
            return
    except OSError as error:
        wrong = f"it cannot be read: {error.strerror}"
    raise CafedclError(
        f"site {options.name}: data = {options.data}: {wrong}; set data in its site.toml"
    )


def renew_key(folder: Path) -> Path:
    """Make a new key for a site and return the file with its public part, for the server.

    The private part never leaves the site.
    """
    options = read_site(folder)
    if options.insecure:
        raise CafedclError(f"{folder}: an insecure deployment has no keys")
    public = folder / f"{options.name}.pub"
    make_node_key(folder / "node.key", public)
    return public


class RunningSite:
    """The processes of a site; a process that ends is restarted unless that cannot help.

    The SuperNode talks to the server and executes nothing (``--isolation process``). The worker
    answers its requests. The two recognise each other by a certificate and a secret that are
    created at every start, so no other program on this machine can take the place of either.
    """

    def __init__(self, folder: Path, options: SiteOptions) -> None:
        self.folder = folder.resolve()
        self.options = options
        refuse_missing_data(options)
        if not options.insecure:
            # Otherwise the SuperNode would end immediately, again and again.
            renew = cafedcl_command("deploy", "renew", folder)
            renewed = f"`{renew}` makes a new one, which the server has to admit"
            refuse_missing(
                self.folder,
                {"ca.crt": "copy it from the server's folder", "node.key": renewed},
            )
            refuse_broken_key(self.folder / "node.key")
        refuse_expired(self.folder)
        self.lock = lock_folder(self.folder, "site")
        self.runtime = Path(tempfile.mkdtemp(prefix="cafedcl-"))
        self.crashes: list[float] = []
        self.refused_since: float | None = None
        self.next_probe = 0.0
        self.was_unreachable: bool | None = None
        """None until it has been tried."""
        self.was_untrusted = False
        self.worker: ServerProcess | None = None
        self.node: ServerProcess | None = None
        try:
            write_secret(self.runtime / SECRET, secrets.token_bytes(32))
            authority = make_certificates("127.0.0.1", self.runtime)
            (self.runtime / CA).write_bytes(authority)
            # The site is online as soon as the SuperNode runs, so its worker must be ready.
            self.worker = self._start_worker()
            self.node = self._start_node()
        except BaseException:
            self.stop()
            raise

    def _start_worker(self) -> ServerProcess:
        ready = self.runtime / READY
        ready.unlink(missing_ok=True)
        words = python_command("cafedcl.deploy.flower.worker")
        words += [str(self.folder), str(self.runtime)]
        # Assigned at once, so that `stop` finds it if waiting fails.
        self.worker = ServerProcess(words, self.folder / "flower", self.folder / "worker.log")
        self.worker.wait_until(ready.exists, f"site {self.options.name}: its worker")
        return self.worker

    def _start_node(self) -> ServerProcess:
        options = self.options
        ca = self.folder / "ca.crt"
        address = Address(options.host, options.port, None if options.insecure else ca)
        port = free_port()
        write_atomically(self.runtime / ADDRESS, f"127.0.0.1:{port}".encode())
        words = python_command("cafedcl.deploy.flower.supernode")
        words += ["--superlink", str(address)]
        words += ["--isolation", "process"]
        words += ["--superexec-auth-secret-file", str(self.runtime / SECRET)]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        words += ["--ssl-ca-certfile", str(self.runtime / CA)]
        words += ["--ssl-certfile", str(self.runtime / "server.crt")]
        words += ["--ssl-keyfile", str(self.runtime / "server.key")]
        if options.insecure:
            words += ["--insecure"]
        else:
            words += ["--root-certificates", str(ca)]
            words += ["--auth-supernode-private-key", str(self.folder / "node.key")]
        return ServerProcess(words, self.folder / "flower", self.folder / "supernode.log")

    def watch(self, say: Callable[[str], None], pause: float = 0.5) -> None:
        """Restart processes that end; return only by raising an error."""
        while True:
            if time.monotonic() >= self.next_probe:
                self._look_for_server(say)
            assert self.node is not None
            assert self.worker is not None
            for line in self.worker.new_lines():
                # Problems with its data concern only this site and are not reported to the server.
                if line.startswith(FOR_PEOPLE):
                    say(line)
            if not self.worker.alive:
                self._restart_both(self.worker, self.node, say)
            elif not self.node.alive:
                self._restart_node(self.node, say)
            time.sleep(pause)

    def _look_for_server(self, say: Callable[[str], None]) -> None:
        """Report if there is no server, and when there is one."""
        where = f"{self.options.host}:{self.options.port}"
        why = unreachable(self.options.host, self.options.port)
        if why is None:
            self.next_probe = float("inf")
            return
        self.next_probe = time.monotonic() + (PROBE if why else LATER_PROBE)
        if why and not self.was_unreachable:
            say(f"nobody answers at {where} ({why}); trying until the server does")
        elif not why and self.was_unreachable is not False:
            say(f"there is a server at {where}; connecting")
        self.was_unreachable = bool(why)

    def _restart_both(
        self, worker: ServerProcess, node: ServerProcess, say: Callable[[str], None]
    ) -> None:
        """Restart the worker, and the SuperNode, which would wait for its answer forever."""
        now = time.monotonic()
        self.crashes = [then for then in self.crashes if then > now - CRASH_WINDOW]
        self.crashes.append(now)
        if len(self.crashes) >= MOST_CRASHES:
            raise CafedclError(
                f"site {self.options.name}: its worker crashes repeatedly: {worker.last_error()}"
            )
        say(f"the worker ended (exit {worker.popen.returncode}); restarting it")
        node.stop()
        self.worker = self._start_worker()
        self.node = self._start_node()

    def _restart_node(self, node: ServerProcess, say: Callable[[str], None]) -> None:
        """Restart a SuperNode that lost its server; raise an error if it is refused for long."""
        # It may have ended because the certificate expired; then a restart cannot help.
        refuse_expired(self.folder)
        error = node.last_error()
        now = time.monotonic()
        untrusted = UNTRUSTED.search(error)
        said = self.was_untrusted
        self.was_untrusted = untrusted is not None
        if untrusted:
            where = f"{self.options.host}:{self.options.port}"
            if not said:
                say(
                    f"{self.folder / 'ca.crt'} does not vouch for the server at {where} "
                    f"({untrusted[1].strip()}); copy ca.crt from the server's folder, or correct "
                    "host and port in site.toml; trying again"
                )
        elif REFUSED not in error:
            self.refused_since = None
            status = node.popen.returncode
            if SENT_AWAY.search(error) and 0 <= status < KILLED:
                say(
                    "the server closed the connection: probably it was started again, or this "
                    f"site's key was removed or renewed there; connecting again (see {node.log})"
                )
            else:
                say(f"the SuperNode ended (exit {status}); restarting it: {error}")
        elif self.refused_since is None:
            self.refused_since = now
            say(
                f"the server does not accept this site: it does not have the site's key, or the "
                f"site was killed and still counts as online; trying for {REFUSAL_LIMIT:g} s"
            )
        elif now - self.refused_since > REFUSAL_LIMIT:
            raise CafedclError(
                f"site {self.options.name}: the server refused it for {REFUSAL_LIMIT:g} s; "
                f"does the server have this site's key? {error}"
            )
        time.sleep(RETRY)
        self.node = self._start_node()

    def stop(self) -> None:
        """Stop both processes."""
        for process in (self.node, self.worker):
            if process is not None:
                process.stop()
        shutil.rmtree(self.runtime, ignore_errors=True)
        self.lock.close()
