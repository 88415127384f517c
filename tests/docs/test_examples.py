"""Commands that stand on the pages exist, with all their options, and are not refused."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import NoReturn

import click
import pytest
import typer
from typer.testing import CliRunner

from cafedcl import api
from cafedcl.cli.main import app
from cafedcl.config.sections import Config
from cafedcl.federation.rounds import Federation

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *(HOME / "docs").rglob("*.md")]
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The commands in the blocks of a page; a line that ends in a backslash goes on."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("cafedcl ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    for line in commands(page):
        command = typer.main.get_command(app)
        words = shlex.split(line, comments=True)[1:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0)
            assert name in command.commands, line
            command = command.commands[name]
        command.make_parser(click.Context(command)).parse_args(words)


NEEDS_MORE = re.compile(
    r"--data |--engine |--split file:|--model \w+:|--method \w+:[A-Z]|\.toml|--augment gan"
)
"""Runs with files, libraries or code that are not here, or that train before they begin."""


def runs_on_the_digits() -> list[str]:
    lines = {line.partition("  #")[0].rstrip() for page in PAGES for line in commands(page)}
    return sorted(it for it in lines if it.startswith("cafedcl run") and not NEEDS_MORE.search(it))


@pytest.mark.parametrize("line", runs_on_the_digits())
def test_a_run_on_a_page_can_begin(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is checked and loaded; nothing is trained."""
    begun = []

    def start(config: Config, *_: object) -> NoReturn:
        with Federation(config) as federation:
            begun.append(federation.config.label)
        raise typer.Exit

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "start", start)
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, (done.output, done.exception)
    assert len(begun) == 1


def test_the_pages_have_commands_at_all() -> None:
    assert len([line for page in PAGES for line in commands(page)]) > 50


def test_every_extra_is_on_the_page_of_the_installation() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (HOME / "docs" / "install.md").read_text(encoding="utf-8")
    table = text.partition("## Extras")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(project["optional-dependencies"])
    assert project["requires-python"] == ">=3.11"
    assert "Python 3.11 or newer" in text
