"""scikit-learn's handwritten digits: 1,797 real images of 8×8 pixels that need no download."""

import numpy as np
import torch

from cafedcl.data.dataset import Dataset
from cafedcl.data.source import Form, Source
from cafedcl.rng import stream

TEST_SHARE = 0.2


def load() -> Dataset:
    """Return the digits with a fixed fifth of every class held out for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    order = torch.from_numpy(stream(0, "digits test set").permutation(len(labels)))
    test = torch.cat([members[: round(TEST_SHARE * len(members))] for members in _by_class(labels, order)])
    held = torch.zeros(len(labels), dtype=torch.bool)
    held[test] = True
    names = tuple(str(name) for name in bunch.target_names)
    return Dataset.of(images[~held], labels[~held], images[held], labels[held], names)


def _by_class(labels: torch.Tensor, order: torch.Tensor) -> list[torch.Tensor]:
    return [order[labels[order] == c] for c in range(int(labels.max()) + 1)]


SOURCES = (
    Source(
        "digits",
        "handwritten digits, 8×8 grey, 10 classes, 1,438 + 359, embedded in scikit-learn",
        (Form((), lambda files, options: load()),),  # noqa: ARG005
    ),
)
