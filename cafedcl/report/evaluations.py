"""The evaluation tables of one run: evenly spaced rounds, and only the entries that panels show."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError

from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.core.printable import printable
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_files import read_tables, reason
from cafedcl.federation.run_folder import RunFolder
from cafedcl.report.run_summary import RunSummary

MOST_EVALUATIONS = 40
"""Rounds whose tables are read, at most."""
FEWEST_EVALUATIONS = 2
MOST_NUMBERS = 20_000_000
"""Fewer rounds are read if clients and classes are too many for this limit, but at least two."""
WANTED = (
    "server/c",
    "own/all/",
    "own/prior/",
    "notes/",
    "anchors/prototypes",
    "anchors/known",
    "anchors/pool",
    "anchors/labels",
    "loop/",
    "scores/",
    "wrong/",
)
"""Prefixes of the entries to read. Files also hold the state of the model, which can be large."""
AXES = {
    "server/confusion": ("classes", "classes"),
    "server/clients": ("clients",),
    "own/all/score": ("clients",),
    "own/all/recall": ("clients", "classes"),
    "own/prior/score": ("clients",),
    "own/prior/recall": ("clients", "classes"),
    "scores/server/auroc": ("classes",),
    "scores/server/auprc": ("classes",),
    "scores/server/sensitivity": ("classes",),
    "scores/server/bins": ("bins", "three"),
    "scores/own/bins": ("clients", "bins", "three"),
}
"""The axes of the entries that every method has. Notes and anchors depend on the method, and panels
check what they need of them.
"""
COUNTS = {"server/confusion"}
"""Entries that are whole numbers; the others of `AXES` are fractions."""


@dataclass(frozen=True)
class Evaluation:
    """The tables of one evaluated round."""

    round: int
    tables: dict[str, Array]


@dataclass(frozen=True)
class Data:
    """Training images per client and class, and the names of the classes."""

    counts: Array
    names: list[str]


@dataclass(frozen=True)
class RunEvaluations:
    """A run's evaluated rounds in order, and messages about files that could not be read."""

    run: RunSummary
    rounds: list[Evaluation]
    data: Data | None
    problems: list[str]

    def having(self, name: str) -> list[Evaluation]:
        """Return the rounds in which an entry exists and is not all NaN."""
        return [each for each in self.rounds if name in each.tables and present(each.tables[name])]

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


def read_evaluations(run: RunSummary, most: int = MOST_EVALUATIONS) -> RunEvaluations:
    """Read a run's tables; a damaged file is left out with a message."""
    problems: list[str] = []
    data = read_data(run, problems)
    sizes = {"three": 3}
    if data is not None:
        sizes |= dict(zip(("clients", "classes"), data.counts.shape, strict=True))
    folder = RunFolder(run.path)
    files = {line["round"]: folder.evaluation_file(line["round"]) for line in run.lines}
    # A broken link counts as a file, so that it is reported below.
    there = [number for number, file in files.items() if os.path.lexists(file)]
    rounds = []
    counts = None
    if data is not None:
        counts = data.counts
        most = max(FEWEST_EVALUATIONS, min(most, MOST_NUMBERS // data.counts.size))
    for number in spaced(there, most):
        try:
            tables = read_tables(files[number], number, WANTED, counts)
            check_tables(tables, run.lines[number], sizes)
            rounds.append(Evaluation(number, tables))
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
            problems.append(f"{files[number]}: damaged, left out: {reason(error)}")
    scored = sum(line["server"] is not None or line["own"] is not None for line in run.lines)
    if len(there) < scored:
        missing = scored - len(there)
        problems.append(f"{run.path}/evaluations: {missing} of {scored} scored rounds are missing")
    return RunEvaluations(run, rounds, data, problems)


def check_tables(tables: Mapping[str, Array], line: MetricsLine, sizes: dict[str, int]) -> None:
    """Raise ValueError for a table that does not fit, or is missing though its round was scored.

    ``sizes`` are the known sizes of axes; unknown ones are set by the first table.
    """
    for part, name in (("server", "server/clients"), ("own", "own/all/score")):
        if line[part] is not None and name not in tables:
            raise ValueError(f"{name} is missing")
    for name, axes in AXES.items():
        if name not in tables:
            continue
        values = tables[name]
        kind = "i" if name in COUNTS else "f"
        if values.ndim != len(axes) or values.dtype.kind != kind:
            raise ValueError(f"{name}: a table of {' × '.join(axes)} is expected")
        for axis, size in zip(axes, values.shape, strict=True):
            if size != sizes.setdefault(axis, size):
                raise ValueError(f"{name}: {size} {axis} instead of {sizes[axis]}")


def read_data(run: RunSummary, problems: list[str]) -> Data | None:
    """Return a run's data counts; None, with a message in ``problems``, if the file is damaged."""
    try:
        arrays, header = RunFolder(run.path).data()
    except CafedclError as error:
        problems.append(str(error))
        return None
    return Data(arrays["counts"], [printable(name) for name in header["names"]])
