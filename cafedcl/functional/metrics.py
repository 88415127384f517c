"""Scores: every method is evaluated in the same way, from predictions on the test set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.arrays import Array
from cafedcl.core.client_names import MANY_CLIENTS
from cafedcl.core.tensors import Tensors
from cafedcl.functional.ranking import f1_scores

Scores = dict[str, float | None]


def confusion(predicted: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the confusion matrix: how many images of class r (rows) were predicted as c."""
    pairs = y * classes + predicted.to(y)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def recalls(table: Tensor) -> Tensor:
    """Return the recall per class; NaN for a class without test images."""
    return table.diagonal().double() / table.sum(1).double()


def count_correct(predictions: Tensors, y: Tensor, classes: int) -> Tensors:
    """Return how many images of each class were tested, and how many predicted correctly.

    ``predictions`` has predicted classes by name; the counts have the same names.
    """
    counts = {
        name: torch.bincount(y[predicted.to(y) == y], minlength=classes)
        for name, predicted in predictions.items()
    }
    return {"tested": torch.bincount(y, minlength=classes), **counts}


def predictions(scores: Tensor, prior: Tensor) -> Tensor:
    """Return the predicted classes of a client's own model by `KINDS`, (images, kinds).

    ``prior`` is what a client knows of its labels, with −∞ for a class that it does not hold.
    """
    held = scores.masked_fill(prior == -torch.inf, -torch.inf)
    return torch.stack([scores.argmax(1), held.argmax(1), (held + prior).argmax(1)], 1)


def client_accuracy(recall: Tensor, counts: Tensor) -> Tensor:
    """Return Σ_c π_{k,c}·recall_c: the accuracy under each client's own label distribution.

    ``recall`` is (classes) or (clients, classes), ``counts`` (clients, classes). Classes without
    test images are left out.
    """
    if recall.dim() == 1 and counts.dim() == 2 and len(counts) > MANY_CLIENTS:
        # In parts, so that a million clients' tables in double precision do not fill the memory.
        return torch.cat([client_accuracy(recall, part) for part in counts.split(MANY_CLIENTS)])
    tested = ~recall.isnan()
    share = counts.double() * tested
    return (share * recall.nan_to_num()).sum(-1) / share.sum(-1)


