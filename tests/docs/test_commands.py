import click
import pytest
import typer
from site_generator.commands import all_commands, commands_page

from cafedcl.cli.main import app

COMMANDS = dict(all_commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def page() -> str:
    return commands_page()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "cafedcl"])
def test_every_command_has_a_section_with_all_its_options(name: str, page: str) -> None:
    section = page.split(f"## {name}\n")[1].split("\n## ")[0]
    assert COMMANDS[name].help.splitlines()[0][:20] in section
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}`" in section


def test_commands_below_another_are_found() -> None:
    assert {"cafedcl run", "cafedcl deploy", "cafedcl deploy init"} <= set(COMMANDS)
