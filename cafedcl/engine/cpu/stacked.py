"""Small clients on a CPU, trained side by side: one step of the stack is one step of every client
in it.
"""

import copy
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Batch, Client, Failure, Job, Reply, Visit
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, prefixed, under, without
from cafedcl.engine.base import Results
from cafedcl.engine.cpu.grouped_conv import use_grouped_convolutions
from cafedcl.engine.cpu.groups import JobGroup, form, make_groups, widths
from cafedcl.engine.cpu.recorded_step import StepFunction, record
from cafedcl.engine.flip_and_crop import augment
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.engine.schedule import Schedule, make_schedule
from cafedcl.engine.sgd import descend
from cafedcl.engine.views import LossView, embeds_nothing
from cafedcl.task.task import Task, arithmetic

STRETCH = 16
"""Batches are gathered for so many steps at a time."""
TAPES = 64
"""Recorded steps are kept for so many different shapes."""
MINE = "mine/"
COMMON = "common/"
"""What every client of a stack has of its own, along the first axis, and what all share."""


@dataclass(frozen=True)
class Trained:
    """What training has made of one client."""

    weights: Tensors
    scratch: Tensors
    losses: dict[str, float]
    seconds: float


class RecordedStep(NamedTuple):
    """A recorded step, and the names of the terms it returns."""

    play: StepFunction
    names: tuple[str, ...]


