"""How dense the code of a package is, per thousand lines, beside the packages we learn from.

    python tools/density.py                   # the package of this repository
    python tools/density.py --by-file         # the densest files first
    python tools/density.py PATH…             # other packages, such as a checkout of httpx

A line is one that is not empty. A comment is a `#` comment that is no instruction to a linter; a
parallel assignment has a tuple of expressions on its right (`a, b = b, a` is a swap and does not
count, nor does unpacking a call's result).
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 100
DIRECTIVES = ("# noqa", "# type:", "# fmt:", "#!")


def is_parallel(node: ast.AST) -> bool:
    """Return whether a statement assigns several expressions at once, and is not a swap."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    names = {ast.dump(value).replace("Load", "Store") for value in node.value.elts}
    return any({ast.dump(each) for each in target.elts} != names for target in targets)


def count(text: str) -> Counter[str]:
    """Return the figures of one file."""
    found = Counter(lines=sum(bool(line.strip()) for line in text.splitlines()))
    found["long lines"] = sum(len(line) > LONG for line in text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(DIRECTIVES):
            found["comments"] += 1
    for node in ast.walk(ast.parse(text)):
        found["conditional expressions"] += isinstance(node, ast.IfExp)
        found["parallel assignments"] += is_parallel(node)
    return found


FIGURES = ("comments", "conditional expressions", "parallel assignments", "long lines")


def per_thousand(found: Counter[str]) -> dict[str, float]:
    """Return the figures per thousand lines."""
    return {name: 1000 * found[name] / max(found["lines"], 1) for name in FIGURES}


def count_all(files: Iterable[Path]) -> Counter[str]:
    """Return the figures of many files together."""
    return sum((count(file.read_text(encoding="utf-8")) for file in files), Counter())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "cafedcl"])
    parser.add_argument("--by-file", action="store_true", help="one row per file, densest first")
    arguments = parser.parse_args()
    rows = {str(path): count_all(sorted(path.rglob("*.py"))) for path in arguments.paths}
    if arguments.by_file:
        files = [file for path in arguments.paths for file in sorted(path.rglob("*.py"))]
        rows = {str(file): count_all([file]) for file in files}
        dense = ("conditional expressions", "parallel assignments", "long lines")
        rows = dict(sorted(rows.items(), key=lambda row: -sum(row[1][name] for name in dense)))
    width = max(len(name) for name in rows)
    print(f"{'':{width}}  {'lines':>6}  " + "  ".join(FIGURES))
    for name, found in rows.items():
        shares = per_thousand(found)
        cells = [f"{shares[figure]:{len(figure)}.1f}" for figure in FIGURES]
        print(f"{name:{width}}  {found['lines']:6}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
