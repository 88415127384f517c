"""Scores per class in one round of a run, with warnings.

They are read from the round's tables, which runs of earlier versions also have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.core.printable import printable
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_files import read_tables, reason
from cafedcl.federation.run_folder import RunFolder

WANTED = ("server/c", "own/all/recall", "own/prior/recall", "scores/tested", "scores/server/")
OWN = {"own": "all", "own-prior": "prior"}
"""The protocols that score clients' own models, and their kinds of predictions."""
SKEWED = 2.0
"""Test labels are skewed if one class has this many times as many images as another."""
ALMOST_ALL = 0.95
"""A model that predicts one class for this share of the images predicts almost only one class."""
HARDLY_ANY = 0.1
"""It must also recognise at most this share of the other classes, on average."""
MOST_NAMED = 5
"""Classes that are listed by name, at most."""


@dataclass(frozen=True)
class ClassScores:
    """Scores per class; an array has one number per class, NaN where it is not known."""

    names: list[str]
    tested: Array | None
    """Test images of each class; None if that was not stored."""
    recall: dict[str, Array]
    """By protocol; of clients' own models, the mean over the clients that hold the class."""
    predicted: Array | None
    """How often the server's model predicts each class; None if that was not stored."""
    balanced: dict[str, float]
    """Balanced accuracy by protocol."""
    one_class: dict[str, str]
    """Warnings about models that predict almost only one class, by protocol."""
    untrained: list[str]
    """The classes for which no client reports training images: there are none, or too few."""

    @property
    def imbalance(self) -> float:
        """The ratio of the largest to the smallest class in test images."""
        if self.tested is None or not (self.tested > 0).any():
            return 1.0
        there = self.tested[self.tested > 0]
        return float(there.max() / there.min())

    @property
    def skewed(self) -> bool:
        """Whether accuracy says little, because most test images belong to few classes."""
        return self.imbalance >= SKEWED

    @property
    def untested(self) -> list[str]:
        """The classes without test images, which no score can include."""
        if self.tested is None:
            return []
        return [name for name, number in zip(self.names, self.tested, strict=True) if not number]

    @property
    def gaps(self) -> list[str]:
        """What classes without training or test images mean, in words; empty if there are none."""
        found = []
        if self.untrained:
            found.append(
                f"classes without reported training images, which are not learned: "
                f"{listed(self.untrained)}"
            )
        if self.untested:
            found.append(
                f"classes without test images, which no score counts: {listed(self.untested)}"
            )
        return found

    def worst(self, protocol: str) -> tuple[str, float] | None:
        """Return the name and the recall of the class with the lowest recall."""
        recall = self.recall.get(protocol)
        if recall is None or np.isnan(recall).all():
            return None
        index = int(np.nanargmin(recall))
        return self.names[index], float(recall[index])

    def score(self, protocol: str, name: str) -> float | None:
        """Return ``balanced`` or ``worst_class`` of a protocol; None for anything unknown."""
        if name == "balanced":
            return self.balanced.get(protocol)
        worst = self.worst(protocol)
        return worst[1] if name == "worst_class" and worst else None


def read_class_scores(path: Path, line: MetricsLine) -> ClassScores:
    """Return the scores per class of a round; raises CafedclError if its tables are damaged."""
    folder = RunFolder(path)
    number = int(line["round"])
    file = folder.evaluation_file(number)
    arrays, header = folder.data()
    names = [printable(name) for name in header["names"]]
    try:
        tables = read_tables(file, number, WANTED, arrays["counts"])
        check_complete(tables, line)
        return summarise_classes(tables, arrays["counts"], names)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        what = "missing" if isinstance(error, FileNotFoundError) else f"damaged: {reason(error)}"
        raise CafedclError(f"{file}: {what}; its scores per class are left out") from None


def check_complete(tables: Mapping[str, Array], line: MetricsLine) -> None:
    """Raise ValueError if a table is missing although its round was scored."""
    for part, needed in (("server", "server/clients"), ("own", "own/all/recall")):
        if line[part] is not None and needed not in tables:
            raise ValueError(f"{needed} is missing")


