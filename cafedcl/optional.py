"""Packages that only some commands need."""

import importlib
from typing import Any

from cafedcl.errors import CafedclError


def optional(module: str, package: str, asked: str) -> Any:
    """Import a module that may not be installed; ``asked`` is the option that needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise CafedclError(f"{asked}: {package} cannot be imported: {error}") from None
        raise CafedclError(f"{asked}: {package} is not installed; install it with: pip install {package}") from None
