"""The commands of `cafedcl` with their arguments and options, from the command line itself."""

from collections.abc import Iterator

import click
import typer

from cafedcl.cli.main import app
from site_generator.markdown import code, plain, table

PROGRAM = "cafedcl"


def commands_page() -> str:
    """Return every command: usage, help text, arguments and options."""
    root = typer.main.get_command(app)
    return "".join(
        command_text(name, command) for name, command in all_commands(root) if name != PROGRAM
    )


def all_commands(
    command: click.Command, name: str = PROGRAM
) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all that are below it, by their whole names."""
    yield name, command
    if isinstance(command, click.Group):
        for word, below in command.commands.items():
            yield from all_commands(below, f"{name} {word}")


def command_text(name: str, command: click.Command) -> str:
    """Return one command as a section."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}\n\n```text\n{usage}\n```\n\n{plain(command.help or '')}\n\n"]
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    if arguments:
        rows = [[code(one.human_readable_name), meaning(one)] for one in arguments]
        parts.append(table(["argument", "meaning"], rows))
    if options:
        parts.append(table(["option", "value", "meaning"], list(map(option_row, options))))
    return "".join(parts)


def option_row(option: click.Option) -> list[str]:
    """Return the row of an option: its names, its value and its help text."""
    names = ", ".join(map(code, [*option.opts, *option.secondary_opts]))
    value = "" if option.is_flag else code(option.metavar or option.type.name.upper())
    return [names, value, meaning(option)]


def meaning(parameter: click.Parameter) -> str:
    """Return the help text of an argument or option, and its default if it has one."""
    text = plain(getattr(parameter, "help", None) or "")
    if parameter.required:
        return f"{text} Required."
    if _is_worth_saying(parameter.default):
        return f"{text} Default: {code(str(parameter.default))}."
    return text


def _is_worth_saying(default: object) -> bool:
    return (
        isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    )
