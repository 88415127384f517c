"""The methods, one file each. A file here is found by its method's name; there is no registry."""

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from cafedcl.config.options import refuse_unreadable
from cafedcl.core.errors import CafedclError, close_name, nearest
from cafedcl.core.imports import (
    check_steps,
    import_path,
    is_module,
    nearest_name,
    where_to_look,
)

SHARED = ("base", "checked")
"""Modules that are not methods, besides those whose names begin with an underscore."""


@cache
def _method_names() -> tuple[str, ...]:
    """Return the names of all methods. Cached: every config that is read asks several times."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    names = (
        name.replace("_", "-")
        for name in modules
        if name not in SHARED and not name.startswith("_")
    )
    return tuple(sorted(names))


def method_names() -> list[str]:
    """Return the names of all methods, without importing them."""
    return list(_method_names())


def is_import_path(name: str) -> bool:
    """Return whether a name is ``module:Class``, and not ``method:preset``."""
    module, colon, _ = name.partition(":")
    if not colon or module in method_names():
        return False
    # A name without a dot that is not a module is more likely a misspelt method.
    return "." in module or is_module(module)


@cache
def _method_class(name: str) -> type[Any]:
    """Return the class in a method's file. Cached: every config that is read asks for it."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    found: type[Any] = next(
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and getattr(cls, "name", None) == name
    )
    return found


def _own_method(name: str) -> type[Any]:
    """Return a class of the user's own, and refuse one that cannot be a method."""
    found = import_path(name, "method")
    # Imported here because it needs PyTorch, as the user's own file does.
    from cafedcl.methods.base import Method

    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise CafedclError(f"method '{name}': it is not a class derived from cafedcl.extend.Method")
    check_steps(found, Method, f"method '{name}'", "loss")
    refuse_unreadable(found.Options, f"method '{name}'")
    return found


def find_method(name: str) -> tuple[type[Any], dict[str, Any]]:
    """Return a method's class and its preset's options.

    The name is ``fedavg``, ``cafedcl:no-geo``, or for a method of your own ``module:Class`` or
    ``module:Class:preset``.
    """
    base, _, preset = name.partition(":")
    if is_import_path(name):
        module, cls, *presets = name.split(":", 2)
        found = _own_method(f"{module}:{cls}")
        return found, _preset(name, found, presets[0]) if presets else {}
    if base not in method_names():
        if ":" in name:
            close = close_name(base, method_names())
            raise CafedclError(
                f"method '{name}': '{base}' is neither a method{f' ({close})' if close else ''} "
                f"nor a Python module in this folder or installed; {where_to_look(name)}"
            )
        hint = nearest_name(base, method_names())
        raise CafedclError(f"method '{base}': there is no such method; {hint}")
    method = _method_class(base)
    return method, _preset(name, method, preset) if ":" in name else {}


def _preset(name: str, method: type[Any], preset: str) -> dict[str, Any]:
    if preset not in method.presets:
        known = list(method.presets)
        hint = nearest(preset, known) if known else f"{method.name} has none"
        raise CafedclError(f"method '{name}': there is no such preset; {hint}")
    return dict(method.presets[preset])
