"""cafedcl: federated learning for clients whose data are highly imbalanced.

>>> import cafedcl
>>> result = cafedcl.run(method="cafedcl", data="digits", rounds=20)
>>> result.metrics                      # a table, one row per round
>>> result.predict(images)              # classes of new images

Importing the package is cheap: PyTorch is loaded when something needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cafedcl.api import Run, load, run
    from cafedcl.config import Config, resolve
    from cafedcl.errors import CafedclError
    from cafedcl.federation import Federation, Record, Watcher

__version__ = "0.1.0"

__all__ = ["CafedclError", "Config", "Federation", "Record", "Run", "Watcher", "load", "resolve", "run"]

_HOME = {
    "CafedclError": "errors",
    "Config": "config",
    "Federation": "federation",
    "Record": "federation",
    "Run": "api",
    "Watcher": "federation",
    "load": "api",
    "resolve": "config",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cafedcl' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"cafedcl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