class StackedClients(ReferenceEngine):
    """Trains groups of clients as one, and whatever cannot be stacked one after another.

    Weights are one tensor (clients, weights). The method's loss is recorded once under vmap with
    its gradient and the update, and played at every step. Clients are in falling order of their
    steps; those that are done fall off the end.
    """

    def __init__(self, task: Task, size: int) -> None:
        super().__init__(task)
        self.size = size
        self.play = copy.deepcopy(task.network).train()
        use_grouped_convolutions(self.play)
        self.layout = FlatNetwork(self.play, channels_last=True)
        self.width = widths(task)
        self.tapes: dict[object, RecordedStep | None] = {}
        self.trained: dict[int, Trained] = {}
        self.done = False

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs group by group."""
        for group in self.groups(jobs):
            yield from self.together(group)

    def groups(self, jobs: Iterable[Job]) -> Iterator[JobGroup]:
        """Part jobs into groups; singles where nothing is stacked."""
        return make_groups(self.task, jobs, self.size)

    def together(self, group: JobGroup) -> Iterator[Reply | Failure]:
        """Train a group side by side, then let every client summarize alone; its failure is its
        own.
        """
        try:
            if len(group) > 1:
                with suppress(Exception), arithmetic(self.task):
                    self.trained = self.stacked(
                        group
                    )  # if not, each trains alone, where an error is its own
            for job in group:
                yield self.attempt(job)
        finally:
            self.trained = {}

    def work(self, job: Job) -> Reply:
        """One client's round; what it has trained in a stack is not trained again."""
        self.done = job.client in self.trained
        seconds = self.trained[job.client].seconds if self.done else 0.0
        try:
            reply = super().work(job)
        finally:
            self.done = False
        return replace(reply, up=replace(reply.up, seconds=reply.up.seconds + seconds))

    def load(self, weights: Tensors) -> None:
        """Make these the network's weights; a client that is trained already need not receive any
        first.
        """
        if self.done:
            self.done = False
        else:
            super().load(weights)

    def _epochs(self, job: Job, visit: Visit, extra: SyntheticImages) -> dict[str, float]:
        trained = self.trained.pop(job.client, None)
        if trained is None:
            return super()._epochs(job, visit, extra)
        self.load({**visit.received, **trained.weights})
        for name, value in trained.scratch.items():
            visit.scratch[name].copy_(value)
        return trained.losses

    def stacked(self, group: JobGroup) -> dict[int, Trained]:
        """Train all clients of a group."""
        began = time.perf_counter()
        task = self.task
        shards = [task.clients.shards.train[job.client] for job in group]
        width = self.width(max(task.schedule.batch_size(len(shard)) for shard in shards))
        schedules = list[Schedule]()
        start = 0
        for job, shard in zip(group, shards, strict=True):
            local = np.arange(start, start + len(shard))
            schedules.append(make_schedule(task, local, job.client, job.down.round, width))
            start += len(shard)
        rows = torch.cat(shards)
        images = task.clients.data.images(task.clients.data.train_x[rows])
        labels = task.clients.data.train_y[rows]
        tables = stack_tables(schedules)
        tensors = self.receive(group)
        log, names = self.steps(
            [schedule.steps for schedule in schedules], tables, images, labels, tensors
        )
        seconds = (time.perf_counter() - began) / len(group)
        scratch = under(MINE + "scratch/", tensors)
        return {
            job.client: Trained(
                weights=self.layout.views(tensors["flat"][index]),
                scratch={name: value[index] for name, value in scratch.items()},
                losses=schedule.losses(names, log[:, index].numpy()),
                seconds=seconds,
            )
            for index, (job, schedule) in enumerate(zip(group, schedules, strict=True))
        }

    def receive(self, group: JobGroup) -> Tensors:
        """Return all that a step reads and writes besides its batch, as it is before the first."""
        task = self.task
        down = group[0].down
        sent = {**task.initial, **under(MODEL, down.tensors)}
        own = [under(MODEL, job.memory) for job in group]
        personal = {name for weights in own for name in weights}
        clients = [task.clients.client(job.client) for job in group]
        flat = self.layout.flatten(sent).repeat(len(group), 1)
        for row, weights in zip(flat, own, strict=True):
            for name, view in self.layout.views(row).items() if weights else ():
                view.copy_(weights.get(name, view))
        mine: dict[str, list[Tensor]] = {"counts": [client.counts for client in clients]}
        parts = {
            "memory/": [without(MODEL, job.memory) for job in group],
            "scratch/": [task.method.scratch(client) for client in clients],
            "received/": [
                {name: {**sent, **weights}[name] for name in personal} for weights in own
            ],
        }
        for prefix, each in parts.items():
            mine |= {prefix + name: [tensors[name] for tensors in each] for name in each[0]}
        common = {
            "most": clients[0].most,
            "total": clients[0].total,
            "round": torch.tensor(float(down.round)),
            "progress": torch.tensor(down.round / task.rounds),
            **prefixed("anchors/", under(ANCHORS, down.tensors)),
            **prefixed(
                "received/", {name: value for name, value in sent.items() if name not in personal}
            ),
        }
        tensors = {
            "flat": flat,
            **prefixed(MINE, {name: torch.stack(values) for name, values in mine.items()}),
        }
        if task.schedule.options.momentum:
            tensors["velocity"] = torch.zeros_like(flat)
        tensors |= prefixed(COMMON, {name: plain(value) for name, value in common.items()})
        return {name: tensors[name] for name in sorted(tensors)}

    @torch.no_grad()
    def steps(
        self, steps: list[int], tables: Tensors, images: Tensor, labels: Tensor, tensors: Tensors
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Do all steps; returns every term of the loss (steps, clients, terms), and the terms'
        names.
        """
        options = self.task.schedule.options
        log = list[Tensor]()
        names: tuple[str, ...] = ()
        for start, stop, active in stretches(steps):
            now = {name: table[start:stop, :active] for name, table in tables.items()}
            rows = now.pop("rows")
            x = images.index_select(0, rows.flatten())
            if options.flip or options.crop:
                drawn = {name: value.flatten(0, 2) for name, value in under("draw/", now).items()}
                x = augment(x, drawn, options)
                now = without("draw/", now)
            now |= {
                "x": x.view(*rows.shape, *x.shape[1:]),
                "y": labels.index_select(0, rows.flatten()).view_as(rows),
            }
            given = {
                name: value if name.startswith(COMMON) else value[:active]
                for name, value in tensors.items()
            }
            batches = zip(*(value.unbind(0) for value in now.values()), strict=True)
            tape = self.tape(
                [*now, *given], [*next(batches), *given.values()], terms := list[Tensor]()
            )
            names = tape.names
            rest = tuple(given.values())
            terms += [tape.play(*batch, *rest)[0] for batch in batches]
            log.append(F.pad(torch.stack(terms), (0, 0, 0, len(steps) - active)))
        return torch.cat(log), names

    def tape(self, names: list[str], tensors: list[Tensor], terms: list[Tensor]) -> RecordedStep:
        """Do one step of every client and add its terms; returns what plays the steps after it.

        The first step of its shape is recorded.
        """
        key = form(dict(zip(names, tensors, strict=True)))
        if key in self.tapes:
            tape = self.tapes[key]
            if tape is None:
                raise ValueError("this step cannot be recorded")
            terms.append(tape.play(*tensors)[0])
            return tape
        self.tapes[key] = None
        called = list[str]()

        def once(*values: Tensor) -> list[Tensor]:
            found, terms = self.objective(dict(zip(names, values, strict=True)))
            called.extend(terms)
            return [found]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that vmap does something client by client
            play, outputs = record(once, tensors)
        terms += outputs
        self.tapes[key] = tape = RecordedStep(play, tuple(called))
        while len(self.tapes) > TAPES:
            del self.tapes[next(iter(self.tapes))]
        return tape

    def objective(self, tensors: Tensors) -> tuple[Tensor, tuple[str, ...]]:
        """Loss, gradient and update of all clients; returns the terms (clients, terms) and their
        names.
        """
        flat = tensors["flat"]
        leaves = [leaf.detach().requires_grad_() for leaf in self.layout.views(flat).values()]
        mine = under(MINE, tensors)
        common = under(COMMON, tensors)
        for value in under("scratch/", mine).values():
            value.masked_fill_(tensors["first"].view(-1, *[1] * (value.dim() - 1)), 0)
        batch = Batch(tensors["x"], tensors["y"], tensors["weight"])
        with torch.enable_grad():
            named: Tensors = vmap(self.loss, in_dims=(0, 0, 0, None))(leaves, batch, mine, common)
            terms = torch.stack(list(named.values()), 1)
            found = torch.autograd.grad(
                terms.sum(), leaves, allow_unused=True, materialize_grads=True
            )
        gradient = self.layout.flatten_stacked(found)
        descend(
            flat,
            gradient,
            tensors.get("velocity"),
            tensors["rate"][:, None],
            self.task.schedule.options,
        )
        return terms.detach(), tuple(named)

    def loss(
        self, weights: list[Tensor], batch: tuple[Tensor, ...], mine: Tensors, common: Tensors
    ) -> Tensors:
        """Return the terms of one client's objective, as vmap sees it."""
        for entry, value in zip(self.layout.parameters.values(), weights, strict=True):
            entry.module._parameters[entry.key] = cast(Any, value)
        known = LossView(mine["counts"], common["most"], common["total"])
        visit = Visit(
            client=cast(Client, known),
            round=common["round"],
            progress=common["progress"],
            received={**under("received/", common), **under("received/", mine)},
            anchors=under("anchors/", common),
            memory=under("memory/", mine),
            scratch=under("scratch/", mine),
            embed=embeds_nothing,
            rates=float("nan"),
        )
        return self.task.method.loss(self.play, Batch(*batch), visit)


def stretches(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the steps from and to which the same number of clients is at work, and that number; at
    most so many.
    """
    start = 0
    while start < steps[0]:
        active = sum(number > start for number in steps)
        stop = min(steps[active - 1], start + STRETCH)
        yield start, stop, active
        start = stop


def stack_tables(schedules: list[Schedule]) -> Tensors:
    """Return the tables of several clients as (steps, clients, …); those with fewer steps end in
    nothing.
    """
    most = schedules[0].steps
    tables: Tensors = {}
    for name, first in schedules[0].tables.items():
        tables[name] = first.new_zeros(most, len(schedules), *first.shape[1:])
        for index, schedule in enumerate(schedules):
            tables[name][: schedule.steps, index] = schedule.tables[name]
    return tables


def plain(value: Tensor) -> Tensor:
    """Return a tensor that lies in memory by itself."""
    return (
        value
        if value.is_contiguous() and not value.storage_offset()
        else value.clone(memory_format=torch.contiguous_format)
    )
