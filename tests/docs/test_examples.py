"""Commands that stand on the pages exist, with all their options."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer

from cafedcl.cli.main import app

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
