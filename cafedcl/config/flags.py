"""Options with their own flag: on the command line, in `cafedcl.run` and in studies.

Every other option is set by its full name, such as ``--set train.lr=0.05``.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

from cafedcl.config.privacy_options import replaced_privacy
from cafedcl.config.sections import full_name, section_of
from cafedcl.config.split_options import replaced_split
from cafedcl.config.trust_options import replaced_attack, replaced_defence
from cafedcl.core.errors import CafedclError, nearest

FLAGS = {
    "method": "method.name",
    "augment": "augment.name",
    "data": "data.name",
    "data_dir": "data.dir",
    "group": "data.group",
    "strict": "data.strict",
    "model": "model.name",
    "split": "split",
    "attack": "attack",
    "defence": "defence",
    "privacy": "privacy",
    "clients": "federation.clients",
    "rounds": "federation.rounds",
    "seed": "run.seed",
    "device": "engine.device",
    "engine": "engine.name",
}
"""The option that each flag sets; ``split``, ``attack``, ``defence`` and ``privacy`` set their
whole section, as in ``dirichlet:0.1``.
"""


def base_of(method: str) -> str:
    """Return a method's name without its preset and its tail augmentation.

    After a colon, a capital letter begins the class of a module, and any other letter a preset.
    """
    first, *rest = method.partition("+")[0].split(":")
    return f"{first}:{rest[0]}" if rest and rest[0][:1].isupper() else first


def replaced_method(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a method section with another name, without the options of another method."""
    before = section.get("name")
    other = before is not None and base_of(str(before)) != base_of(name)
    return {"name": name} if other else {**section, "name": name}


SHORT_FORMS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "method": replaced_method,
    "split": replaced_split,
    "attack": replaced_attack,
    "defence": replaced_defence,
    "privacy": replaced_privacy,
}
"""The flags that change more than one option: each returns its section with the text applied."""


class RunFlags(TypedDict, total=False):
    """The flags besides ``method`` and ``data``, with their types; None is no change."""

    augment: str | None
    data_dir: str | None
    group: str | None
    strict: bool | None
    model: str | None
    split: str | None
    attack: str | None
    defence: str | None
    privacy: str | None
    clients: int | None
    rounds: int | None
    seed: int | None
    device: str | None
    engine: str | None


class Flags(RunFlags, total=False):
    """All flags."""

    method: str | None
    data: str | None


def instead_of(name: str, others: Iterable[str]) -> str:
    """Return what the user probably means by a flag that does not exist."""
    option = full_name(name)
    if option is not None and not get_close_matches(name, FLAGS, cutoff=0.8):
        return f"it is an option: settings={{'{option}': …}}"
    return nearest(name, [*FLAGS, *others])


def check_flags(flags: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise CafedclError for a flag that does not exist.

    ``others`` are arguments of the called function that are not flags.
    """
    for name in flags:
        if name not in FLAGS:
            raise CafedclError(f"{name}: there is no such argument; {instead_of(name, others)}")


def set_flags(tables: dict[str, Any], flags: Flags) -> None:
    """Write the given flags into the tables of a config."""
    check_flags(flags)
    for name, value in flags.items():
        if value is None:
            continue
        if name in SHORT_FORMS:
            tables[name] = SHORT_FORMS[name](section_of(tables, name), str(value))
        else:
            section, _, key = FLAGS[name].partition(".")
            section_of(tables, section)[key] = value
