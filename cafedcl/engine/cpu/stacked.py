"""Small clients on a CPU, trained side by side: a step of the stack is a step of every client."""

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
from cafedcl.core.contract import Batch, Census, Client, Failure, Job, Reply, Visit
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.tensors import ANCHORS, ENCODER, MODEL, Tensors, prefixed, under, without
from cafedcl.engine.base import Results
from cafedcl.engine.cpu.grouped_conv import use_grouped_convolutions
from cafedcl.engine.cpu.groups import JobGroup, form, make_groups, widths
from cafedcl.engine.cpu.recorded_step import StepFunction, record
from cafedcl.engine.optimizer import descend, start_state
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.engine.schedule import Schedule, make_schedule
from cafedcl.engine.views import LossView, embeds_nothing
from cafedcl.methods import checked
from cafedcl.task.task import Task, arithmetic

STEPS_GATHERED = 16
"""Batches are gathered for this many steps at a time."""
RECORDINGS_KEPT = 64
"""Recorded steps are kept for this many different shapes; the oldest are dropped."""
OWN = "own/"
COMMON = "common/"
OPTIMIZER_STATE = "optimizer/"
"""Prefixes of what each client of a stack has for itself, along the first axis, of what all share,
and of the optimizer's state.
"""
CONSTANTS = "constants/"
"""The prefix of a batch's constants."""


@dataclass(frozen=True)
class Trained:
    """The result of training one client."""

    weights: Tensors
    scratch: Tensors
    losses: dict[str, float]
    seconds: float


class RecordedStep(NamedTuple):
    """A recorded step, and the names of the terms it returns."""

    call: StepFunction
    names: tuple[str, ...]


