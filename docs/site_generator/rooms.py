"""The drawing of the package's folders as a table; GitHub draws it, the website does not."""

import re

from site_generator.markdown import code, table

ARROW = re.compile(r"^\s*(\w+) --> (\w+)$", re.MULTILINE)


def imports_table(drawing: str) -> str:
    """Return which folder imports which, from the arrows of a drawing in Mermaid's language."""
    imported: dict[str, list[str]] = {}
    for room, below in ARROW.findall(drawing):
        imported.setdefault(room, []).append(code(below))
    rows = [[code(room), ", ".join(its)] for room, its in imported.items()]
    text = "What each folder imports; imports that follow from others are left out.\n\n"
    return text + table(["folder", "imports"], rows)
