"""The modules of the comparison with other simulators, whose folder is no package."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture(autouse=True)
def gpus_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver hides GPUs from its process if it trains on the CPU; this process is not its own."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.fixture(scope="module")
def peers() -> Any:
    """Return a function that imports a module of the folder, which is no package."""
    sys.path.insert(0, str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def jobs(peers: Any) -> Any:
    return peers("jobs")


@pytest.fixture(scope="module")
def run(peers: Any) -> Any:
    return peers("run")