def spread_of(values: Tensor) -> Scores:
    """Return mean, population standard deviation and the mean of the worst tenth of the clients."""
    known = np.sort(_known(values.double().numpy(force=True)))
    if not len(known):
        return {"client_mean": None, "client_std": None, "client_worst": None}
    worst = known[: max(1, len(known) // 10)]
    return {
        "client_mean": float(known.mean()),
        "client_std": float(known.std()),
        "client_worst": float(worst.mean()),
    }


def shot_groups(recall: Tensor, counts: Tensor, shots: Sequence[int]) -> Scores:
    """Return the mean recall of many-, medium- and few-shot classes.

    ``shots`` are the numbers of training images over all clients that separate them.
    """
    total = counts.sum(0).numpy(force=True)
    found = recall.numpy(force=True)
    many, few = shots
    groups = {"many": total > many, "medium": (total <= many) & (total >= few), "few": total < few}
    return {name: _mean(found[mask]) for name, mask in groups.items()}


def client_classes(recall: Tensor, counts: Tensor, balanced: str, worst: str) -> Scores:
    """Return two scores of clients' own models from their recalls, (clients, classes), by name.

    Both look only at the classes that a client holds. ``balanced`` is the mean recall of a
    client's classes, averaged over clients. ``worst`` is the recall of the worst class, averaged
    over the clients that hold it.
    """
    held = recall.double().masked_fill(counts <= 0, torch.nan)
    return {
        balanced: _mean(held.nanmean(1).numpy(force=True)),
        worst: _least(held.nanmean(0)),
    }


def _least(values: Tensor) -> float | None:
    known = _known(values.numpy(force=True))
    return float(known.min()) if len(known) else None


def _mean(values: Array) -> float | None:
    known = _known(values)
    return float(known.mean()) if len(known) else None


def _known(values: Array) -> Array:
    return values[~np.isnan(values)]


@dataclass(frozen=True)
class Evaluator:
    """Scores predictions under a run's protocol.

    ``counts`` are the training images per client and class, ``y`` the labels of the server's test
    images, if it has any; ``sizes`` is empty under the complete protocol, and under `pfllib` holds
    how many of the test images, in order, belong to each client. ``apart`` says that clients test
    on images of their own, which the server lacks.
    """

    counts: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    shots: tuple[int, int]
    apart: bool = False

    @property
    def classes(self) -> int:
        """C."""
        return self.counts.shape[1]

    def server(self, predicted: Tensor) -> tuple[Scores, Tensors]:
        """Return the scores of the server's model from its predictions, and their tables."""
        table = confusion(predicted, self.y, self.classes)
        recall = recalls(table)
        if self.sizes:
            parts = (predicted.to(self.y) == self.y).double().split(self.sizes)
            clients = torch.stack([part.mean() for part in parts])
        else:
            clients = client_accuracy(recall, self.counts)
        scores = self._scores(table.diagonal(), table.sum(1), clients)
        scores["macro_f1"] = _mean(f1_scores(table).numpy(force=True))
        return scores, {"server/confusion": table.int(), "server/clients": clients.float()}

    def surveyed(self, survey: Tensors) -> tuple[Scores, Tensors]:
        """Return the scores of the server's model from counts at the clients, (clients, classes).

        ``tested`` are their test images, and ``all`` those predicted correctly.
        """
        right = survey["all"]
        tested = survey["tested"]
        clients = right.sum(1).double() / tested.sum(1).double()
        recall = right.sum(0).double() / tested.sum(0).double()
        return self._scores(right.sum(0), tested.sum(0), clients), {
            "server/clients": clients.float(),
            "scores/server/tested": tested.sum(0).int(),
            "scores/server/recall": recall.float(),
        }

    def _scores(self, right: Tensor, tested: Tensor, clients: Tensor) -> Scores:
        recall = right.double() / tested.double()
        return {
            "accuracy": float(right.sum()) / float(tested.sum()) if tested.sum() else None,
            "balanced": _mean(recall.numpy(force=True)),
            "worst_class": _least(recall),
            **spread_of(clients),
            **shot_groups(recall, self.counts, self.shots),
        }

    def own(self, client: int, correct: Tensors) -> Tensors:
        """Return the results of one client's own model: score, accuracy and recalls, for each kind.

        The score is the accuracy under the client's label distribution; where it has test images of
        its own, that is the plain accuracy on them.
        """
        tested = correct["tested"]
        results: Tensors = {}
        for name in correct.keys() - {"tested"}:
            recall = correct[name].double() / tested.double()
            accuracy = correct[name].sum().double() / tested.sum().double()
            score = accuracy
            if not self.sizes and not self.apart:
                score = client_accuracy(recall, self.counts[client])
            results[f"{name}/score"] = score
            results[f"{name}/accuracy"] = accuracy
            results[f"{name}/recall"] = recall
        return {name: value.float() for name, value in results.items()}

    def own_scores(self, table: Tensors) -> Scores:
        """Return the scores over all clients' own models, as far as they were evaluated."""
        counts = self.counts
        if len(counts) >= MANY_CLIENTS:
            scored = (table["round"] >= 0).nonzero().flatten()
            counts = counts[scored]
            table = {name: value[scored] for name, value in table.items()}
        recall = table["all/recall"].double()
        held = spread_of(table["held/score"])
        prior = spread_of(table["prior/score"])
        return {
            "accuracy": _mean(table["all/accuracy"].double().numpy(force=True)),
            "balanced": _mean(recall.nanmean(1).numpy(force=True)),
            **spread_of(table["all/score"]),
            "held_mean": held["client_mean"],
            "held_std": held["client_std"],
            "prior_mean": prior["client_mean"],
            "prior_std": prior["client_std"],
            "prior_worst": prior["client_worst"],
            **client_classes(table["all/recall"], counts, "client_balanced", "worst_class"),
            **client_classes(table["prior/recall"], counts, "prior_balanced", "prior_worst_class"),
            **shot_groups(recall.nanmean(0), self.counts, self.shots),
        }

    def no_own(self) -> Tensors:
        """Return the table of own results before any client was evaluated."""
        clients, classes = self.counts.shape
        scores = {
            f"{kind}/{what}": torch.full((clients,), torch.nan)
            for kind in KINDS
            for what in ("score", "accuracy")
        }
        recall = {f"{kind}/recall": torch.full((clients, classes), torch.nan) for kind in KINDS}
        return {**scores, **recall, "round": torch.full((clients,), -1)}


KINDS = ("all", "held", "prior")
"""Predictions among all classes; among those the client holds, as FedProto's authors test; and
among those with the logarithm of the client's label distribution added to the scores.
"""
