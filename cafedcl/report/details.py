"""Scores of single clients and classes at the end of one run."""

from typing import Any

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.report.class_scores import OWN, known_means
from cafedcl.report.evaluations import RunEvaluations
from cafedcl.report.full_scores import ranked_classes, reliability, wrong_images

WORST = 6
"""Worst clients that are shown one by one."""
SHOWN_CLASSES = 12
"""Classes of a worst client that are shown, at most."""
MAP_CLIENTS = 200
"""Clients in a map, at most; if there are more, evenly spaced ones are shown."""


def shown_clients(clients: int) -> Array:
    """Return the indices of the clients that maps show."""
    if clients <= MAP_CLIENTS:
        return np.arange(clients)
    return np.linspace(0, clients - 1, MAP_CLIENTS).round().astype(np.int64)


def data_map(evaluations: RunEvaluations) -> dict[str, Any] | None:
    """Return the clients × classes map, and statistics of the data."""
    if evaluations.data is None:
        return None
    counts = evaluations.data.counts
    sizes = counts.sum(1)
    classes = counts.sum(0)
    held = (counts > 0).sum(1)
    return {
        "counts": counts[shown_clients(len(counts))],
        "clients": shown_clients(len(counts)),
        "client_names": list(evaluations.run.client_names),
        "names": evaluations.data.names,
        "seed": evaluations.run.seed,
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


def client_scores(evaluations: RunEvaluations) -> dict[str, Array]:
    """Return the accuracy of every client at the end, by protocol."""
    names = {"server": "server/clients", **{each: f"own/{k}/score" for each, k in OWN.items()}}
    found = {protocol: evaluations.latest(name) for protocol, name in names.items()}
    return {protocol: values for protocol, values in found.items() if values is not None}


def class_recalls(evaluations: RunEvaluations) -> dict[str, Array]:
    """Return the recall per class at the end: of the server's model, and of clients' own models.

    The latter is the mean over the clients that hold the class.
    """
    found: dict[str, Array] = {}
    table = evaluations.latest("server/confusion")
    if table is not None:
        rows = table.sum(1).astype(np.float64)
        found["server"] = table.diagonal() / np.where(rows > 0, rows, np.nan)
    elif (surveyed := evaluations.latest("scores/server/recall")) is not None:
        found["server"] = surveyed
    for protocol, kind in OWN.items():
        recall = evaluations.latest(f"own/{kind}/recall")
        if recall is not None and evaluations.data is not None:
            found[protocol] = known_means(np.where(evaluations.data.counts > 0, recall, np.nan))
    return found


def worst_clients(evaluations: RunEvaluations) -> dict[str, list[dict[str, Any]]]:
    """Return the clients with the lowest accuracy, with their classes, recalls and confidences."""
    if evaluations.data is None:
        return {}
    counts = evaluations.data.counts
    recall = class_recalls(evaluations)
    own = {each: evaluations.latest(f"own/{kind}/recall") for each, kind in OWN.items()}
    confidence = evaluations.latest("notes/confidence")
    if confidence is not None and confidence.shape != counts.shape:
        confidence = None
    found: dict[str, list[dict[str, Any]]] = {}
    for protocol, scores in client_scores(evaluations).items():
        if len(scores) != len(counts):
            continue
        worst_first = np.argsort(np.where(np.isnan(scores), np.inf, scores), kind="stable")
        found[protocol] = []
        for k in map(int, worst_first[:WORST]):
            if np.isnan(scores[k]):
                continue
            recalls = recall.get(protocol)
            of_all = own.get(protocol)
            if of_all is not None:
                recalls = of_all[k]
            largest_first = np.argsort(-counts[k], kind="stable")
            classes = [int(c) for c in largest_first if counts[k, c] > 0][:SHOWN_CLASSES]
            found[protocol].append(
                {
                    "client": k,
                    "accuracy": float(scores[k]),
                    "images": int(counts[k].sum()),
                    "classes": classes,
                    "counts": [int(counts[k, c]) for c in classes],
                    "recall": [None if recalls is None else float(recalls[c]) for c in classes],
                    "confidence": None if confidence is None else confidence[k, classes],
                }
            )
    return found


def details(evaluations: RunEvaluations) -> dict[str, Any]:
    """Return the scores of one run's clients and classes, as far as it has recorded them."""
    found: dict[str, Any] = {
        "seed": evaluations.run.seed,
        "clients": client_scores(evaluations),
        "recall": class_recalls(evaluations),
    }
    found["worst"] = worst_clients(evaluations)
    table = evaluations.latest("server/confusion")
    if table is not None:
        found["confusion"] = table
    found["reliability"] = reliability(evaluations)
    found["ranked"] = ranked_classes(evaluations)
    found["wrong"] = wrong_images(evaluations)
    return found
