"""Small pieces of Markdown."""

import re
from collections.abc import Sequence

CODE = re.compile(r"(`+[^`]+`+)")
SPECIAL = re.compile(r"([\\*_\[\]<>$#|])")
"""Characters that could start emphasis, a link, a tag, a formula, a heading or a table cell."""


def plain(text: str) -> str:
    """Return text of a docstring or a help text as Markdown; only code between backticks counts."""
    parts = CODE.split(text)
    # Every second part is code.
    parts[::2] = [SPECIAL.sub(r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def code(text: str) -> str:
    """Return text as code in a line."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines) + "\n"


def _cell(text: str) -> str:
    # A bar ends the cell even inside of code.
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))
