"""A site at work: its worker and its SuperNode, started together and stopped together."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cafedcl.config.options import to_toml
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.places import SiteOptions
from cafedcl.deploy.programs import ServerProcess, program
from cafedcl.deploy.superlink import Address, free_port

TRIES = 5
WHILE = 60.0
"""A worker that dies so often within so many seconds is not started again."""


RETRY = 5.0
"""Seconds before a SuperNode that could not reach its server is started again."""
REFUSED = "Failed to activate SuperNode"
"""What Flower says to a node whose key nobody registered."""


class RunningSite:
    """The processes of a site; whichever ends is started again, unless there is no use in that."""

    def __init__(self, folder: Path, options: SiteOptions) -> None:
        self.folder = folder.resolve()
        self.options = options
        self.room = Path(tempfile.mkdtemp(prefix="cafedcl-"))
        self.deaths: list[float] = []
        self.node: ServerProcess | None = None
        try:
            self.worker = self._worker()
            self.node = self._node()
        except BaseException:
            self.stop()
            raise

    def _worker(self) -> ServerProcess:
        path = self.room / "site.sock"
        path.unlink(missing_ok=True)
        words = [sys.executable, "-m", "cafedcl.deploy.flower.worker", str(path), str(self.folder)]
        self.worker = ServerProcess(words, self.folder / "flower", self.folder / "worker.log")
        self.worker.await_(path.exists, f"site {self.options.name}: its worker")
        return self.worker

    def _node(self) -> ServerProcess:
        options = self.options
        ca = self.folder / "ca.crt"
        address = Address(options.host, options.port, None if options.insecure else ca)
        safety = ["--insecure"] if options.insecure else ["--root-certificates", str(ca)]
        safety += (
            []
            if options.insecure
            else ["--auth-supernode-private-key", str(self.folder / "node.key")]
        )
        facts = {"name": options.name, "socket": str(self.room / "site.sock")}
        told = " ".join(f"{name}={to_toml(value)}" for name, value in facts.items())
        words = [
            "--superlink",
            str(address),
            "--port",
            str(free_port()),
            "--node-config",
            told,
            *safety,
        ]
        home = self.folder / "flower"
        return ServerProcess(
            [program("flower-supernode"), *words], home, self.folder / "supernode.log"
        )

    def watch(self, say: Callable[[str], None], pause: float = 0.5) -> None:
        """Look after the processes for as long as both can run."""
        while True:
            assert self.node is not None
            if not self.node.alive:
                self._node_again(self.node.last_words(), say)
            if not self.worker.alive:
                now = time.monotonic()
                self.deaths = [then for then in self.deaths if then > now - WHILE] + [now]
                if len(self.deaths) >= TRIES:
                    raise CafedclError(
                        f"site {self.options.name}: its worker dies again: {self.worker.last_words()}"
                    )
                say(f"its worker ended (exit {self.worker.popen.returncode}) and is started again")
                self.worker = self._worker()
            time.sleep(pause)

    def _node_again(self, said: str, say: Callable[[str], None]) -> None:
        """Start a SuperNode again that lost its server; one that the server refuses is the end of
        the site.
        """
        if REFUSED in said:
            raise CafedclError(
                f"site {self.options.name}: the server does not let it in; has it this site's key? {said}"
            )
        say(f"its SuperNode ended and is started again: {said}")
        time.sleep(RETRY)
        self.node = self._node()

    def stop(self) -> None:
        """End both processes."""
        for process in (self.node, getattr(self, "worker", None)):
            if process is not None:
                process.stop()
        shutil.rmtree(self.room, ignore_errors=True)
