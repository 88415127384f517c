"""Draws the folders of the package and their imports into docs/architecture.md.

    python tools/architecture.py            # writes the drawing
    python tools/architecture.py --check    # exit status 1 if the page is not up to date

The drawing is made from the imports in the code, those inside functions included. An arrow is left
out where a longer way says the same: A → C, if A → B → C is there.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cafedcl"
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- drawing -->\n).*?(<!-- /drawing -->)", re.DOTALL)

FLOORS = (
    ("extend", "testing"),
    ("cli",),
    ("compare",),
    ("api",),
    ("terminal",),
    ("deploy",),
    ("export",),
    ("report", "speed"),
    ("federation",),
    ("engine",),
    ("task",),
    ("methods",),
    ("augment",),
    ("functional",),
    ("data",),
    ("models",),
    ("config",),
    ("device",),
    ("core",),
)
"""The folders and modules of the package from the top floor down. Imports point down only."""
FACE = ("__init__", "__main__")
"""The public face, which may import anything and is imported by nobody."""

Arrows = dict[str, set[str]]


def room_of(module: str) -> str:
    """Return the folder, or the module at the top, that a dotted module name belongs to."""
    return module.split(".")[1]


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "cafedcl":
            yield from (f"cafedcl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cafedcl."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if name.startswith("cafedcl."))


def arrows() -> Arrows:
    """Return which rooms each room imports."""
    found: Arrows = {room: set() for floor in FLOORS for room in floor}
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in FACE:
            continue
        modules = imported_modules(ast.parse(file.read_text(encoding="utf-8")))
        found.setdefault(room, set()).update(room_of(module) for module in modules)
        found[room].discard(room)
    return found


def reachable(start: str, graph: Arrows) -> set[str]:
    """Return all rooms that can be reached from one by one arrow or more."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += graph.get(room, ())
    return found


def reduced(graph: Arrows) -> Arrows:
    """Return the arrows that no longer way replaces."""
    return {
        room: {
            other
            for other in others
            if not any(other in reachable(third, graph) for third in others - {other})
        }
        for room, others in graph.items()
    }


def drawing(graph: Arrows) -> str:
    """Return the drawing of the arrows, as Mermaid."""
    lines = ["```mermaid", "graph TD"]
    for room, others in reduced(graph).items():
        lines += [f"    {room} --> {other}" for other in sorted(others)]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Write the drawing, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda match: match[1] + drawing(arrows()) + match[2], before)
    if arguments.check:
        if before != after:
            sys.exit(f"{PAGE}: out of date; run python tools/architecture.py")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
