"""Is an image unlike anything seen in training? Measured by its distance to the classes.

An image is described in two ways: by the features of a model, and by the mean and the standard
deviation of its pixels, which reveal a black or a blank image at once. In each, its distance is
that to the nearest class, with every coordinate in units of the spread within classes. It is
divided by a limit that nearly all validation images stay within.
"""

import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import distances

KEPT = 0.995
"""The share of the validation images that are within the limit."""
LEAST = 20
"""Validation images that are needed to set a limit."""
NOT_DETECTED = (
    "images unlike those seen in training are not detected: that needs a finished run without "
    f"privacy and with at least {LEAST} validation images for this model"
)
"""The message for a model without limits."""
DESCRIPTIONS = ("features", "pixels")


def pixel_statistics(x: Tensor) -> Tensor:
    """Return the mean and the standard deviation of every channel of normalised images."""
    flat = x.flatten(2)
    return torch.cat([flat.mean(2), flat.std(2, unbiased=False)], 1)


def fit_limits(trained: Tensors, y: Tensor, validated: Tensors, classes: int) -> Tensors:
    """Return centres, spreads and limit of each description; empty without enough images.

    ``trained`` and ``validated`` are descriptions of training and validation images by name, and
    ``y`` the labels of the former.
    """
    if min(len(value) for value in validated.values()) < LEAST or not len(y):
        return {}
    limits: Tensors = {}
    present = torch.bincount(y, minlength=classes) > 0
    for name in DESCRIPTIONS:
        points = trained[name].double()
        sums = points.new_zeros(classes, points.shape[1]).index_add(0, y, points)
        centres = (sums / torch.bincount(y, minlength=classes)[:, None])[present]
        row = present.long().cumsum(0)[y] - 1
        variance = (points - centres[row]).square().mean(0)
        # A coordinate that never varies would make the smallest change infinitely far.
        floor = 1e-3 * variance.mean() + 1e-12
        limits[f"{name}/centres"] = centres.float()
        limits[f"{name}/spread"] = (variance + floor).sqrt().float()
        away = distance(validated[name], limits, name)
        limits[f"{name}/limit"] = away.quantile(KEPT, keepdim=True).clamp_min(1e-12)
    return limits


def distance(points: Tensor, limits: Tensors, name: str) -> Tensor:
    """Return the distance of each description to the nearest class."""
    spread = limits[f"{name}/spread"]
    return distances(points.float() / spread, limits[f"{name}/centres"] / spread).amin(1)


def strangeness(described: Tensors, limits: Tensors) -> Tensor:
    """Return how strange images are: above 1 they are unlike anything seen in training."""
    ratios = [
        distance(described[name], limits, name) / limits[f"{name}/limit"] for name in DESCRIPTIONS
    ]
    return torch.stack(ratios).amax(0)
