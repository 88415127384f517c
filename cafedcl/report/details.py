"""What one run tells of its clients and its classes at the end."""

from typing import Any

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.report.frames import Film

WORST = 6
"""Clients that are looked at one by one."""
MOST_CLIENTS = 200
"""Clients in a map; of more, evenly spaced ones are shown."""


def shown_clients(clients: int) -> Array:
    """Return the clients that maps show."""
    if clients <= MOST_CLIENTS:
        return np.arange(clients)
    return np.linspace(0, clients - 1, MOST_CLIENTS).round().astype(np.int64)


def data_map(film: Film) -> dict[str, Any] | None:
    """Return the clients × classes map and the numbers that matter about it."""
    if film.data is None:
        return None
    counts = film.data.counts
    sizes = counts.sum(1)
    classes = counts.sum(0)
    held = (counts > 0).sum(1)
    return {
        "counts": counts[shown_clients(len(counts))],
        "clients": shown_clients(len(counts)),
        "names": film.data.names,
        "seed": film.run.seed,
        "totals": classes,
        "numbers": {
            "images": int(sizes.sum()),
            "clients": len(counts),
            "smallest": int(sizes.min()),
            "largest": int(sizes.max()),
            "classes_held": float(held.mean()),
            "imbalance": float(classes.max() / classes.min()) if classes.min() else None,
        },
    }


def client_scores(film: Film) -> dict[str, Array]:
    """Return the clients' accuracies at the end, by protocol."""
    names = {"server": "server/clients", "own": "own/all/score"}
    found = {protocol: film.latest(name) for protocol, name in names.items()}
    return {
        protocol: values
        for protocol, values in found.items()
        if values is not None and values.ndim == 1
    }


def class_recalls(film: Film) -> dict[str, Array]:
    """Return the recall per class at the end: of the server's model, and the mean over the clients'
    own.
    """
    found: dict[str, Array] = {}
    table = film.latest("server/confusion")
    if table is not None:
        rows = table.sum(1).astype(np.float64)
        found["server"] = table.diagonal() / np.where(rows > 0, rows, np.nan)
    recall = film.latest("own/all/recall")
    if recall is not None:
        found["own"] = column_means(recall)
    return found


def column_means(values: Array) -> Array:
    """Return the mean of every column without what is missing; NaN for a column that is all
    missing.
    """
    number = (~np.isnan(values)).sum(0)
    return np.asarray(np.nansum(values, axis=0) / np.where(number > 0, number, np.nan))


def worst_clients(film: Film) -> dict[str, list[dict[str, Any]]]:
    """Return the clients with the lowest accuracy and why: their classes, the recall of each, and
    their confidence.
    """
    if film.data is None:
        return {}
    counts = film.data.counts
    recall = class_recalls(film)
    own = film.latest("own/all/recall")
    trust = film.latest("notes/confidence")
    found: dict[str, list[dict[str, Any]]] = {}
    for protocol, scores in client_scores(film).items():
        if len(scores) != len(counts):
            continue
        order = [
            int(k) for k in np.argsort(np.where(np.isnan(scores), np.inf, scores), kind="stable")
        ]
        found[protocol] = []
        for k in order[:WORST]:
            if np.isnan(scores[k]):
                continue
            rows = own[k] if protocol == "own" and own is not None else recall.get(protocol)
            classes = [int(c) for c in np.argsort(-counts[k], kind="stable") if counts[k, c] > 0]
            found[protocol].append(
                {
                    "client": k,
                    "accuracy": float(scores[k]),
                    "images": int(counts[k].sum()),
                    "classes": classes[:12],
                    "counts": [int(counts[k, c]) for c in classes[:12]],
                    "recall": [None if rows is None else float(rows[c]) for c in classes[:12]],
                    "confidence": None
                    if trust is None or trust.shape != counts.shape
                    else trust[k, classes[:12]],
                }
            )
    return found


def details(film: Film) -> dict[str, Any]:
    """Return everything about one run's clients and classes; what a run does not have is left out."""
    found: dict[str, Any] = {
        "seed": film.run.seed,
        "clients": client_scores(film),
        "recall": class_recalls(film),
    }
    found["worst"] = worst_clients(film)
    table = film.latest("server/confusion")
    if table is not None:
        found["confusion"] = table
    return found
