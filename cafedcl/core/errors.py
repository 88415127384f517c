"""The one exception that users see, and other exceptions in words."""

import inspect
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from cafedcl.core.printable import printable

INSTALLED = (
    f"{Path(__file__).parents[1]}{os.sep}",
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    "<",
)
"""How paths of code that is not the user's begin: cafedcl, Python, packages, built-ins."""


UNRESUMABLE = "cannot be resumed"
"""Words in the error for a run that has to be trained again; a comparison searches for them."""


class CafedclError(Exception):
    """A mistake that the user can correct: one line that says what, where and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def in_words(error: BaseException, place: str = "") -> str:
    """Return an exception's kind and message, and where in the user's own code it happened.

    If no code of the user's was involved, ``place`` is named instead. A CafedclError is returned as
    its message alone.
    """
    if isinstance(error, CafedclError):
        return str(error)
    own = own_frames(error)
    if own:
        place = _place(own[-1].filename, own[-1].lineno)
    return f"{type(error).__name__}: {error}{place}"


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the places in the user's own code that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(INSTALLED)]


def place_of(function: Any) -> str:
    """Return where a function of the user's own is, as the end of a message; empty for others.

    For a class, that is where its ``__init__`` is.
    """
    if inspect.isclass(function):
        function = vars(function).get("__init__")
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None or code.co_filename.startswith(INSTALLED):
        return ""
    return _place(code.co_filename, code.co_firstlineno)


def _place(file: str, line: int | None) -> str:
    return f" ({Path(file).name}, line {line})"


def nearest(word: str, known: "list[str]") -> str:
    """Return "did you mean …?" for a misspelt name, or the list of all names."""
    return close_name(word, known) or f"available: {', '.join(sorted(known))}"


def close_name(word: str, known: "list[str]") -> str:
    """Return "did you mean …?" for a misspelt name; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else ""
