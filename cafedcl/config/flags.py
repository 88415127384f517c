"""Options with their own flag: on the command line, in `cafedcl.run` and in studies.

Every other option is set by its full name, such as ``--set train.lr=0.05``.
"""

from collections.abc import Callable, Mapping
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


SHORT_FORMS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "split": replaced_split,
    "attack": replaced_attack,
    "defence": replaced_defence,
    "privacy": replaced_privacy,
}
"""The flags that stand for a whole section: each returns the section with the text applied."""


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


def instead_of(name: str) -> str:
    """Return what somebody probably means by a flag that does not exist."""
    option = full_name(name)
    if option is not None and not get_close_matches(name, FLAGS, cutoff=0.8):
        return f"it is an option: settings={{'{option}': …}}"
    return nearest(name, list(FLAGS))


def set_flags(tables: dict[str, Any], flags: Flags) -> None:
    """Write the given flags into the tables of a config."""
    for name, value in flags.items():
        if name not in FLAGS:
            raise CafedclError(f"{name}: there is no such argument; {instead_of(name)}")
        if value is None:
            continue
        if name in SHORT_FORMS:
            tables[name] = SHORT_FORMS[name](section_of(tables, name), str(value))
        else:
            section, _, key = FLAGS[name].partition(".")
            section_of(tables, section)[key] = value
