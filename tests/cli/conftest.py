"""The command line, run in the test's own process."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer.testing

from cafedcl.cli import main as cli
from cafedcl.terminal import waiting

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_lines_about_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on how busy the machine is."""
    monkeypatch.setattr(waiting, "WORTH_SHOWING", math.inf)


@pytest.fixture(scope="session")
def command_line() -> Any:
    """The command line that all calls share."""
    return typer.testing._get_command(cli.app)


@pytest.fixture
def invoke(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command_line: Any
) -> Call:
    """Run a command; return its exit status and what it printed to both streams."""
    monkeypatch.setattr(cli, "app", command_line)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cafedcl", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run
