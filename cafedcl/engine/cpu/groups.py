"""Which clients of a round train side by side.

The groups follow from the jobs alone, so every run of a config has the same groups, and the same
bits.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise

import numpy as np
import torch
from torch import nn

from cafedcl.core.contract import Job
from cafedcl.core.tensors import MODEL, Tensors, without
from cafedcl.task.cost import operations
from cafedcl.task.task import Task

JobGroup = tuple[Job, ...]
WINDOW = 4
"""Groups are made from the next few groups' jobs, so that results come nearly in order."""
ENOUGH = 0.3e9
"""Floating-point operations in a stack's forward pass beyond which more clients gain nothing."""
LARGE = 1.5e9
"""The same for a single client's forward pass, beyond which stacking gains nothing at all."""
WIDTHS = 8
"""Up to this many different batch sizes, steps of each size are recorded, without padding."""
MOST_CLIENTS = 10
"""Clients in a stack of small steps: more gain little and leave other processes idle."""


def make_groups(task: Task, jobs: Iterable[Job], size: int) -> Iterator[JobGroup]:
    """Split a round's jobs into groups of at most ``size`` with a similar number of steps."""
    if size == 1:
        yield from ((job,) for job in jobs)
        return
    waiting = iter(jobs)
    while window := list(islice(waiting, WINDOW * size)):
        by_form: dict[object, list[Job]] = {}
        for job in window:
            by_form.setdefault(form(without(MODEL, job.memory)), []).append(job)
        for alike in by_form.values():
            alike.sort(key=lambda job: _length(task, job), reverse=True)
            number = -(-len(alike) // size)
            cuts = [len(alike) * index // number for index in range(number + 1)]
            yield from (tuple(alike[begin:end]) for begin, end in pairwise(cuts))


def form(tensors: Tensors) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """Return names, shapes and types of tensors, sorted by name."""
    return tuple((name, tensors[name].shape, tensors[name].dtype) for name in sorted(tensors))


def _length(task: Task, job: Job) -> tuple[int, int]:
    images = len(task.clients.shards.train[job.client])
    return task.schedule.steps(images), task.schedule.batch_size(images)


def widths(task: Task) -> Callable[[int], int]:
    """Return the function that gives the width a batch is padded to."""
    numbers = np.unique(task.clients.shards.train.sizes)
    sizes = {task.schedule.batch_size(number) for number in numbers.tolist()}
    return grid if len(sizes) > WIDTHS else lambda width: width


def grid(width: int) -> int:
    """Return the next width of a grid with four widths to every doubling."""
    step = 1 << max(0, width.bit_length() - 3)
    return -(-width // step) * step


def choose_size(task: Task) -> int:
    """Return how many clients should train side by side; 1 is one after another."""
    has_convolutions = any(isinstance(module, nn.Conv2d) for module in task.network.modules())
    if stacking_obstacle(task) is not None:
        return 1
    if has_convolutions and task.onednn:
        # With oneDNN's kernels, convolutions are faster for one client after another.
        return 1
    forward = operations(task.network.encoder, task.clients.inputs.shape)
    work = forward * task.schedule.batch_size(task.schedule.typical)
    if work > LARGE:
        return 1
    # Behind an encoder that runs once, the network may have hardly anything to compute.
    return max(2, min(MOST_CLIENTS, int(ENOUGH / max(work, 1.0))))


def stacking_obstacle(task: Task) -> str | None:
    """Return why clients cannot train side by side, or None."""
    if task.device.type != "cpu":
        return f"they do so on a CPU only, not on '{task.device}'"
    if task.method.pooled:
        return "one client has all data"
    if task.tail.synthetic_counts.any():
        return "tail augmentation gives clients images of their own"
    trained = {name for name, value in task.network.named_parameters() if value.requires_grad}
    for name in task.network.state_dict():
        if name not in trained:
            return f"'{name}' is not trained, and a stack holds trained weights only"
    return None
