"""The evaluation tables of one run: evenly spaced rounds, and only the entries that panels show."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.federation.run_folder import RunFolder
from cafedcl.report.run_summary import RunSummary

MOST_FRAMES = 40
"""Rounds whose tables are read, at most."""
WANTED = (
    "server/c",
    "own/all/",
    "notes/",
    "anchors/prototypes",
    "anchors/known",
    "anchors/pool",
    "anchors/labels",
    "loop/",
)
"""Prefixes of the entries to read. Files also hold the state of the model, which can be large."""


@dataclass(frozen=True)
class Frame:
    """The tables of one evaluated round."""

    round: int
    tables: dict[str, Array]


@dataclass(frozen=True)
class Data:
    """Training images per client and class, and the names of the classes."""

    counts: Array
    names: list[str]


@dataclass(frozen=True)
class Film:
    """A run's frames in the order of rounds, and messages about files that could not be read."""

    run: RunSummary
    frames: list[Frame]
    data: Data | None
    problems: list[str]

    def having(self, name: str) -> list[Frame]:
        """Return the frames in which an entry exists and is not all NaN."""
        return [
            frame for frame in self.frames if name in frame.tables and present(frame.tables[name])
        ]

    def latest(self, name: str) -> Array | None:
        """Return an entry of the last round that has it."""
        found = self.having(name)
        return found[-1].tables[name] if found else None


def present(values: Array) -> bool:
    """Return whether an array holds any number besides NaN."""
    return bool(values.size) and not (values.dtype.kind == "f" and bool(np.isnan(values).all()))


def spaced(items: list[Any], most: int) -> list[Any]:
    """Return at most ``most`` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return items
    if most == 1:
        return items[-1:]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def read_film(run: RunSummary, most: int = MOST_FRAMES) -> Film:
    """Read a run's tables; a damaged file is skipped with a message."""
    problems: list[str] = []
    files = [
        file
        for file in sorted((run.path / "evaluations").glob("*.safetensors"))
        if file.stem.isdigit()
    ]
    files = [file for file in files if int(file.stem) < len(run.lines)]
    frames = []
    for file in spaced(files, most):
        try:
            frames.append(Frame(int(file.stem), read_tables(file, WANTED)))
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            problems.append(f"{file}: damaged, left out ({error})")
    return Film(run, frames, read_data(run, problems), problems)


def read_tables(file: Path, wanted: Iterable[str]) -> dict[str, Array]:
    """Return the wanted entries of a packed file."""
    starts = tuple(wanted)
    with safe_open(str(file), framework="numpy") as packed:
        names = [name for name in packed.keys() if name.startswith(starts)]  # noqa: SIM118
        return {name: packed.get_tensor(name) for name in names}


def read_data(run: RunSummary, problems: list[str]) -> Data | None:
    """Return a run's data counts; None, with a message in ``problems``, if the file is damaged."""
    try:
        arrays, header = RunFolder(run.path).data()
    except CafedclError as error:
        problems.append(str(error))
        return None
    return Data(arrays["counts"].astype(np.int64), header["names"])
