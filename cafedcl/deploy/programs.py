"""Flower's programs as processes, each with its own home folder and without telemetry."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import LOG_ENCODING, optional, python_command, python_path

FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
LOCAL = ("127.0.0.1", "localhost")
"""Hosts that are never reached through a web proxy: they are this machine."""
PATIENCE = 300.0
"""Seconds that a Flower process may take to start or to answer: on a busy machine, Python alone can
take a minute to start. A process that has ended is noticed at once.
"""


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RAISED = "raised: "
"""The text that replaces the frames of a traceback in a log; the exception comes next."""
FRAMES = re.compile(
    r"Traceback \(most recent call last\):(?:\n(?:[ \t].*|(?:INFO|WARNING)\s*:.*))*(?:\n|\Z)"
)
"""A traceback without its last line; lines of other threads may be in between."""
LOGGED_ERROR = re.compile(
    r"^ERROR\s*:\s*(.+?)(?=\n\s*\n|\n[A-Z]+\s*:|\Z)", re.DOTALL | re.MULTILINE
)
RAISED_ERROR = re.compile(rf"^.*{RAISED}(.*: .*)$", re.MULTILINE)
"""An exception with a message: one without, such as CancelledError, is due to the shutdown."""
PLAIN_LINE = re.compile(rf"^(?!.*{RAISED})\S.*$", re.MULTILINE)


def require_flower() -> None:
    """Raise an error that says what to install if Flower is missing."""
    optional("flwr", "flower", "engine.name = flower")


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment variables of a Flower process with its files in ``home``."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    direct = [os.environ.get("NO_PROXY", ""), *LOCAL]
    return {
        **os.environ,
        **LOG_ENCODING,
        **FLOWER_SETTINGS,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join(paths),
        "NO_PROXY": ",".join(filter(None, direct)),
        # The user's own methods and models may be in the current folder.
        "PYTHONPATH": python_path(),
    }


def flower_program(name: str) -> str:
    """Return the path of one of Flower's programs."""
    require_flower()
    return str(Path(sys.executable).with_name(name))


class ServerProcess:
    """A process in its own group that writes to a log and is stopped with all its children.

    It also ends if this process is killed: see `cafedcl.deploy.guard`.
    """

    def __init__(self, words: Sequence[str], home: Path, log: Path) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = log
        with log.open("ab") as out:
            self.begins = out.tell()
            self._read_to = self.begins
            self.popen = _spawn(words, home, out)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.popen.poll() is None

    def wait_until(self, ready: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Wait until ``ready()``; raises if the process ends or takes too long."""
        until = time.monotonic() + patience
        while not ready():
            if not self.alive:
                raise CafedclError(
                    f"{what}: the process ended (exit {self.popen.returncode}): {self.last_error()}"
                )
            if time.monotonic() > until:
                raise CafedclError(f"{what}: not ready within {patience:g} s; see {self.log}")
            time.sleep(0.1)

    def new_lines(self) -> list[str]:
        """Return the whole lines that were logged since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            text, newline, _ = log.read().rpartition(b"\n")
        self._read_to += len(text) + len(newline)
        return text.decode(errors="replace").splitlines()

    def last_error(self) -> str:
        """Return the last logged error, or else the last line, and the path of the log."""
        text = self.log.read_bytes()[self.begins :].decode(errors="replace")
        text = FRAMES.sub(RAISED, COLOUR.sub("", text))
        # Threads that end because of an error may log a useless traceback after it.
        errors = [each for each in LOGGED_ERROR.findall(text) if not each.startswith(RAISED)]
        said = errors or RAISED_ERROR.findall(text) or PLAIN_LINE.findall(text)
        last = " ".join(said[-1].split()) if said else "the log is empty"
        return f"{last} (see {self.log})"

    def stop(self, patience: float = 15.0) -> None:
        """Stop the process and its children: SIGTERM first, then SIGKILL."""
        # Some of Flower's children leave the group and outlive a SIGKILL of the process.
        children = descendants(self.popen.pid)
        try:
            os.killpg(self.popen.pid, signal.SIGTERM)
            self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
        except ProcessLookupError:
            pass  # it has ended already
        self.popen.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on."""
    pairs = _children_and_parents()
    found: list[int] = []
    generation = {pid}
    while generation:
        generation = {child for child, parent in pairs if parent in generation}
        found += generation
    return found


def _children_and_parents() -> list[tuple[int, int]]:
    # Small containers have no `ps`, and systems other than Linux no /proc.
    pairs = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            stat = (process / "stat").read_text(errors="replace")
            # The name, in brackets, may hold spaces and brackets itself.
            _, parent = stat.rpartition(")")[2].split()[:2]
            pairs.append((int(process.name), int(parent)))
    if pairs:
        return pairs
    command = ["ps", "-A", "-o", "pid=,ppid="]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = list(map(int, table.split()))
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _spawn(command: Sequence[str], home: Path, out: BinaryIO) -> "subprocess.Popen[bytes]":
    guarded = [*python_command("cafedcl.deploy.guard"), str(os.getpid()), *command]
    return subprocess.Popen(
        guarded,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env=flower_environment(home),
        start_new_session=True,
    )
