"""Your own models, methods and data sources, by import path."""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from cafedcl.core.errors import CafedclError, nearest, own_frames, place_of

OWN_CODE: list[str] = []
"""The user's own code in this process, such as ``pull:Pull (pull.py)``, for errors that it may have
caused.
"""


def import_path(path: str, what: str) -> Any:
    """Return the object that ``package.module:name`` names; the module may be in this folder."""
    module, _, attribute = path.partition(":")
    where = f"{what} '{path}'"
    if not is_module(module):
        raise CafedclError(
            f"{where}: cannot be imported: there is no Python module '{module}', neither in this "
            f"folder nor installed; {where_to_look(path)}"
        )
    with explained_failure(f"{where}: cannot be imported"):
        imported = importlib.import_module(module)
    if not attribute or not hasattr(imported, attribute):
        raise CafedclError(
            f"{where}: cannot be imported: {_file_of(imported)} has no '{attribute}'"
        )
    named = f"{path} ({Path(_file_of(imported)).name})"
    if named not in OWN_CODE:
        OWN_CODE.append(named)
    return getattr(imported, attribute)


def check_steps(found: type, base: type, where: str, *required: str) -> None:
    """Refuse a class of the user's own that lacks a step, or has one with other arguments."""
    for name in required:
        if getattr(found, name) is getattr(base, name):
            raise CafedclError(f"{where}: it defines no {name}{place_of(found)}")
    for name, step in inspect.getmembers(found, inspect.isfunction):
        inherited = getattr(base, name, None)
        is_static = isinstance(inspect.getattr_static(found, name), staticmethod)
        if step is inherited or is_static or not inspect.isfunction(inherited):
            continue
        expected = list(inspect.signature(inherited).parameters)
        takes = inspect.signature(step)
        try:
            takes.bind(*expected)
        except TypeError:
            raise CafedclError(
                f"{where}: its {name} takes ({', '.join(takes.parameters)}); "
                f"({', '.join(expected)}) is expected{place_of(step)}"
            ) from None


def nearest_name(name: str, known: list[str]) -> str:
    """Return "did you mean …?" for a name that means the user's own code, or is misspelt."""
    own = _in_this_folder(name)
    return f"did you mean '{own}'?" if own else nearest(name, known)


def where_to_look(path: str) -> str:
    """Return what to do if an import path names no module."""
    own = _in_this_folder(path)
    if own:
        return f"did you mean '{own}'?"
    file = path.partition(":")[0].replace(".", "/") + ".py"
    return f"execute this in the folder that {file} is in, or set PYTHONPATH to that folder"


def _in_this_folder(name: str) -> str:
    """Return the import path that a name such as ``pull``, ``pull.Pull`` or ``pull.py:Pull`` means
    if there is such a file in the current folder; otherwise an empty string.
    """
    module, _, attribute = name.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not attribute and not _names_in(module):
        module, _, attribute = module.rpartition(".")
    names = _names_in(module)
    if not names:
        return ""
    return f"{module}:{attribute or names[0]}"


def _names_in(module: str) -> list[str]:
    """Return the derived classes in a file of the current folder, and then its functions, without
    executing it.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        return []
    try:
        tree = ast.parse(Path(f"{module.replace('.', '/')}.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    return classes + [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def is_module(name: str) -> bool:
    """Return whether Python finds a module of this name, installed or in the current folder."""
    _look_in_current_folder()
    top, _, rest = name.partition(".")
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        if importlib.util.find_spec(top) is None:
            return False
        # A part of a package is found only by importing the package, which may fail in any way;
        # the import itself then says how.
        return not rest or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        # The package is a plain module, or it lacks something that it imports itself.
        return error.name is None or not f"{name}.".startswith(f"{error.name}.")
    except Exception:
        return True


def _look_in_current_folder() -> None:
    """Let Python import modules of the current folder.

    A console script does not: it has its own folder on the path instead. The current folder comes
    first, as it does for ``python -m``. It is added only when the user asks for their own code, so
    that files there cannot replace modules in any other run.
    """
    try:
        folder = str(Path.cwd())
    except OSError:
        # The current folder was deleted.
        return
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    # A module may have been written since the folder was last looked at.
    importlib.invalidate_caches()


LOG_ENCODING = {"PYTHONIOENCODING": "utf-8"}
"""The environment in which another process writes its log as we read it, whatever the locale."""


def python_command(module: str) -> list[str]:
    """Return the command that runs a module of this package in another process.

    -P keeps the current folder off the path: a file there with the name of a standard module would
    be executed in its place.
    """
    return [sys.executable, "-P", "-m", module]


def python_path() -> str:
    """Return the value of PYTHONPATH with which another process finds the modules of this one."""
    return os.pathsep.join(path or str(Path.cwd()) for path in sys.path)


@contextmanager
def explained_failure(what: str, place: str = "") -> Iterator[None]:
    """Turn any error of code that is not ours into one line that names where it happened.

    ``place`` is named if that is in a package, in an object that the user's code had made.
    """
    try:
        yield
    except CafedclError as error:
        raise CafedclError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        # The first two frames are this one and that of the caller.
        frames = traceback.extract_tb(error.__traceback__)
        passed = (__file__, importlib.__file__)
        theirs = [
            frame
            for frame in frames[2:]
            if frame.filename not in passed and not frame.filename.startswith("<frozen ")
        ]
        # The user's own code is the place to look, even if a package that it called has failed.
        own = own_frames(error)
        if own or (theirs and not place):
            last = (own or theirs)[-1]
            place = f" ({last.filename}, line {last.lineno})"
        raise CafedclError(f"{what}: {type(error).__name__}: {error}{place}") from error


def _file_of(module: Any) -> str:
    return str(getattr(module, "__file__", None) or f"the module {module.__name__}")


def optional(module: str, extra: str, asked: str) -> Any:
    """Import a module that may not be installed.

    ``extra`` is the extra of cafedcl that includes it, and ``asked`` is what needs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise CafedclError(f"{asked}: {module} cannot be imported: {error}") from None
        raise CafedclError(
            f"{asked}: {module} is not installed; install the extra {extra}: pip install "
            f"{' '.join(map(shlex.quote, requirements(extra)))}"
        ) from None
    except ImportError as error:
        raise CafedclError(f"{asked}: {module} cannot be imported: {error}") from None


def requirements(extra: str) -> list[str]:
    """Return the packages of an extra, with their versions."""
    try:
        lines = metadata.requires("cafedcl") or []
    except metadata.PackageNotFoundError:
        # The code runs from its folder without being installed.
        lines = []
    named = re.compile(rf"""extra *== *["']{re.escape(extra)}["']""")
    found = [line.partition(";")[0].strip() for line in lines if named.search(line)]
    return found or [f"cafedcl[{extra}]"]
