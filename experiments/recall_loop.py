"""A loop that equalises recalls: classes whose validation recall is low get a higher score.

The server adds an offset b_c to the score of every class, and after each round moves it by
η (r̄ − r_c), where r_c is the recall of the class on validation images and r̄ their mean.
docs/theory.md says when that converges, and to what.
"""

import torch
from torch import Tensor

RATE = 0.1
"""η, in units of the scores: an image scores about 1 for its own class."""


def recalls(scores: Tensor, y: Tensor) -> Tensor:
    """Return the share of each class's images that are classified correctly; NaN without any."""
    right = (scores.argmax(1) == y).double()
    return torch.stack([right[y == c].mean() for c in range(scores.shape[1])])


def moved(offsets: Tensor, found: Tensor, rate: float = RATE) -> Tensor:
    """Return the offsets after one turn of the loop; a class without images counts as average."""
    average = found.nanmean()
    return offsets + rate * (average - found.nan_to_num(float(average)))


def offsets_after(scores: Tensor, y: Tensor, turns: int, rate: float = RATE) -> Tensor:
    """Return the offsets after a number of turns on the same validation images."""
    offsets = torch.zeros(scores.shape[1], dtype=scores.dtype)
    for _ in range(turns):
        offsets = moved(offsets, recalls(scores + offsets, y), rate)
    return offsets


def spread(found: Tensor, shares: Tensor) -> float:
    """Return the standard deviation between clients of the accuracy that recalls give them.

    ``shares`` are the class frequencies of each client, (clients, classes).
    """
    return float((shares @ found).std(unbiased=False))
