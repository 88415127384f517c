"""Which clients of a round train side by side. It follows from the jobs alone, so every run has the
same groups.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise

import torch
from torch import nn

from cafedcl.core.contract import Job
from cafedcl.core.tensors import MODEL, Tensors, without
from cafedcl.task.cost import operations
from cafedcl.task.task import Task

JobGroup = tuple[Job, ...]
WINDOW = 4
"""Groups are made of so many groups' jobs at a time: results come nearly in order, and few have to
be kept waiting.
"""
ENOUGH = 0.3e9
LARGE = 1.5e9
"""Floating-point operations in the forward pass of a stack's step that are enough for it, and of a
client's step above which it gains nothing.
"""
WIDTHS = 8
"""Different sizes of batches up to which every one is recorded as it is, without padding."""
MOST = 10
"""Clients in a stack of small steps: more gain little, and leave other processes without work."""


def make_groups(task: Task, jobs: Iterable[Job], size: int) -> Iterator[JobGroup]:
    """Part a round's jobs into groups of at most ``size`` that can train side by side, of like
    length and width.
    """
    if size == 1:
        yield from ((job,) for job in jobs)
        return
    waiting = iter(jobs)
    while window := list(islice(waiting, WINDOW * size)):
        alike: dict[object, list[Job]] = {}
        for job in window:
            alike.setdefault(form(without(MODEL, job.memory)), []).append(job)
        for part in alike.values():
            part.sort(key=lambda job: _length(task, job), reverse=True)
            number = -(-len(part) // size)
            cuts = [len(part) * index // number for index in range(number + 1)]
            yield from (tuple(part[a:b]) for a, b in pairwise(cuts))


def form(tensors: Tensors) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """Return names, shapes and types of tensors, in whatever order they are."""
    return tuple((name, tensors[name].shape, tensors[name].dtype) for name in sorted(tensors))


def _length(task: Task, job: Job) -> tuple[int, int]:
    images = len(task.clients.shards.train[job.client])
    return task.schedule.steps(images), task.schedule.batch_size(images)


def widths(task: Task) -> Callable[[int], int]:
    """Return what gives the width that a batch is padded to: its own where there are few different
    ones.
    """
    sizes = {task.schedule.batch_size(len(rows)) for rows in task.clients.shards.train}
    return grid if len(sizes) > WIDTHS else lambda width: width


def grid(width: int) -> int:
    """Return the next width of those that batches are padded to: four to every doubling, so that
    steps are shared.
    """
    step = 1 << max(0, width.bit_length() - 3)
    return -(-width // step) * step


def choose_size(task: Task) -> int:
    """Return how many clients had best train side by side; 1 is one after another."""
    convolutions = any(isinstance(module, nn.Conv2d) for module in task.network.modules())
    if stacking_obstacle(task) is not None or (convolutions and task.onednn):
        return 1  # stacked convolutions have been measured against PyTorch's own only
    work = operations(task.network, task.clients.data.shape) * task.schedule.batch_size(
        task.schedule.typical
    )
    return 1 if work > LARGE else max(2, min(MOST, int(ENOUGH / work)))


def stacking_obstacle(task: Task) -> str | None:
    """Return why clients cannot train side by side, or None."""
    if task.device.type != "cpu":
        return f"they do so on a CPU only, not on '{task.device}'"
    if task.method.pooled:
        return "all data lie in one place"
    if task.tail.wanted.any():
        return "tail augmentation gives clients images of their own"
    trained = {name for name, value in task.network.named_parameters() if value.requires_grad}
    name = next((name for name in task.network.state_dict() if name not in trained), None)
    return name and f"'{name}' is kept besides the weights that are trained"
