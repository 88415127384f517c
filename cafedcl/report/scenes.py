"""Panels with a slider over rounds: confidence, prototypes and the bias loop of one run.

Rounds count from 1 here, as in all output for people; evaluation tables count from 0.
"""

import math
from typing import Any

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.report.evaluations import Evaluation, RunEvaluations, spaced

CELLS = 120_000
"""Cells (rounds × clients × classes) of the confidence, at most: with many clients and classes,
fewer rounds are shown.
"""
CONFIDENCE_PARTS = {
    "trust": "confidence",
    "data": "confidence_data",
    "val": "confidence_val",
    "gen": "confidence_gen",
}
"""The parts of the confidence, and the client notes that hold them."""
LOOP = ("drift", "feedback", "heterogeneity", "variance")


def collect_confidence(evaluations: RunEvaluations, shown: Array) -> dict[str, Any] | None:
    """Return confidence per round, client and class, its parts, and the aggregation weights.

    ``shown`` are the clients to keep. The weights are confidence / Σ confidence over all clients
    that replied and hold the class.
    """
    rounds = evaluations.having("notes/confidence")
    if evaluations.data is None or not rounds:
        return None
    shape = evaluations.data.counts.shape
    rounds = [each for each in rounds if each.tables["notes/confidence"].shape == shape]
    if not rounds:
        return None
    rounds = spaced(rounds, max(1, CELLS // (len(shown) * shape[1])))
    held = evaluations.data.counts > 0
    masked = evaluations.run.settings.get("method.absent", "mask") == "mask"
    parts: dict[str, list[Array]] = {}
    for evaluation in rounds:
        for part, note in CONFIDENCE_PARTS.items():
            values = evaluation.tables.get(f"notes/{note}")
            if values is not None and values.shape == shape:
                known = np.where(held, values, np.nan) if masked else values
                parts.setdefault(part, []).append(known[shown])
                if part == "trust":
                    parts.setdefault("alpha", []).append(shares(known)[shown])
    whole = {part: np.stack(stack) for part, stack in parts.items() if len(stack) == len(rounds)}
    return {"rounds": [evaluation.round + 1 for evaluation in rounds], "parts": whole}


def shares(trust: Array) -> Array:
    """Return confidence / Σ confidence over clients, per class; NaN where a client has none."""
    total = np.nansum(trust, axis=0)
    return np.where(np.isnan(trust), np.nan, trust / np.where(total > 0, total, np.nan))


def collect_prototypes(evaluations: RunEvaluations, classes: int) -> dict[str, Any] | None:
    """Return the global prototypes, projected to one plane for all rounds, and their distances.

    Prototypes are scaled to length 1, because methods compare directions. The ideal distance
    √(2C/(C−1)) is that of a regular simplex on the unit sphere.
    """
    by_round = [(each.round + 1, prototypes_of(each, classes)) for each in evaluations.rounds]
    rounds = [(number, found) for number, found in by_round if found is not None]
    dims = {found.shape[1] for _, found in rounds}
    if not rounds or len(dims) != 1 or classes < 2:
        return None
    points = np.stack([found for _, found in rounds])
    known = ~np.isnan(points).any(2)
    if known.sum() < 3:
        return None
    plane, explained = project(points, known)
    gaps = np.stack([distance_range(found) for found in points])
    return {
        "rounds": [number for number, _ in rounds],
        "xy": plane,
        "explained": explained,
        "distance": {"low": gaps[:, 0], "mean": gaps[:, 1], "high": gaps[:, 2]},
        "nearest": [nearest_pair(found) for found in points],
        "ideal": math.sqrt(2 * classes / (classes - 1)),
    }


def prototypes_of(evaluation: Evaluation, classes: int) -> Array | None:
    """Return one unit prototype per class, NaN for a class without one.

    Several prototypes of a class are averaged.
    """
    tables = evaluation.tables
    if "anchors/prototypes" in tables:
        table = tables["anchors/prototypes"].astype(np.float64)
        if table.ndim != 2 or len(table) != classes:
            return None
        known = tables.get("anchors/known", np.ones(classes, bool)).astype(bool)
        if known.shape != (classes,):
            return None
        table = np.where(known[:, None], table, np.nan)
    elif "anchors/pool" in tables and "anchors/labels" in tables:
        pool = tables["anchors/pool"].astype(np.float64)
        labels = tables["anchors/labels"]
        if pool.ndim != 2 or labels.shape != pool.shape[:1] or not is_index(labels, classes):
            return None
        sums = np.zeros((classes, pool.shape[1]))
        np.add.at(sums, labels, pool)
        table = np.where(np.isin(np.arange(classes), labels)[:, None], sums, np.nan)
    else:
        return None
    length = np.linalg.norm(table, axis=1, keepdims=True)
    return np.asarray(table / np.where(length > 0, length, np.nan))


def is_index(values: Array, size: int) -> bool:
    """Return whether all values are whole numbers from 0 up to a size."""
    return values.dtype.kind in "iu" and bool(((values >= 0) & (values < size)).all())


def project(points: Array, known: Array) -> tuple[Array, list[float]]:
    """Return points of shape (rounds, classes, 2), and the explained variance of both components.

    The principal components are those of all rounds together, so that positions are comparable.
    """
    flat = points[known]
    centre = flat.mean(0)
    _, scale, axes = np.linalg.svd(flat - centre, full_matrices=False)
    plane = axes[:2]
    # The sign of a principal component is arbitrary; this choice always gives the same picture.
    largest = plane[np.arange(len(plane)), np.abs(plane).argmax(1)]
    plane = plane * np.where(largest < 0, -1, 1)[:, None]
    out = np.full((*points.shape[:2], 2), np.nan)
    out[known] = 0.0
    out[known, : len(plane)] = (flat - centre) @ plane.T
    total = float((scale**2).sum()) or 1.0
    return out, [float(s**2 / total) for s in scale[:2]]


def pairwise_distances(found: Array) -> Array:
    """Return all pairwise distances between unit prototypes; NaN where one is missing."""
    cosine = np.clip(found @ found.T, -1, 1)
    return np.asarray(np.sqrt(2 - 2 * cosine))


def distance_range(found: Array) -> Array:
    """Return the smallest, mean and largest distance between two classes."""
    gaps = pairwise_distances(found)[np.triu_indices(len(found), 1)]
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        return np.full(3, np.nan)
    return np.array([gaps.min(), gaps.mean(), gaps.max()])


def nearest_pair(found: Array) -> list[int] | None:
    """Return the two classes that are closest to each other."""
    gaps = pairwise_distances(found)
    gaps[np.tril_indices(len(gaps))] = np.nan
    if np.isnan(gaps).all():
        return None
    return [int(i) for i in np.unravel_index(np.nanargmin(gaps), gaps.shape)]


def collect_loop(evaluations: RunEvaluations, classes: int) -> dict[str, Any] | None:
    """Return the drift of every global prototype and its parts, if the run has recorded them."""
    recorded = evaluations.having("loop/drift")
    rounds = [each for each in recorded if each.tables["loop/drift"].shape == (classes,)]
    if not rounds:
        return None
    parts: dict[str, Array] = {}
    for name in LOOP:
        tables = [evaluation.tables.get(f"loop/{name}") for evaluation in rounds]
        usable = [table for table in tables if table is not None and table.shape == (classes,)]
        if len(usable) == len(rounds):
            parts[name] = np.stack(usable).astype(np.float64)
    return {"rounds": [evaluation.round + 1 for evaluation in rounds], "parts": parts}
