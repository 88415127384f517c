"""cafedcl: federated learning for clients whose data are highly imbalanced.

>>> import cafedcl
>>> result = cafedcl.run(method="cafedcl", data="digits", rounds=20)
>>> result.metrics                      # a table, one row per round
>>> result.predict(images)              # classes of new images

Importing the package is cheap: PyTorch is loaded when something needs it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cafedcl.core.version import __version__

if TYPE_CHECKING:
    from cafedcl.api import resume, run, split
    from cafedcl.compare.python import ComparisonResult, sweep
    from cafedcl.compare.run import SweepResult
    from cafedcl.config.sections import Config
    from cafedcl.core.errors import CafedclError
    from cafedcl.federation.callback import Callback, Record
    from cafedcl.federation.result import Run
    from cafedcl.federation.rounds import Federation
    from cafedcl.federation.runs import load
    from cafedcl.task.resolve import resolve

__all__ = [
    "CafedclError",
    "Callback",
    "ComparisonResult",
    "Config",
    "Federation",
    "Record",
    "Run",
    "SweepResult",
    "__version__",
    "compare",
    "export",
    "load",
    "report",
    "resolve",
    "resume",
    "run",
    "split",
    "sweep",
]

_MODULES = {
    "CafedclError": "core.errors",
    "Callback": "federation.callback",
    "ComparisonResult": "compare.python",
    "Config": "config.sections",
    "Federation": "federation.rounds",
    "Record": "federation.callback",
    "Run": "federation.result",
    "SweepResult": "compare.run",
    "load": "federation.runs",
    "resolve": "task.resolve",
    "resume": "api",
    "run": "api",
    "split": "api",
    "sweep": "compare.python",
}
"""The module of every public name."""
_CALLED = {"compare": "compare.python", "export": "api", "report": "api"}
"""Functions that share their name with a folder of the package, and where they are."""


class _CallableFolder(ModuleType):
    """A folder of the package that can be called: ``cafedcl.report("runs")``.

    Python makes a folder an attribute of the package when anything in it is imported, so a function
    of the same name would be available or not, depending on what ran before.
    """

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._function()(*given, **named)

    def _function(self) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(f"cafedcl.{_CALLED[name]}"), name)

    # Notebooks and editors show these two for the function that is about to be called.
    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return str(self._function().__doc__)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(self._function())


class _Package(ModuleType):
    """This package: a folder in `_CALLED` becomes callable as soon as Python imports it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _CallableFolder
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return import_module(f"cafedcl.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'cafedcl' has no attribute '{name}'")
    return getattr(import_module(f"cafedcl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
