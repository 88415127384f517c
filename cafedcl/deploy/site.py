"""A running site: its worker and its SuperNode, started and stopped together."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cafedcl.config.options import to_toml
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.folders import SiteOptions
from cafedcl.deploy.programs import ServerProcess, flower_program
from cafedcl.deploy.superlink import Address, free_port

MOST_CRASHES = 5
CRASH_WINDOW = 60.0
"""A worker that ends ``MOST_CRASHES`` times within this number of seconds is not restarted."""
RETRY = 5.0
"""Seconds before a SuperNode that lost its server is restarted."""
REFUSED = "Failed to activate SuperNode"
"""Flower's message for a node whose key is not registered."""


class RunningSite:
    """The processes of a site; a process that ends is restarted unless that cannot help."""

    def __init__(self, folder: Path, options: SiteOptions) -> None:
        self.folder = folder.resolve()
        self.options = options
        self.socket_folder = Path(tempfile.mkdtemp(prefix="cafedcl-"))
        self.crashes: list[float] = []
        self.worker: ServerProcess | None = None
        self.node: ServerProcess | None = None
        try:
            self.worker = self._start_worker()
            self.node = self._start_node()
        except BaseException:
            self.stop()
            raise

    def _start_worker(self) -> ServerProcess:
        path = self.socket_folder / "site.sock"
        path.unlink(missing_ok=True)
        words = [sys.executable, "-m", "cafedcl.deploy.flower.worker", str(path), str(self.folder)]
        # Assigned at once, so that `stop` finds it if waiting fails.
        self.worker = ServerProcess(words, self.folder / "flower", self.folder / "worker.log")
        self.worker.wait_until(path.exists, f"site {self.options.name}: its worker")
        return self.worker

    def _start_node(self) -> ServerProcess:
        options = self.options
        ca = self.folder / "ca.crt"
        address = Address(options.host, options.port, None if options.insecure else ca)
        settings = {"name": options.name, "socket": str(self.socket_folder / "site.sock")}
        words = [flower_program("flower-supernode"), "--superlink", str(address)]
        words += ["--port", str(free_port()), "--node-config"]
        words += [" ".join(f"{name}={to_toml(value)}" for name, value in settings.items())]
        if options.insecure:
            words += ["--insecure"]
        else:
            words += ["--root-certificates", str(ca)]
            words += ["--auth-supernode-private-key", str(self.folder / "node.key")]
        return ServerProcess(words, self.folder / "flower", self.folder / "supernode.log")

    def watch(self, say: Callable[[str], None], pause: float = 0.5) -> None:
        """Restart processes that end; return only by an error."""
        while True:
            assert self.node is not None
            assert self.worker is not None
            if not self.node.alive:
                self._restart_node(self.node.last_error(), say)
            if not self.worker.alive:
                now = time.monotonic()
                self.crashes = [then for then in self.crashes if then > now - CRASH_WINDOW]
                self.crashes.append(now)
                if len(self.crashes) >= MOST_CRASHES:
                    reason = self.worker.last_error()
                    raise CafedclError(
                        f"site {self.options.name}: its worker crashes repeatedly: {reason}"
                    )
                say(f"the worker ended (exit {self.worker.popen.returncode}); restarting it")
                self.worker = self._start_worker()
            time.sleep(pause)

    def _restart_node(self, error: str, say: Callable[[str], None]) -> None:
        """Restart a SuperNode that lost its server; raise an error if the server refused it."""
        if REFUSED in error:
            raise CafedclError(
                f"site {self.options.name}: the server refused it; "
                f"does the server have this site's key? {error}"
            )
        say(f"the SuperNode ended; restarting it: {error}")
        time.sleep(RETRY)
        self.node = self._start_node()

    def stop(self) -> None:
        """Stop both processes."""
        for process in (self.node, self.worker):
            if process is not None:
                process.stop()
        shutil.rmtree(self.socket_folder, ignore_errors=True)
