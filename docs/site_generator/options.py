"""Tables of options: their types, defaults, limits and help texts."""

import dataclasses
from collections.abc import Iterator
from dataclasses import Field
from typing import Any, get_args, get_origin, get_type_hints

from cafedcl.augment import AUGMENTERS, find_augmenter
from cafedcl.config.options import to_toml
from cafedcl.config.sections import SECTIONS
from cafedcl.deploy.folders import ServerOptions, SiteOptions
from site_generator.markdown import code, plain, table

TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
}


def type_words(hint: Any) -> str:
    """Return the type of an option in words."""
    if get_origin(hint) is not tuple:
        return TYPES[hint]
    inner, *rest = get_args(hint)
    if rest == [...]:
        return f"list: {TYPES[inner]}"
    return f"{1 + len(rest)} values: {TYPES[inner]}"


def options_table(options: type[Any]) -> str:
    """Return a table with a row for every option of a dataclass; a sentence if it has none."""
    fields: tuple[Field[Any], ...] = dataclasses.fields(options)
    if not fields:
        return "It has no options.\n\n"
    hints = get_type_hints(options)
    # The meaning comes second, because a phone shows the first two columns.
    rows = [
        [
            code(field.name),
            plain(field.metadata["meaning"]),
            code(to_toml(field.default)),
            plain(str(field.metadata["limits"])),
            type_words(hints[field.name]),
        ]
        for field in fields
    ]
    return table(["option", "meaning", "default", "limits", "type"], rows)


def sections_page() -> str:
    """Return all sections of a config, the augmentations' own options included."""
    return "".join(_sections())


def deployment_files() -> str:
    """Return the options of the files that `cafedcl deploy init` writes."""
    files = {"server.toml": ServerOptions, "site.toml": SiteOptions}
    return "".join(f"### {name}\n\n{options_table(its)}" for name, its in files.items())


def _sections() -> Iterator[str]:
    for name, options in SECTIONS.items():
        yield f"## {name}\n\n{plain(options.__doc__ or '')}\n\n{options_table(options)}"
    yield (
        "## method\n\n`method.name` is the method. Its other options are on the "
        "[page of the method](../methods.md).\n\n"
    )
    yield (
        "## augment\n\n`augment.name` is the [tail augmentation](../augmentation.md), `none` by "
        "default. Its other options depend on it.\n\n"
    )
    for name in AUGMENTERS:
        found = find_augmenter(name)
        yield f"### augment: {name}\n\n{options_table(found.Options)}"