def summarise_classes(tables: Mapping[str, Array], counts: Array, names: list[str]) -> ClassScores:
    """Return the scores per class from a round's tables and the clients' training images."""
    recall: dict[str, Array] = {}
    balanced: dict[str, float] = {}
    warnings: dict[str, str] = {}
    tested: Array | None = tables.get("scores/tested", tables.get("scores/server/tested"))
    predicted: Array | None = None
    confusion = tables.get("server/confusion")
    if confusion is not None:
        check_shape(confusion, (len(names), len(names)))
        tested = confusion.sum(1)
        predicted = confusion.sum(0)
        recall["server"] = ratio(confusion.diagonal(), tested)
    elif "scores/server/recall" in tables:
        recall["server"] = tables["scores/server/recall"].astype(np.float64)
    if "server" in recall:
        check_shape(recall["server"], (len(names),))
        balanced["server"] = float(np.nanmean(recall["server"]))
        only = only_class(recall["server"], predicted)
        if only is not None:
            warnings["server"] = server_warning(names[only], predicted, only)
    for protocol, kind in OWN.items():
        own = tables.get(f"own/{kind}/recall")
        if own is None:
            continue
        if own.shape == counts.shape and np.isnan(own).all():
            # Every client failed in this round, so none has a model of its own to score.
            continue
        check_shape(own, counts.shape)
        held = np.where(counts > 0, own.astype(np.float64), np.nan)
        recall[protocol] = known_means(held)
        per_client = known_means(held.T)
        if not np.isnan(per_client).all():
            balanced[protocol] = float(np.nanmean(per_client))
        known = held[~np.isnan(held).all(1)]
        stuck = [row for row in known if only_class(row, None) is not None]
        scored = int((~np.isnan(per_client)).sum())
        if stuck and 2 * len(stuck) >= scored:
            warnings[protocol] = (
                f"{len(stuck)} of {scored} clients' own models recognise almost one class only, "
                "although their clients hold several"
            )
    untrained = [name for name, number in zip(names, counts.sum(0), strict=True) if not number]
    return ClassScores(names, tested, recall, predicted, balanced, warnings, untrained)


def skew_words(imbalance: float) -> str:
    """Return that test labels are skewed, as the start of a sentence."""
    return (
        f"test labels are skewed (the largest class has {imbalance:.0f} times as many test images "
        "as the smallest one)"
    )


def listed(names: list[str]) -> str:
    """Return the names of some classes in a sentence."""
    words = ", ".join(names[:MOST_NAMED])
    return f"{words} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else words


def check_shape(values: Array, shape: tuple[int, ...]) -> None:
    """Raise ValueError if an array has another shape, or is nothing but NaN."""
    if values.shape != shape:
        raise ValueError(f"shape {values.shape} instead of {shape}")
    if values.dtype.kind == "f" and np.isnan(values).all():
        raise ValueError("nothing but NaN")


def ratio(part: Array, whole: Array) -> Array:
    """Return part / whole; NaN where the whole is 0."""
    return np.asarray(part / np.where(whole > 0, whole, np.nan), dtype=np.float64)


def known_means(values: Array) -> Array:
    """Return the mean of every column without its NaNs; NaN for a column that has nothing else."""
    number = (~np.isnan(values)).sum(0)
    return ratio(np.nansum(values, axis=0), number)


def only_class(recall: Array, predicted: Array | None) -> int | None:
    """Return the class that a model predicts almost always, although there are others; or None.

    Without its predictions, the recalls show it: one class is always recognised, and no other is.
    """
    known = ~np.isnan(recall)
    if known.sum() < 2:
        return None
    if predicted is None:
        favourite = int(np.nanargmax(recall))
        share = float(recall[favourite])
    else:
        favourite = int(predicted.argmax())
        share = float(predicted[favourite] / max(predicted.sum(), 1))
    known[favourite] = False
    others = float(recall[known].mean())
    return favourite if share >= ALMOST_ALL and others <= HARDLY_ANY else None


def server_warning(name: str, predicted: Array | None, index: int) -> str:
    """Return the warning about a server model that predicts almost one class only."""
    share = ""
    if predicted is not None:
        share = f" ({100 * predicted[index] / predicted.sum():.1f} % of the test images)"
    return (
        f"the server's model predicts almost only the class '{name}'{share}; "
        "its accuracy is little more than the share of that class"
    )
