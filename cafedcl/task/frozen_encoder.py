"""A frozen encoder runs once over all images; clients then train on its features.

That gives the same model as running it in every step, up to rounding, and takes a small part of the
time: an image passes the encoder once, and not in every epoch of every round.
"""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor, nn

from cafedcl.core.environment import cores
from cafedcl.core.steps import tracked
from cafedcl.core.tensors import ENCODER
from cafedcl.data.dataset import Dataset
from cafedcl.models.base import GivenFeatures
from cafedcl.task.task import Task, arithmetic

CLOSE = 1e-5
"""Features that differ by no more than this, relatively, are the same up to rounding."""


def runs_once(task: Task) -> bool:
    """Return whether the encoder always gives the same features of an image.

    It does if nothing in it is trained, and images are always the same. The method must use nothing
    but its features.
    """
    if task.clients.data.is_encoded or task.method.uses_levels:
        return False
    if task.transforms or task.tail.synthetic_counts.any():
        return False
    encoder = task.network.encoder
    if any(weight.requires_grad for weight in encoder.parameters()):
        return False
    # Without weights, there is nothing that would be worth the memory of its features.
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
    return torch.allclose(found, expected, rtol=CLOSE, atol=CLOSE * float(expected.abs().max()))


def behind_encoder(task: Task) -> Task:
    """Return the task with the features of all images as its input, and a network that begins
    behind the encoder.
    """
    encoder = task.network.encoder.eval()
    with arithmetic(task):
        features = encoded(task.clients.data, encoder, task.eval_batch)
    task.network.encoder = GivenFeatures()
    initial = {name: v for name, v in task.initial.items() if not name.startswith(ENCODER)}
    # It is needed only to be stored with the run.
    encoder.to("cpu")
    return replace(task.with_clients(encoded=features), initial=initial, frozen_encoder=encoder)


@torch.no_grad()
def encoded(data: Dataset, encoder: nn.Module, size: int) -> Dataset:
    """Return a data set with the features of its images, (N, features, 1, 1), in their place.

    ``size`` is the number of images per batch.
    """
    parts = {"train_x": data.train_x, "test_x": data.test_x}
    batches = [x for images in parts.values() for x in images.split(size) if len(x)]
    # One image gives the number of features, also where there are no images.
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
