"""Your own models, methods and data sources, by import path."""

import importlib
from typing import Any

from cafedcl.core.errors import CafedclError


def import_path(path: str, what: str) -> Any:
    """Return the object that ``package.module:name`` names."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise CafedclError(f"{what} '{path}': cannot be imported: {error}") from None


def optional(module: str, package: str, asked: str) -> Any:
    """Import a module that may not be installed; ``asked`` is the option that needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise CafedclError(f"{asked}: {package} cannot be imported: {error}") from None
        raise CafedclError(
            f"{asked}: {package} is not installed; install it with: pip install {package}"
        ) from None