class StackedClients(ReferenceEngine):
    """Trains groups of clients as one, and clients that cannot be stacked one after another.

    The weights are one tensor (clients, weights). The method's loss is recorded once under vmap,
    with its gradient and the update, and replayed at every step. Clients are sorted by falling
    number of steps, so that finished ones drop off the end.
    """

    def __init__(self, task: Task, size: int) -> None:
        super().__init__(task)
        self.size = size
        self.stack_network = copy.deepcopy(task.network).train()
        use_grouped_convolutions(self.stack_network)
        self.stack_weights = FlatNetwork(self.stack_network, channels_last=True)
        self.width = widths(task)
        self.recordings: dict[object, RecordedStep | None] = {}
        """By the shapes of a step's tensors; None for a step that could not be recorded."""
        self.trained: dict[int, Trained] = {}
        """Clients of the current group that have been trained in a stack."""
        self.skip_load = False

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs group by group."""
        for group in self.groups(jobs):
            yield from self.together(group)

    def groups(self, jobs: Iterable[Job]) -> Iterator[JobGroup]:
        """Split jobs into groups; groups of one where nothing is stacked."""
        return make_groups(self.task, jobs, self.size)

    def together(self, group: JobGroup) -> Iterator[Reply | Failure]:
        """Train a group side by side, then let every client summarize alone."""
        try:
            if len(group) > 1:
                # If it fails, each client trains alone, so that an error fails only that client.
                with suppress(Exception), arithmetic(self.task):
                    self.trained = self.stacked(group)
            for job in group:
                yield self.attempt(job)
        finally:
            self.trained = {}

    def work(self, job: Job) -> Reply:
        """One client's round; a client that was trained in a stack is not trained again."""
        is_trained = job.client in self.trained
        seconds = self.trained[job.client].seconds if is_trained else 0.0
        # The weights that it would receive are not needed: training is done.
        self.skip_load = is_trained
        try:
            reply = super().work(job)
        finally:
            self.skip_load = False
        return replace(reply, up=replace(reply.up, seconds=reply.up.seconds + seconds))

    def load(self, weights: Tensors) -> None:
        """Make these the network's weights; the first time for a trained client, do nothing."""
        if self.skip_load:
            self.skip_load = False
        else:
            super().load(weights)

    def _epochs(self, job: Job, visit: Visit, synthetic: SyntheticImages) -> dict[str, float]:
        trained = self.trained.pop(job.client, None)
        if trained is None:
            return super()._epochs(job, visit, synthetic)
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
        schedules: list[Schedule] = []
        start = 0
        for job, shard in zip(group, shards, strict=True):
            # Rows count within the images of the group, which are gathered once.
            rows_in_group = np.arange(start, start + len(shard))
            schedules.append(make_schedule(task, rows_in_group, job.client, job.down.round, width))
            start += len(shard)
        rows = torch.cat(shards)
        images = self.data.images(self.data.train_x[rows])
        labels = self.data.train_y[rows]
        parts = images.split([len(shard) for shard in shards])
        each = [
            self.constants(x, None, self.visit(job)) for job, x in zip(group, parts, strict=True)
        ]
        constants = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        tensors = self.receive(group)
        steps = [schedule.steps for schedule in schedules]
        by_image = {"x": images, "y": labels, **prefixed(CONSTANTS, constants)}
        log, names = self.run_steps(steps, stack_tables(schedules), by_image, tensors)
        seconds = (time.perf_counter() - began) / len(group)
        scratch = under(OWN + "scratch/", tensors)
        return {
            job.client: Trained(
                weights=self.stack_weights.views(tensors["flat"][index]),
                scratch={name: value[index] for name, value in scratch.items()},
                losses=schedule.losses(names, log[:, index].numpy()),
                seconds=seconds,
            )
            for index, (job, schedule) in enumerate(zip(group, schedules, strict=True))
        }

    def receive(self, group: JobGroup) -> Tensors:
        """Return all that a step reads and writes besides its batch, as before the first step."""
        task = self.task
        down = group[0].down
        sent = {**task.initial, **under(MODEL, down.tensors)}
        personal = [under(MODEL, job.memory) for job in group]
        personal_names = {name for weights in personal for name in weights}
        clients = [task.clients.client(job.client) for job in group]
        flat = self.stack_weights.flatten(sent).repeat(len(group), 1)
        for row, weights in zip(flat, personal, strict=True):
            if weights:
                for name, view in self.stack_weights.views(row).items():
                    view.copy_(weights.get(name, view))
        parts = {
            "memory/": [without(MODEL, job.memory) for job in group],
            "scratch/": [checked.scratch(task.method, client) for client in clients],
            "received/": [
                {name: {**sent, **weights}[name] for name in personal_names} for weights in personal
            ],
        }
        own: dict[str, list[Tensor]] = {"counts": [client.counts for client in clients]}
        for prefix, each in parts.items():
            own |= {prefix + name: [tensors[name] for tensors in each] for name in each[0]}
        shared = {name: value for name, value in sent.items() if name not in personal_names}
        common = {
            **prefixed("census/", clients[0].census._asdict()),
            "round": torch.tensor(float(down.round)),
            "progress": torch.tensor(down.round / task.rounds),
            **prefixed("anchors/", under(ANCHORS, down.tensors)),
            **prefixed("received/", shared),
        }
        tensors = {"flat": flat}
        tensors |= prefixed(OWN, {name: torch.stack(values) for name, values in own.items()})
        tensors |= prefixed(OPTIMIZER_STATE, start_state(flat, task.schedule.options))
        factors = self.stack_weights.factors(ENCODER, task.schedule.options.encoder_factor)
        if factors is not None:
            common["factors"] = factors
        tensors |= prefixed(COMMON, {name: standalone(value) for name, value in common.items()})
        return {name: tensors[name] for name in sorted(tensors)}

    @torch.no_grad()
    def run_steps(
        self, steps: list[int], tables: Tensors, by_image: Tensors, tensors: Tensors
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Take all steps; return the log of loss terms (steps, clients, terms), and their names.

        ``by_image`` has images, labels and constants, a row per image.
        """
        transforms = self.task.transforms
        log: list[Tensor] = []
        names: tuple[str, ...] = ()
        for start, stop, active in stretches(steps):
            now = {name: table[start:stop, :active] for name, table in tables.items()}
            rows = now.pop("rows")
            chosen = {n: values.index_select(0, rows.flatten()) for n, values in by_image.items()}
            if transforms:
                drawn = {name: value.flatten(0, 2) for name, value in under("draw/", now).items()}
                chosen["x"] = transforms.apply(chosen["x"], drawn)
                now = without("draw/", now)
            now |= {n: value.view(*rows.shape, *value.shape[1:]) for n, value in chosen.items()}
            given = {
                name: value if name.startswith(COMMON) else value[:active]
                for name, value in tensors.items()
            }
            batches = zip(*(value.unbind(0) for value in now.values()), strict=True)
            rest = tuple(given.values())
            recorded, first_terms = self.first_step([*now, *given], [*next(batches), *rest])
            terms = [first_terms]
            terms += [recorded.call(*batch, *rest)[0] for batch in batches]
            names = recorded.names
            # Clients that are done have no terms at these steps.
            log.append(F.pad(torch.stack(terms), (0, 0, 0, len(steps) - active)))
        return torch.cat(log), names

    def first_step(self, names: list[str], tensors: list[Tensor]) -> tuple[RecordedStep, Tensor]:
        """Take one step of every client; return what replays later steps, and the step's terms.

        The first step of each shape is recorded.
        """
        key = form(dict(zip(names, tensors, strict=True)))
        if key in self.recordings:
            recorded = self.recordings[key]
            if recorded is None:
                raise ValueError("this step cannot be recorded")
            return recorded, recorded.call(*tensors)[0]
        # If recording raises, the key stays with None: it is not tried again.
        self.recordings[key] = None
        loss_names: list[str] = []

        def step(*values: Tensor) -> list[Tensor]:
            terms, found = self.objective(dict(zip(names, values, strict=True)))
            loss_names.extend(found)
            return [terms]

        with warnings.catch_warnings():
            # vmap warns about operations that it runs client by client.
            warnings.simplefilter("ignore")
            call, outputs = record(step, tensors)
        recorded = RecordedStep(call, tuple(loss_names))
        self.recordings[key] = recorded
        while len(self.recordings) > RECORDINGS_KEPT:
            del self.recordings[next(iter(self.recordings))]
        return recorded, outputs[0]

    def objective(self, tensors: Tensors) -> tuple[Tensor, tuple[str, ...]]:
        """Loss, gradient and update of all clients; return the terms (clients, terms) and names."""
        flat = tensors["flat"]
        views = self.stack_weights.views(flat).values()
        leaves = [view.detach().requires_grad_() for view in views]
        own = under(OWN, tensors)
        common = under(COMMON, tensors)
        for value in under("scratch/", own).values():
            value.masked_fill_(tensors["first"].view(-1, *[1] * (value.dim() - 1)), 0)
        batch = Batch(tensors["x"], tensors["y"], tensors["weight"], under(CONSTANTS, tensors))
        with torch.enable_grad():
            named: Tensors = vmap(self.loss, in_dims=(0, 0, 0, None))(leaves, batch, own, common)
            terms = torch.stack(list(named.values()), 1)
            gradients = torch.autograd.grad(
                terms.sum(), leaves, allow_unused=True, materialize_grads=True
            )
        gradient = self.stack_weights.flatten_stacked(gradients)
        rate = tensors["rate"][:, None]
        options = self.task.schedule.options
        state = under(OPTIMIZER_STATE, tensors)
        descend(flat, gradient, state, rate, options, common.get("factors"))
        return terms.detach(), tuple(named)

    def loss(self, weights: list[Tensor], batch: Batch, own: Tensors, common: Tensors) -> Tensors:
        """Return the terms of one client's objective, as vmap sees it."""
        parameters = self.stack_weights.parameters.values()
        for parameter, value in zip(parameters, weights, strict=True):
            parameter.module._parameters[parameter.key] = cast(Any, value)
        view = LossView(own["counts"], Census(**under("census/", common)))
        visit = Visit(
            client=cast(Client, view),
            round=common["round"],
            progress=common["progress"],
            received={**under("received/", common), **under("received/", own)},
            anchors=under("anchors/", common),
            memory=under("memory/", own),
            scratch=under("scratch/", own),
            embed=embeds_nothing,
            rates=float("nan"),
        )
        return checked.loss(self.task.method, self.stack_network, batch, visit)


def stretches(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of steps with the same active clients: start, stop, and number of clients.

    ``steps`` are the clients' numbers of steps, falling. A range has at most `STEPS_GATHERED`.
    """
    start = 0
    while start < steps[0]:
        active = sum(number > start for number in steps)
        stop = min(steps[active - 1], start + STEPS_GATHERED)
        yield start, stop, active
        start = stop


def stack_tables(schedules: list[Schedule]) -> Tensors:
    """Return the tables of several clients as (steps, clients, …); shorter ones end in zeros."""
    most = schedules[0].steps
    tables: Tensors = {}
    for name, first in schedules[0].tables.items():
        tables[name] = first.new_zeros(most, len(schedules), *first.shape[1:])
        for index, schedule in enumerate(schedules):
            tables[name][: schedule.steps, index] = schedule.tables[name]
    return tables


def standalone(value: Tensor) -> Tensor:
    """Return a contiguous tensor that begins its own memory, which recording requires."""
    if value.is_contiguous() and not value.storage_offset():
        return value
    return value.clone(memory_format=torch.contiguous_format)
