"""The house stays in order: imports point down, names are unique, and files are short."""

import ast
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cafedcl"
FILES = sorted(PACKAGE.rglob("*.py"))
architecture = runpy.run_path(str(ROOT / "tools" / "architecture.py"))
density = runpy.run_path(str(ROOT / "tools" / "density.py"))
FLOOR = {room: n for n, rooms in enumerate(architecture["FLOORS"]) for room in rooms}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(file)))


@cache
def libraries_of(file: Path) -> set[str]:
    """Return the packages that a file imports, also inside of functions."""
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    """Which rooms each room imports."""
    return architecture["arrows"]()


@pytest.fixture(scope="module")
def shares() -> dict[str, float]:
    """What makes lines hard to read, per thousand lines."""
    return density["per_thousand"](density["count_all"](FILES))


def test_imports_point_down_only(arrows: dict[str, set[str]]) -> None:
    upward = {
        f"{room} -> {other}"
        for room, others in arrows.items()
        for other in others
        if FLOOR[other] <= FLOOR[room]
    }
    assert upward == set()


def test_every_folder_and_module_has_its_floor() -> None:
    rooms = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in FILES}
    assert rooms - set(architecture["FACE"]) == FLOOR.keys()


def test_the_drawing_on_the_page_is_made_from_the_imports(arrows: dict[str, set[str]]) -> None:
    page = architecture["PAGE"].read_text(encoding="utf-8")
    assert architecture["drawing"](arrows) in page


def test_pytorch_is_not_imported_before_it_is_needed_and_never_by_the_report() -> None:
    """Nor by what only waits for sites. One process imports all, and names who imports PyTorch."""
    modules = ["cafedcl", "cafedcl.cli.main", "cafedcl.cli.deploy"]
    modules += ["cafedcl.deploy.server", "cafedcl.deploy.site"]
    reports = [file.stem for file in (PACKAGE / "report").glob("*.py")]
    modules += [f"cafedcl.report.{name}" for name in sorted(reports) if name != "__init__"]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    subprocess.run([sys.executable, "-c", code, *modules], check=True, cwd=ROOT)


@pytest.mark.parametrize("library", ["typer", "flwr"])
def test_a_library_is_used_in_its_own_folder_only(library: str) -> None:
    home = {"typer": PACKAGE / "cli", "flwr": PACKAGE / "deploy" / "flower"}[library]
    users = {file for file in FILES if library in libraries_of(file)}
    assert users, "nobody uses it"
    assert [file for file in users if home not in file.parents] == []


def calls_of(nodes: Iterable[ast.AST]) -> list[tuple[str, ast.Call]]:
    """Return all calls with the last part of the called name."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            found.append((node.func.id if isinstance(node.func, ast.Name) else name, node))
    return found


def called(call: ast.Call) -> str:
    """Return the last part of a called name."""
    return calls_of([call])[0][0]


def is_safe_to_print(value: ast.expr) -> bool:
    """Return whether a value is our own text, JSON, or a text made printable."""
    if isinstance(value, ast.Call):
        return called(value) in ("printable", "dumps")
    return isinstance(value, ast.Constant)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_text_from_elsewhere_is_read_as_markup_or_printed_raw(file: Path) -> None:
    """Names and messages come from users and their files: "[/]" must not be markup for rich, and
    an escape sequence must not reach the terminal.
    """
    for name, call in calls_of(nodes_of(file)):
        where = f"{file}:{call.lineno}"
        words = {keyword.arg: keyword.value for keyword in call.keywords}
        if name in ("Console", "PrintableConsole", "TextColumn"):
            markup = words.get("markup")
            assert isinstance(markup, ast.Constant), f"{where}: give {name} markup=False"
            assert markup.value is False, f"{where}: give {name} markup=False"
        elif name == "Panel":
            # A panel reads a title that is a str as markup, whatever the console does.
            for title in {"title", "subtitle"} & words.keys():
                value = words[title]
                assert isinstance(value, ast.Call), f"{where}: make the {title} a Text"
                assert called(value) == "Text", f"{where}: make the {title} a Text"
        elif isinstance(call.func, ast.Name) and name == "print":
            assert all(map(is_safe_to_print, call.args)), f"{where}: print(printable(...))"
        elif name == "print":
            assert "markup" not in words, f"{where}: the console has no markup"
        assert name not in ("from_markup", "render_markup"), f"{where}: use Text"


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(f): len(f.read_text(encoding="utf-8").splitlines()) for f in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_a_type_has_one_meaning_across_the_package() -> None:
    homes = defaultdict(list)
    for file in FILES:
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(file.relative_to(PACKAGE)))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name[0].isupper() and not name.isupper():
                    homes[name].append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


TORCHTUNE = {"conditional expressions": 9.0, "parallel assignments": 0.4}
"""Per thousand lines, as docs/architecture.md has it."""


def test_the_code_is_not_denser_than_three_times_torchtune(shares: dict[str, float]) -> None:
    for figure, reference in TORCHTUNE.items():
        assert shares[figure] <= 3 * reference, figure
    assert shares["long lines"] < 0.5, "only lines that end in an instruction to a linter"


def test_the_density_on_the_page_is_the_packages(shares: dict[str, float]) -> None:
    page = architecture["PAGE"].read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| cafedcl |")]
    shown = [float(cell) for cell in row.split("|")[2:6]]
    assert shown == pytest.approx([shares[name] for name in density["FIGURES"]], abs=1.0)
