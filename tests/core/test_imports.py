"""Code of your own is found by its import path, in the current folder too, or refused in a line."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import cafedcl
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import (
    OWN_CODE,
    import_path,
    is_module,
    optional,
    python_command,
    requirements,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder that Python does not look in, as for a console script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_in_the_current_folder_is_found(folder):
    (folder / "plug_in_here.py").write_text("def make():\n    return 3\n")
    assert import_path("plug_in_here:make", "model")() == 3
    assert "plug_in_here:make (plug_in_here.py)" in OWN_CODE, "an error may be due to it"


def test_a_package_in_the_current_folder_is_found(folder):
    (folder / "plug_in_package").mkdir()
    (folder / "plug_in_package" / "inner.py").write_text("value = 4\n")
    assert import_path("plug_in_package.inner:value", "model") == 4


def test_the_current_folder_is_on_the_path_once_and_only_on_demand(folder):
    assert str(folder) not in sys.path
    is_module("json")
    is_module("json")
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".relative", "no_such_module_at_all", "json.nothing", "a b", "a\0b"]
)
def test_what_is_no_module_is_said(name, folder):
    assert not is_module(name)
    with pytest.raises(CafedclError, match="cannot be imported: there is no Python module"):
        import_path(f"{name}:thing", "model")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\nraise ValueError('two\\nlines')\n", r"ValueError: two lines \(.*code.py, line 2"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_mod"),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        (
            "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    a: dict = {}\n",
            r"ValueError: mutable default .*code.py, line 3\)$",
        ),
        ("", "has no 'thing'"),
    ],
)
@pytest.mark.parametrize("module", ["{}", "package.{}"])
def test_a_module_that_cannot_be_imported_says_why_and_where(code, words, module, folder, request):
    name = f"broken_{abs(hash(request.node.name))}_code"
    (folder / "package").mkdir()
    for place in (folder, folder / "package"):
        (place / f"{name}.py").write_text(code)
    with pytest.raises(CafedclError, match="cannot be imported: ") as caught:
        import_path(f"{module.format(name)}:thing", "model")
    assert caught.match(words)
    assert "\n" not in str(caught.value)


def test_a_file_in_the_current_folder_takes_no_standard_modules_place(tmp_path):
    (tmp_path / "hashlib.py").write_text("raise SystemExit('executed')")
    command = python_command("cafedcl.core.slug")  # It imports hashlib.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_other_process_is_started_with_the_current_folder_on_its_path():
    package = Path(cafedcl.__file__).parent
    files = [file for file in package.rglob("*.py") if '"-m"' in file.read_text("utf-8")]
    assert [str(file.relative_to(package)) for file in files] == ["core/imports.py"]


def test_an_extra_brings_what_the_project_says() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, packages in project["optional-dependencies"].items():
        found = requirements(extra)
        # Versions are sorted in an installed package.
        assert [sorted(it) for it in found] == [sorted(it) for it in packages], extra
    assert requirements("onn") == ["cafedcl[onn]"]


def test_a_package_that_is_broken_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('no such name')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CafedclError, match="this: broken_package cannot be imported: no such name"):
        optional("broken_package", "hf", "this")


def test_code_that_was_never_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", absent)
    with pytest.raises(CafedclError, match=r"pip install 'cafedcl\[dicom\]'"):
        optional("no_such_module", "dicom", "this")
