"""Calibration of a run's model on a user's own images, such as those of a hospital.

A deployment has no validation images at the server, and classes may be more or less common where a
model is used than where it was trained. So users with labelled images can fit the probabilities to
them, and the limits of what is usual.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cafedcl.config.data_options import DataOptions
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.paths import absolute
from cafedcl.core.rng import stream
from cafedcl.core.steps import step
from cafedcl.core.tensors import Tensors, spaced_rows
from cafedcl.data import ALIASES, Dataset, is_own, load_dataset
from cafedcl.data.grey_values import Window
from cafedcl.federation.final_scores import MOST_DESCRIBED
from cafedcl.federation.served_model import GIVEN, ServedModel
from cafedcl.functional.calibration import fitted_calibration
from cafedcl.functional.novelty import DESCRIPTIONS, LEAST, fit_limits


def load_labelled(
    name: str | Path, options: DataOptions, shape: Shape, window: Window, *, all_images: bool
) -> Dataset:
    """Return labelled images as a run's model takes them.

    ``options``, ``shape`` and ``window`` are the run's. With its columns of clients and groups, the
    test images are the same as in training.
    """
    channels, height, width = shape
    if all_images:
        place = absolute(str(name)) if is_own(str(name)) else str(name)
        if ALIASES.get(place, place) == ALIASES.get(options.name, options.name):
            raise CafedclError(
                f"{name}: the model was trained on these images, so probabilities that are fitted "
                "to all of them would be too certain; leave --all-images out, or give others"
            )
        # Which of them are for testing does not matter, so these columns may be missing.
        options = replace(options, client="", group="")
    chosen = replace(
        options,
        name=str(name),
        images=0,
        size=height if height == width else 0,
        colours={1: "grey", 3: "rgb"}.get(channels, "auto"),
        # Public data sets have 8 bits and need no window.
        window=window.option if is_own(str(name)) else "auto",
    )
    data = load_dataset(chosen)
    if data.shape != shape:
        raise CafedclError(
            f"{name}: its images have the shape {data.shape}, but those of the run have {shape}"
        )
    if data.window and not window.limits:
        raise CafedclError(
            f"{name}: its images have more than 8 bits, and those of the run had not, so no window "
            "says which values are black and white; save them with 8 bits"
        )
    return data


def calibration_on(
    model: ServedModel, data: Dataset, where: str | Path, at_a_time: int, *, all_images: bool
) -> Tensors:
    """Return the calibration of a model on the test images of a data set, or on all its images.

    A site that took part in training has trained on its other images. If the model already knows
    what is usual, it keeps that: the training images are the best source.
    """
    data = data.relabelled(model.classes, str(where))
    x = data.test_x
    y = data.test_y
    groups = data.test_groups
    if all_images:
        x = torch.cat([data.train_x, x])
        y = torch.cat([data.train_y, y])
        groups = torch.cat([data.groups, groups])
    if len(y) < LEAST:
        which = "images" if all_images else "images for testing"
        raise CafedclError(f"{where}: {len(y)} {which}; a calibration needs at least {LEAST}")

    parts = x.split(at_a_time)
    with step("calibrating", len(y), "images"), torch.no_grad():
        counts = torch.bincount(y, minlength=len(model.classes))
        scores = torch.cat([model.scores(part) for part in parts])
        limits = model.limits.tensors()
        if not limits:
            found = [model.described(part) for part in parts]
            described = {name: torch.cat([one[name] for one in found]) for name in DESCRIPTIONS}
            limits = _limits(described, y, groups, len(model.classes))
        fitted = fitted_calibration(scores, y, counts)
        if not fitted["images"]:
            raise CafedclError(
                f"{where}: no image is of a class that this model can predict, so nothing can be "
                "calibrated"
            )
        return {**fitted, GIVEN: torch.ones(1), **limits}


def _limits(described: Tensors, y: Tensor, groups: Tensor, classes: int) -> Tensors:
    """Return limits of what is usual: one half of the images locates the classes, and the other
    half gives the distances of images from them.

    Images of one group, such as a patient, are in the same half.
    """
    numbers = groups.numpy() if len(groups) else np.arange(len(y))
    each = np.unique(numbers)
    drawn = stream(0, "halves of labelled images").permutation(each)[: len(each) // 2]
    first = torch.from_numpy(np.isin(numbers, drawn))
    known = first.nonzero().flatten()
    known = known[spaced_rows(len(known), MOST_DESCRIBED)]
    return fit_limits(
        {name: points[known] for name, points in described.items()},
        y[known],
        {name: points[~first] for name, points in described.items()},
        classes,
    )


def recalibrated(tables: Tensors, prefix: str, calibration: Tensors) -> Tensors:
    """Return a run's tables with one model's calibration replaced."""
    others = {name: value for name, value in tables.items() if not name.startswith(prefix)}
    return {**others, **{prefix + name: value for name, value in calibration.items()}}
