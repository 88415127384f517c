"""Flower's own commands, as processes with a home of their own and nothing sent to anybody."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
PATIENCE = 60.0
"""Seconds that a Flower process has to start or to answer."""


def require() -> None:
    """Say in one line what to install, if Flower is missing."""
    optional("flwr", "cafedcl[flower]", "engine.name = flower")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process that keeps its files in ``home``."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": os.pathsep.join(paths)}


def program(name: str) -> str:
    """Return the path of one of Flower's programs."""
    require()
    return str(Path(sys.executable).with_name(name))


class ServerProcess:
    """A process that is started in a group of its own, writes to a log, and is stopped with all its
    children.
    """

    def __init__(self, words: Sequence[str], home: Path, log: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = log
        with log.open("ab") as out:
            self.begins = out.tell()
            self.popen = _spawn(words, home, out)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def await_(self, ready: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Wait until something is so; raises if the process ends or patience is over."""
        until = time.monotonic() + patience
        while not ready():
            if not self.alive:
                raise CafedclError(
                    f"{what}: the process ended (exit {self.popen.returncode}): {self.last_words()}"
                )
            if time.monotonic() > until:
                raise CafedclError(f"{what}: nothing within {patience:g} s; see {self.log}")
            time.sleep(0.1)

    def last_words(self) -> str:
        """Return the last error that it logged, or else its last line, and where the rest is."""
        text = self.log.read_bytes()[self.begins :].decode(errors="replace")
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        errors = re.findall(r"ERROR\s*:\s*(.+?)(?:\n\s*\n|\Z)", text, re.DOTALL)
        said = errors[-1] if errors else text.strip().rpartition("\n")[2]
        return f"{' '.join(said.split()) or 'it said nothing'} (see {self.log})"

    def stop(self, patience: float = 15.0) -> None:
        """End it and its children, politely, then not; some of Flower's leave the group and outlive
        a hard end.
        """
        children = descendants(self.popen.pid)
        try:
            os.killpg(self.popen.pid, signal.SIGTERM)
            self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
        except ProcessLookupError:
            """It is over already."""
        self.popen.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and that those started."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [
        (int(child), int(parent)) for child, parent in (line.split() for line in table.splitlines())
    ]
    found = list[int]()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in pairs if parent in fresh}
        found += fresh
    return found


def _spawn(words: Sequence[str], home: Path, out: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env=environment(home),
        start_new_session=True,
    )


def ask(home: Path, *words: str) -> Any:
    """Run a `flwr` command against the SuperLink of ``home`` and return what it says as JSON."""
    done = subprocess.run(
        [program("flwr"), *words, "--format", "json"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    start = done.stdout.find("{")
    try:
        said = json.loads(done.stdout[start:])
    except ValueError:
        said = {"success": False, "error-message": done.stderr or done.stdout}
    if done.returncode or not said.get("success", True):
        reason = " ".join(str(said.get("error-message", done.stderr)).split())
        raise CafedclError(f"flwr {' '.join(words[:2])}: {reason or f'exit {done.returncode}'}")
    return said
