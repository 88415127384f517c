"""A frozen encoder runs once over all images; clients then train on its features.

That gives the same model as running it in every step, up to rounding, in a fraction of the time: an
image passes through the encoder once, not in every epoch of every round.
"""

import copy
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cafedcl.core.environment import cores, is_arm, package_version
from cafedcl.core.steps import tracked
from cafedcl.core.tensors import ENCODER, Tensors, digest, moved, spaced_rows
from cafedcl.data.cache import cached_tensors
from cafedcl.data.dataset import Dataset
from cafedcl.models.base import GivenFeatures
from cafedcl.models.pretrained import PretrainedEncoder
from cafedcl.task.task import Task, arithmetic

CHECKED = 8
"""For this many images, cached features are compared with the encoder's output."""
CLOSE = 1e-4
"""Features that differ by no more than this, relatively, are the same up to rounding."""


def runs_once(task: Task) -> bool:
    """Return whether the encoder always gives the same features of an image.

    It does if nothing in it is trained and images are always the same. The method must use only
    its features.
    """
    if task.clients.data.is_encoded or task.method.uses_levels:
        return False
    # A client without synthetic images decides like the others, and like a server.
    if task.transforms or task.tail.augmenter.name != "none":
        return False
    encoder = task.network.encoder
    if any(weight.requires_grad for weight in encoder.parameters()):
        return False
    # An encoder without weights is not worth the memory for its features.
    return bool(encoder.state_dict()) and is_deterministic(encoder, task)


@torch.no_grad()
def is_deterministic(encoder: nn.Module, task: Task) -> bool:
    """Return whether an encoder computes the same in training as in evaluation: it has no dropout,
    and no normalisation by the statistics of a batch.
    """
    # A copy, because a forward pass in training may change statistics.
    trial = copy.deepcopy(encoder)
    noise = torch.rand(2, *task.clients.data.shape, generator=torch.Generator().manual_seed(0))
    noise = noise.to(task.device)
    expected: Tensor = trial.eval()(noise)
    found: Tensor = trial.train()(noise)
    return is_close(found, expected)


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Return whether features are the same up to rounding."""
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=CLOSE, atol=CLOSE * largest)


def behind_encoder(task: Task, folder: Path) -> Task:
    """Return the task with the features of all images as its input, and a network that begins
    behind the encoder.

    The features are cached in the data folder.
    """
    encoder = task.network.encoder.eval()
    data = task.clients.data

    def fits(stored: Tensors) -> bool:
        return are_features_of(stored["train"], data.train_x, task) and are_features_of(
            stored["test"], data.test_x, task
        )

    def computed() -> Tensors:
        with arithmetic(task):
            made = encoded(data, encoder, task.eval_batch)
        return {"train": made.train_x, "test": made.test_x}

    stored = moved(cached_tensors(folder, cache_name(task), fits, computed), task.device)
    features = replace(data, train_x=stored["train"], test_x=stored["test"])
    task.network.encoder = GivenFeatures()
    initial = {name: v for name, v in task.initial.items() if not name.startswith(ENCODER)}
    # It is needed only to be stored with the run.
    encoder.to("cpu")
    return replace(task.with_clients(encoded=features), initial=initial, frozen_encoder=encoder)


def cache_name(task: Task) -> str:
    """Return a name for the features with a digest of all that their last bits depend on."""
    data = task.clients.data
    encoder = task.network.encoder
    about = {
        "encoder": str(encoder),
        "size": getattr(encoder, "size", 0),
        "description": encoder.description() if isinstance(encoder, PretrainedEncoder) else {},
        "code": code_of(encoder),
        "torch": package_version("torch"),
        "arithmetic": [task.device.type, is_arm(), task.threads, task.onednn, task.eval_batch],
    }
    images = {"train": data.train_x, "test": data.test_x, "mean": data.mean, "std": data.std}
    return f"features-{digest({**images, **encoder.state_dict()}, about)}"


def code_of(encoder: nn.Module) -> dict[str, str]:
    """Return the source code of an encoder's classes, except for PyTorch's own."""
    found: dict[str, str] = {}
    for module in encoder.modules():
        kind = type(module)
        if not kind.__module__.startswith("torch."):
            with suppress(OSError, TypeError):
                found[f"{kind.__module__}.{kind.__qualname__}"] = inspect.getsource(kind)
    return found


@torch.no_grad()
def are_features_of(stored: Tensor, images: Tensor, task: Task) -> bool:
    """Return whether stored features can belong to the images, by checking some of them.

    The name of the file does not cover everything that the encoder's code depends on.
    """
    if len(stored) != len(images) or not len(images):
        return len(stored) == len(images)
    rows = spaced_rows(len(images), CHECKED)
    expected: Tensor = task.network.encoder(task.clients.data.images(images[rows.to(task.device)]))
    found = stored[rows].to(task.device).flatten(1)
    return found.shape == expected.shape and is_close(found, expected)


@torch.no_grad()
def encoded(data: Dataset, encoder: nn.Module, size: int) -> Dataset:
    """Return a data set with the features of its images, (N, features, 1, 1), in their place.

    ``size`` is the number of images per batch.
    """
    parts = {"train_x": data.train_x, "test_x": data.test_x}
    batches = [x for images in parts.values() for x in images.split(size) if len(x)]
    # A blank image gives the number of features, even where there are no images.
    one: Tensor = encoder(torch.zeros(1, *data.shape, device=data.train_x.device))
    title = "computing the features of all images"
    found = list(tracked(features(batches, data, encoder), title, len(batches), "batches"))
    values = torch.cat([one[:0], *found])[:, :, None, None]
    train, test = values.split([len(images) for images in parts.values()])
    return replace(data, train_x=train, test_x=test)


def features(batches: list[Tensor], data: Dataset, encoder: nn.Module) -> Iterator[Tensor]:
    """Yield the features of batches in their order; on a CPU, several are computed at a time.

    Each has the run's number of threads, so that the result does not depend on the number of cores.
    """

    @torch.no_grad()
    def of_batch(x: Tensor) -> Tensor:
        found: Tensor = encoder(data.images(x))
        return found

    if data.train_x.device.type != "cpu":
        yield from map(of_batch, batches)
        return
    with ThreadPoolExecutor(max(1, cores() // torch.get_num_threads())) as pool:
        yield from pool.map(of_batch, batches)
