"""The command line, run in the test's own process."""

import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cafedcl.cli import main as cli
from cafedcl.compare.processes import RunProcess
from cafedcl.terminal import waiting

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_lines_about_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on how busy the machine is."""
    monkeypatch.setattr(waiting, "WORTH_SHOWING", math.inf)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command; return its exit status and what it printed to both streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cafedcl", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


@pytest.fixture
def processor_seconds(shared_processes: list[RunProcess]) -> Callable[[], float]:
    """Return how many seconds of processors the processes started so far have used: those that
    have ended, and those that wait for another comparison.
    """

    def seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        waiting = 0.0
        for process in shared_processes:
            stat = Path(f"/proc/{process.process.pid}/stat").read_text()
            # The 14th to the 17th field: of the process and of the children it waited for.
            ticks = stat.rpartition(")")[2].split()[11:15]
            waiting += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return used.ru_utime + used.ru_stime + waiting

    return seconds
