"""Scores of a run's last round that need all probabilities, and the images it got most wrong."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from cafedcl.core.arrays import Array
from cafedcl.report.evaluations import RunEvaluations

RANKED = ("auroc", "auprc", "sensitivity")
"""Scores of each class against the rest."""


def reliability(evaluations: RunEvaluations) -> dict[str, list[dict[str, float]]]:
    """Return the bins of reliability diagrams: the server's, and all clients' own together."""
    found = {}
    for protocol, name in (("server", "scores/server/bins"), ("own", "scores/own/bins")):
        bins = evaluations.latest(name)
        if bins is None:
            continue
        if bins.ndim == 3:
            bins = np.nansum(bins, axis=0)
        found[protocol] = [
            {
                "images": float(images),
                "confidence": 100 * float(confidence) / float(images),
                "accuracy": 100 * float(right) / float(images),
            }
            for images, confidence, right in bins
            if images > 0
        ]
    return found


def ranked_classes(evaluations: RunEvaluations) -> dict[str, Array]:
    """Return AUROC, AUPRC and sensitivity of the server's model, one number per class, in %."""
    found = {name: evaluations.latest(f"scores/server/{name}") for name in RANKED}
    return {name: 100 * values for name, values in found.items() if values is not None}


def wrong_images(evaluations: RunEvaluations) -> list[dict[str, Any]]:
    """Return the test images that the server's model got most wrong, the worst first."""
    parts = {
        name: evaluations.latest(f"wrong/{name}")
        for name in ("images", "labels", "predicted", "probability")
    }
    known = {name: values for name, values in parts.items() if values is not None}
    if len(known) < len(parts) or evaluations.data is None:
        return []
    names = evaluations.data.names
    images = known["images"]
    number = len(images)
    fitting = images.ndim == 4 and images.dtype == np.uint8 and images.shape[1] in (1, 3)
    labelled = all(values.shape == (number,) for name, values in known.items() if name != "images")
    classes = np.concatenate([known["labels"], known["predicted"]]) if labelled else np.zeros(0)
    if not fitting or not labelled or classes.min() < 0 or classes.max() >= len(names):
        evaluations.problems.append(f"{evaluations.run.path}: the wrong images are damaged")
        return []
    return [
        {
            "png": png(image),
            "label": names[int(label)],
            "predicted": names[int(predicted)],
            "probability": 100 * float(probability),
        }
        for image, label, predicted, probability in zip(
            images, known["labels"], known["predicted"], known["probability"], strict=True
        )
    ]


def png(image: Array) -> str:
    """Return an image (channels, height, width) as a PNG file in base64."""
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()
