"""Scores of class probabilities, one class against the rest: how well images are ranked.

scikit-learn computes them one class at a time. Hundreds of clients' own models are scored, so here
all classes are ranked in one pass; the tests compare the results with scikit-learn's.
"""

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors

RANKED = ("auroc", "auprc", "sensitivity")
"""The names of the scores of `one_against_rest`."""


def one_against_rest(p: Tensor, y: Tensor, specificity: float) -> Tensors:
    """Return AUROC, AUPRC and the sensitivity at a specificity, each (classes).

    ``p`` are the probabilities (images, classes). AUPRC is the average precision. A class has NaN
    if no test image, or every one, belongs to it.
    """
    chance = p.double().numpy(force=True)
    images, classes = chance.shape
    order = np.argsort(-chance, axis=0, kind="stable")
    hit = y.numpy(force=True)[order] == np.arange(classes)
    ranked = np.take_along_axis(chance, order, 0)
    # Images with the same probability pass a threshold together: every count stands for the last
    # of them. What follows then sees one step, and steps of width 0 before it.
    last = np.ones_like(hit)
    last[:-1] = ranked[1:] != ranked[:-1]
    place = np.where(last, np.arange(images)[:, None], images)
    ends = np.minimum.accumulate(place[::-1], axis=0)[::-1]
    found = np.take_along_axis(hit.cumsum(0), ends, 0)
    alarms = ends + 1 - found
    positive = np.maximum(hit.sum(0), 1)
    negative = np.maximum(images - hit.sum(0), 1)
    sensitivity = found / positive
    false_alarms = alarms / negative
    start = np.zeros((1, classes))
    steps = np.diff(false_alarms, axis=0, prepend=start)
    before = np.concatenate([start, sensitivity[:-1]])
    scores = {
        "auroc": (steps * (sensitivity + before) / 2).sum(0),
        "auprc": (np.diff(sensitivity, axis=0, prepend=start) * found / (ends + 1)).sum(0),
        # A tiny tolerance: 1 − 0.95 is a little less than 5 of 100 in floating point.
        "sensitivity": np.where(false_alarms <= 1 - specificity + 1e-9, sensitivity, 0).max(
            0, initial=0
        ),
    }
    undefined = (hit.sum(0) == 0) | (hit.sum(0) == images)
    return {
        name: torch.from_numpy(np.where(undefined, np.nan, value)).float()
        for name, value in scores.items()
    }


def f1_scores(table: Tensor) -> Tensor:
    """Return the F1 score per class from a confusion matrix; NaN for a class without test images.

    It is the harmonic mean of precision and recall.
    """
    right = table.diagonal().double()
    f1 = 2 * right / (table.sum(0) + table.sum(1)).clamp_min(1)
    return f1.masked_fill(table.sum(1) == 0, torch.nan)
