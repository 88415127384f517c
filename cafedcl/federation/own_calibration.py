"""Calibration of a run's model on images that somebody has, such as those of a hospital.

A deployment has no validation images at the server, and classes may be more or less common where a
model is used than where it was trained. So whoever has labelled images can fit the probabilities to
these, and the limits of what is usual.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from cafedcl.config.data_options import DataOptions
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.steps import step
from cafedcl.core.tensors import Tensors
from cafedcl.data import Dataset, load_dataset
from cafedcl.data.grey_values import WHOLE_16_BITS, Window
from cafedcl.federation.final_scores import MOST_DESCRIBED
from cafedcl.federation.served_model import GIVEN, ServedModel
from cafedcl.functional.calibration import fit_calibration, log_frequencies
from cafedcl.functional.novelty import LEAST, fit_limits, pixel_statistics


def load_labelled(name: str | Path, shape: Shape, window: Window, folder: str) -> Dataset:
    """Return labelled images as a run's model takes them.

    ``window`` is the run's, and ``folder`` where data files are.
    """
    channels, height, width = shape
    limits = ",".join(f"{limit:g}" for limit in window.limits)
    data = load_dataset(
        DataOptions(
            name=str(name),
            dir=folder,
            size=height if height == width else 0,
            colours={1: "grey", 3: "rgb"}.get(channels, "auto"),
            window="auto" if window.limits == WHOLE_16_BITS.limits or not limits else limits,
        )
    )
    if data.shape != shape:
        raise CafedclError(
            f"{name}: its images have the shape {data.shape}, but those of the run have {shape}"
        )
    return data


def calibration_on(
    model: ServedModel, data: Dataset, where: str | Path, at_a_time: int, *, all_images: bool
) -> Tensors:
    """Return the calibration of a model on the test images of a data set, or on all its images.

    A site that took part in training has trained on the others.
    """
    data = data.relabelled(model.classes, str(where))
    x, y = data.test_x, data.test_y
    if all_images:
        x, y = torch.cat([data.train_x, x]), torch.cat([data.train_y, y])
    if len(y) < LEAST:
        which = "images" if all_images else "images for testing"
        raise CafedclError(f"{where}: {len(y)} {which}; a calibration needs at least {LEAST}")

    def each(function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([function(part) for part in x.split(at_a_time)])

    with step("calibrating", len(y), "images"), torch.no_grad():
        counts = torch.bincount(y, minlength=len(model.classes))
        temperature, prior = fit_calibration(each(model.scores), y, log_frequencies(counts))
        described = {
            "features": each(lambda part: model.network.features(model.normalised(part))),
            "pixels": each(lambda part: pixel_statistics(model.normalised(part))),
        }
    # One half says where the classes are, and the other how far from there images usually are.
    halves = torch.arange(len(y)) % 2 == 0
    known = {name: points[halves][:MOST_DESCRIBED] for name, points in described.items()}
    other = {name: points[~halves] for name, points in described.items()}
    limits = fit_limits(known, y[halves][:MOST_DESCRIBED], other, len(model.classes))
    return {
        "temperature": torch.tensor([temperature]),
        "prior": prior.float(),
        "images": torch.tensor([len(y)]),
        GIVEN: torch.ones(1),
        **limits,
    }


def recalibrated(tables: Tensors, prefix: str, calibration: Tensors) -> Tensors:
    """Return a run's tables with another calibration of one of its models."""
    others = {name: value for name, value in tables.items() if not name.startswith(prefix)}
    return {**others, **{prefix + name: value for name, value in calibration.items()}}
