"""Starting a SuperLink."""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cafedcl.deploy.programs import ServerProcess, flower_program


@dataclass(frozen=True)
class Address:
    """Address of a SuperLink; without ``ca``, connections use no TLS."""

    host: str
    port: int
    ca: Path | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def healthy(self) -> bool:
        """Return whether a SuperLink answers at this address."""
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        scheme = "https" if self.ca else "http"
        try:
            with urllib.request.urlopen(
                f"{scheme}://{self}/health", timeout=5, context=context
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def start_superlink(address: Address, home: Path, log: Path, words: Sequence[str]) -> ServerProcess:
    """Start a SuperLink that listens on ``address``, and wait until it answers."""
    options = ["--host", address.host, "--port", str(address.port)]
    options += ["--disable-runtime-dependency-installation"]
    process = ServerProcess([flower_program("flower-superlink"), *options, *words], home, log)
    try:
        process.wait_until(address.healthy, f"SuperLink at {address}")
    except BaseException:
        process.stop()
        raise
    return process


def free_port() -> int:
    """Return an unused port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
