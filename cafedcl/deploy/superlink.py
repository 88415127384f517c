"""A SuperLink, and what the `flwr` command needs to know to talk to it."""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cafedcl.config.options import to_toml
from cafedcl.deploy.programs import ServerProcess, program

NAME = "cafedcl"
"""By which the `flwr` command knows the SuperLink."""


@dataclass(frozen=True)
class Address:
    """Where a SuperLink listens; without ``ca``, it is spoken to without TLS."""

    host: str
    port: int
    ca: Path | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def healthy(self) -> bool:
        """Return whether a SuperLink answers there."""
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        scheme = "https" if self.ca else "http"
        try:
            with urllib.request.urlopen(
                f"{scheme}://{self}/health", timeout=5, context=context
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def introduce(self, home: Path) -> None:
        """Write down for the `flwr` command, in its home, how this SuperLink is reached."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        trust = f"root-certificates = {to_toml(str(self.ca))}" if self.ca else "insecure = true"
        lines = [
            "[superlink]",
            f'default = "{NAME}"',
            "",
            f"[superlink.{NAME}]",
            f'address = "{self}"',
            trust,
        ]
        (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def start_superlink(
    address: Address, listen: str, home: Path, log: Path, words: Sequence[str]
) -> ServerProcess:
    """Start a SuperLink that listens on an address, and wait until it answers at the one given
    first.
    """
    address.introduce(home)
    place = [
        "--host",
        listen,
        "--port",
        str(address.port),
        "--disable-runtime-dependency-installation",
    ]
    process = ServerProcess([program("flower-superlink"), *place, *words], home, log)
    try:
        process.await_(address.healthy, f"SuperLink at {address}")
    except BaseException:
        process.stop()
        raise
    return process


def free_port() -> int:
    """Return a port on the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
