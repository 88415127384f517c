"""Your own models, methods and data sources, by import path."""

import importlib
from typing import Any

from cafedcl.errors import CafedclError


def import_path(path: str, what: str) -> Any:
    """Return the object that ``package.module:name`` names."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise CafedclError(f"{what} '{path}': cannot be imported: {error}") from None
