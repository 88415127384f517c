"""cafedcl: federated learning for clients whose data are highly imbalanced.

>>> import cafedcl
>>> result = cafedcl.run(method="cafedcl", data="digits", rounds=20)
>>> result.metrics                      # a table, one row per round
>>> result.predict(images)              # classes of new images

Importing the package is cheap: PyTorch is loaded when something needs it.
"""

from typing import TYPE_CHECKING, Any

from cafedcl.core.version import __version__

if TYPE_CHECKING:
    from cafedcl.api import run
    from cafedcl.config.sections import Config
    from cafedcl.core.errors import CafedclError
    from cafedcl.federation.result import Run
    from cafedcl.federation.rounds import Federation
    from cafedcl.federation.runs import load
    from cafedcl.federation.watcher import Record, Watcher
    from cafedcl.task.resolve import resolve

__all__ = [
    "CafedclError",
    "Config",
    "Federation",
    "Record",
    "Run",
    "Watcher",
    "__version__",
    "load",
    "resolve",
    "run",
]

_HOME = {
    "CafedclError": "core.errors",
    "Config": "config.sections",
    "Federation": "federation.rounds",
    "Record": "federation.watcher",
    "Run": "federation.result",
    "Watcher": "federation.watcher",
    "load": "federation.runs",
    "resolve": "task.resolve",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cafedcl' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"cafedcl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
