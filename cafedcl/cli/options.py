"""Options that several commands share, and the flags of a run as options of a command."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from cafedcl.config.flags import FLAGS, Flags
from cafedcl.config.sections import SECTIONS

CommandFunction = Callable[..., None]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Set any option of the config; repeatable."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")
]
JsonRounds = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per round, and nothing else.")
]
RunOut = Annotated[Path | None, typer.Option(help="Run folder; by default a new one under runs/.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunPaths = Annotated[
    list[Path],
    typer.Argument(metavar="RUNS…", help="Run folders, or folders that contain run folders."),
]

COMPOSITE_HELP = {
    "method": "Method, method:preset or method+augmentation; see `cafedcl methods`.",
    "augment": "Tail augmentation; see `cafedcl augmenters`.",
    "split": "Split of the images: dirichlet:0.1, pathological:2,ir=10, iid, …",
    "attack": "Make clients lie, for experiments: label-flip:2, sign-flip:4,claim=most, …",
    "privacy": "Noise that hides every client: clients:1.0,budget=8; or every "
    "image: records:3.0,budget=8.",
    "defence": "Server step that resists lying clients: peers (recommended), clip, median, …",
}
"""Help for the flags that stand for a whole section of the config."""


def with_flags(*names: str) -> Callable[[CommandFunction], CommandFunction]:
    """Add an option for each named flag of a run to a command.

    The options take the place of the command's parameter ``flags``, which receives their values as
    a `Flags` dictionary. Their types and help texts come from the config itself.
    """

    def decorate(command: CommandFunction) -> CommandFunction:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "flags":
                parameters += [flag_parameter(name) for name in names]
            else:
                parameters.append(parameter)

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            flags = {name: given.pop(name, None) for name in names}
            command(flags=flags, **given)

        # Typer reads the options from these two attributes, and not from the wrapper's code.
        made: Any = wrapper
        made.__signature__ = signature.replace(parameters=parameters)
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


def flag_parameter(name: str) -> inspect.Parameter:
    """Return a flag as a parameter of a command."""
    kind = get_type_hints(Flags)[name]
    # Without a name of its own, Typer would give a boolean flag an opposite, such as --no-strict.
    words = ["--" + name.replace("_", "-")] if kind == bool | None else []
    option = typer.Option(*words, help=flag_help(name))
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


def flag_help(name: str) -> str:
    """Return the meaning of the option that a flag sets, as a sentence."""
    if name in COMPOSITE_HELP:
        return COMPOSITE_HELP[name]
    section, _, key = FLAGS[name].partition(".")
    meanings = {
        field.name: str(field.metadata["meaning"])
        for field in dataclasses.fields(SECTIONS[section])
    }
    text = meanings[key].rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
