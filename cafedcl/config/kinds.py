"""Sections whose options depend on a kind, and their short form, as ``pathological:2,ir=10``."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from cafedcl.config.options import fields_by_name, parse_value, to_toml
from cafedcl.core.errors import CafedclError, nearest


def parse_kind(
    flag: str, text: str, kinds: Mapping[str, str | None], example: str, paths: Collection[str] = ()
) -> dict[str, Any]:
    """Return the section for a short form.

    ``kinds`` are the kinds, each with the option after the colon; ``paths`` are options whose value
    is text even if it reads like a number.
    """
    kind, _, rest = text.partition(":")
    first, comma, others = kind.partition(",")
    if comma and first in kinds:
        raise CafedclError(
            f"--{flag} {text}: a colon is expected after '{first}': "
            f"{first}:{others}{text[len(kind) :]}"
        )
    if kind not in kinds:
        raise CafedclError(
            f"--{flag} {text}: there is no such {flag}; {nearest(kind, list(kinds))}"
        )
    main = kinds[kind]
    table: dict[str, Any] = {"kind": kind}
    for part in filter(None, rest.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals and main and main not in table:
            key = main
            value = part.strip()
        elif not equals:
            raise CafedclError(
                f"--{flag} {text}: '{part}' is not key=value; for example: {example}"
            )
        if key in table:
            raise CafedclError(f"--{flag} {text}: {key} is given twice; leave one of them out")
        table[key] = value if key in paths else parse_value(value)
    return table


def short_form(table: Mapping[str, Any], kinds: Mapping[str, str | None], options: type) -> str:
    """Return the short form of a section, such as ``sign-flip:4,claim=most``.

    Options with the default of the dataclass ``options`` are left out.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    kind = str(table.get("kind", defaults["kind"]))
    main = kinds.get(kind)
    words: list[str] = []
    for name, value in table.items():
        if name == "kind" or value == defaults.get(name):
            continue
        text = value if isinstance(value, str) else to_toml(value)
        # The option after the colon comes first.
        words.insert(0 if name == main else len(words), text if name == main else f"{name}={text}")
    return f"{kind}:{','.join(words)}" if words else kind


def unused_option(
    options: Any, used: Collection[str], own: Mapping[str, Collection[str]], what: str, kind: str
) -> str | None:
    """Return which option a section's kind would ignore, or None.

    ``used`` are the options of the section's ``kind``, ``own`` those that only some kinds have.
    """
    for name, field in fields_by_name(type(options)).items():
        value = getattr(options, name)
        if name not in used and value != field.default:
            kinds = [kind for kind, names in own.items() if name in names]
            users = " or ".join(kinds) or f"another kind of {what}"
            return (
                f"{name} = {to_toml(value)}: the {what} '{kind}' does not use it; "
                f"leave it out, or choose {users}"
            )
    return None
