"""The table of a study in which one part of a method at a time is changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction_notes import heading
from reproduction_tables import differences, methods_of

from cafedcl.compare.results import ResultRow, by_setting
from cafedcl.config.options import to_toml

PARTS = ("server.balanced", "server.client_std", "own.client_mean", "own.client_std")


def parts_table(records: Sequence[ResultRow]) -> str:
    """Return the differences of every changed method to the unchanged one, per setting."""
    unchanged = {row["method"] for row in records}
    text = ""
    for setting, mine in by_setting(labelled(records)):
        pairs = [
            (name, name.partition(" with ")[0])
            for name in methods_of(mine)
            if name not in unchanged
        ]
        if pairs:
            text += heading(setting, mine) + differences(mine, pairs, PARTS)
    return text


def labelled(records: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the runs with what was changed in the names of their methods."""
    return [
        {**row, "method": part_label(row["method"], row["changed"]), "changed": {}}
        for row in records
    ]


def part_label(method: str, changed: Mapping[str, Any]) -> str:
    """Return a method with what was changed, such as ``cafedcl:best with tau=0.1``."""
    words = [f"{name.removeprefix('method.')}={to_toml(value)}" for name, value in changed.items()]
    return f"{method} with {', '.join(words)}" if words else method
