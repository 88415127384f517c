"""One lane's place of work: static tensors, the steps captured on them, and a client's whole visit queued there."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple, cast

import torch
from torch import Tensor

from cafedcl.augment.base import Extra
from cafedcl.contract import Client, Down, Embed, Job, Part, Reply, Up, Visit, Weights
from cafedcl.engine.lane import Lane, Launcher, Mark, to_host
from cafedcl.engine.layout import Layout
from cafedcl.engine.program import ENCODER, Bound, Given
from cafedcl.engine.schedule import Schedule, make_schedule
from cafedcl.engine.supply import Supply
from cafedcl.errors import CafedclError
from cafedcl.metrics import hits
from cafedcl.pack import ANCHORS, AUGMENT, MODEL, Tensors, nbytes, prefixed, under, without

CHAIN = 8
"""Steps in the longer of the two captures of a training step: fewer, larger launches."""
PLANS = 4
"""Captures are kept for so many different sets of anchors and memories."""


class Known(NamedTuple):
    """What a loss may know of a client: tensors, which can be exchanged under a capture. Numbers cannot."""

    counts: Tensor
    most: Tensor
    total: Tensor


class Plan:
    """Static anchors and memory of one shape, and what was captured on them."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.down: Down | None = None
        self.kept: Tensors = {}
        self.names: tuple[str, ...] = ()
        self.log = torch.zeros(0)
        self.held = torch.ones_like(visit.client.counts, dtype=torch.bool)
        self.captures: dict[tuple[str, int, int], Callable[[], None]] = {}


@dataclass(frozen=True)
class Begun:
    """A visit whose training is being queued; ``launched`` waits until it is."""

    job: Job
    plan: Plan
    extra: Extra
    schedule: Schedule
    mark: Mark
    launched: Callable[[], None]


class Slot:
    """A copy of the network on one lane. Every visit is copied into the same tensors and replayed there."""

    def __init__(self, supply: Supply, launcher: Launcher | None) -> None:
        self.supply, self.bench = supply, supply.bench
        self.lane = Lane(self.bench.device, launcher)
        self.network = copy.deepcopy(self.bench.network).eval()
        self.layout = Layout(self.network, supply.channels_last)
        self.flat, self.leaves = self.layout.flat, self.layout.leaves
        self.moving = [leaf.detach() for leaf in self.leaves.values()]
        self.velocity = [torch.zeros_like(leaf) for leaf in self.moving] if self.bench.train.momentum else []
        dtype, network = supply.program.dtype, {**self.leaves, **self.layout.rest}
        self.half = self.flat if dtype == self.flat.dtype else self.flat.to(dtype)
        self.halves = {} if self.half is self.flat else under(ENCODER, self.layout.views(self.half))
        self.moving_halves = [half.detach() for half in self.halves.values()]
        for half in self.halves.values():
            half.requires_grad_()
        rest = under(ENCODER, self.layout.rest)
        self.still = {} if self.half is self.flat else supply.program.play.runner.cast(rest)
        self.weights = Given(network, {**under(ENCODER, network), **self.still, **self.halves})
        self.network.runner = Bound(supply.program.play.runner, self.weights.body)
        self.received, device = torch.empty_like(self.flat), self.bench.device
        self.one = torch.ones((), device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.extra = supply.room()
        self.feeds: dict[int, Tensors] = {}
        self.fed: dict[tuple[int, str], object] = {}
        self.looking = torch.zeros(supply.look, dtype=torch.int64, device=device)
        self.seen: Tensor | None = None
        self.look: Callable[[], None] | None = None
        self.asked = torch.zeros(self.bench.chunk, dtype=torch.int64, device=device)
        self.called = torch.zeros(self.bench.chunk, 2, dtype=torch.int16, device=device)
        self.plans: dict[object, Plan] = {}

    # receiving

    def plan(self, job: Job) -> Plan:
        """Return the plan for the shapes of a job's anchors and memory, with their values copied in."""
        anchors = under(ANCHORS, job.down.tensors)
        memory = without((MODEL, AUGMENT), job.memory)
        shape = (_shapes(anchors), _shapes(memory))
        plan = self.plans.pop(shape, None) or Plan(self._static_visit(job.client, anchors, memory))
        self.plans[shape] = plan
        while len(self.plans) > PLANS:
            del self.plans[next(iter(self.plans))]
        visit, client = plan.visit, self.bench.client(job.client)
        if plan.down is not job.down:
            _copy(visit.anchors, anchors)
            plan.down = job.down
        _copy(visit.memory, memory)
        visit.client.counts.copy_(client.counts)
        visit.round.fill_(job.down.round)
        visit.progress.fill_(job.down.round / self.bench.rounds)
        return plan

    def _static_visit(self, index: int, anchors: Tensors, memory: Tensors) -> Visit:
        device, client = self.bench.device, self.bench.client(index)
        known = Known(client.counts.clone(), client.most, client.total)
        return Visit(
            client=cast(Client, known),
            round=torch.zeros((), device=device),
            progress=torch.zeros((), device=device),
            received=self.layout.views(self.received),
            anchors={name: value.to(device, copy=True) for name, value in anchors.items()},
            memory={name: value.to(device, copy=True) for name, value in memory.items()},
            scratch=self.bench.method.scratch(client),
            embed=embeds_nothing,
            rates=float("nan"),
        )

    @torch.no_grad()
    def receive(self, sent: Tensor, job: Job) -> None:
        """Take in the server's weights, and the client's own over them."""
        self.received.copy_(sent)
        own = under(MODEL, job.memory)
        if own:
            views = self.layout.views(self.received)
            _copy({name: views[name] for name in own if name in views}, own)
        _copy(self.layout.rest, {**self.bench.initial, **under(MODEL, job.down.tensors), **own})
        _copy(self.still, under(ENCODER, self.layout.rest))
        self.load(self.received)

    def load(self, flat: Tensor) -> None:
        """Make these the current weights."""
        self.flat.copy_(flat)
        if self.half is not self.flat:
            self.half.copy_(flat)

    # training

    def step(self, plan: Plan, width: int) -> None:
        """One optimizer step: gather, forward, loss, backward, clip, update. This is what is captured."""
        program, feed, at = self.supply.program, self.feed(width), self.cursor
        asked = [*self.leaves.values(), *self.halves.values()]
        with torch.enable_grad():
            loss, terms = program.objective(self.weights, self.supply.training, self.extra, feed, at, plan.visit)
            found = torch.autograd.grad(loss, asked, self.one, allow_unused=True)
        gradients = self.combined(found[: len(self.leaves)], found[len(self.leaves) :])
        program.update(self.moving, self.moving_halves, gradients, self.velocity, feed, at, terms, plan.log)

    def combined(self, own: Sequence[Tensor | None], half: Sequence[Tensor | None]) -> list[Tensor]:
        """Return each weight's gradient: through the weight itself, through its half, or both."""
        gradients = []
        for weight, one, other in zip_longest(self.moving, own, half):
            parts = [part for part in (one, other) if part is not None] or [torch.zeros_like(weight)]
            gradients.append(parts[0] if len(parts) == 1 else parts[0] + parts[1])
        return gradients

    def feed(self, width: int) -> Tensors:
        """Return the static tables of a schedule of this width."""
        if width not in self.feeds:
            client = next(k for k in range(len(self.bench.shards)) if self.supply.width(k) == width)
            sample = make_schedule(self.bench, self.bench.rows[client], client, 0, width)
            self.feeds[width] = {
                name: torch.zeros((self.supply.steps, *table.shape[1:]), dtype=table.dtype, device=self.bench.device)
                for name, table in sample.tables.items()
            }
        return self.feeds[width]

    def fill(self, schedule: Schedule, width: int) -> None:
        """Go to the start of a schedule: copy it into the static tables, but for what is there already."""
        self.cursor.zero_()
        for velocity in self.velocity:
            velocity.zero_()
        feed = self.feed(width)
        for name, table in schedule.tables.items():
            if schedule.marks.get(name) is None or self.fed.get((width, name)) != schedule.marks[name]:
                self.fed[width, name] = schedule.marks.get(name)
                feed[name][: len(table)].copy_(_pinned(table, self.bench.device), non_blocking=True)

    def prepare(self, plan: Plan, width: int) -> None:
        """Capture the steps of a width, if they are not yet. It moves the weights."""
        if not plan.names:
            self.cursor.zero_()
            feed = self.feed(width)
            program, images = self.supply.program, self.supply.training
            plan.names = program.names(self.weights, images, self.extra, feed, self.cursor, plan.visit)
            plan.log = self.flat.new_zeros(self.supply.steps, len(plan.names))
        for number in (1, CHAIN):
            if ("step", width, number) in plan.captures or number > self.supply.steps:
                continue

            def steps(number: int = number) -> None:
                for _ in range(number):
                    self.step(plan, width)

            self.supply.program.play.train()
            plan.captures["step", width, number] = self.lane.capture(steps, self.cursor.zero_)

    def train(self, plan: Plan, steps: int, width: int) -> None:
        """Queue so many steps of local training."""
        chains, rest = divmod(steps, CHAIN)
        for number, times in ((CHAIN, chains), (1, rest)):
            for _ in range(times):
                plan.captures["step", width, number]()

    # looking at data

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the current weights."""
        program = self.supply.program
        program.play.eval()

        def look() -> None:
            z = program.embed(self.weights, self.supply.training, self.extra, self.looking)
            if self.seen is None:
                self.seen = torch.empty_like(z)
            self.seen.copy_(z)

        self.look = self.look or self.lane.capture(look)
        assert self.seen is not None
        return _over(rows, self.looking, self.look, self.seen)

    def embedder(self, client: int, extra: Extra) -> Embed:
        """Return the function that gives a method its client's embeddings; real images are embedded all at once."""
        data, own, held_out = self.bench.data, self.bench.shards.train[client], self.bench.shards.validation[client]
        made = torch.arange(len(extra), device=own.device) + len(data.train_y)
        cache: dict[tuple[bool, Weights], Tensor] = {}

        @torch.no_grad()
        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            real = part != "synthetic"
            if (real, weights) not in cache:
                trained = self.flat.clone() if weights == "received" else None
                if trained is not None:
                    self.load(self.received)
                cache[real, weights] = self.embed(torch.cat([own, held_out]) if real else made)
                if trained is not None:
                    self.load(trained)
            z, y = cache[real, weights], data.train_y
            if not real:
                return z, extra.y
            return (z[: len(own)], y[own]) if part == "train" else (z[len(own) :], y[held_out])

        return embed

    @torch.no_grad()
    def features(self, client: int) -> Tensor:
        """Return the encoder's features of a client's training images under the current weights."""
        rows = self.bench.shards.train[client].split(self.bench.chunk)
        return torch.cat([self.network.features(self.supply.training(part, {})[0]) for part in rows])

    @torch.no_grad()
    def predict(self, plan: Plan, rows: Tensor, kept: Tensors, held: Tensor) -> Tensors:
        """Return the predicted classes of test images, among all classes and among those held."""
        if _shapes(kept) != _shapes(plan.kept):
            plan.kept = {name: value.clone() for name, value in kept.items()}
            plan.captures.pop(SCORE, None)
        _copy(plan.kept, kept)
        plan.held.copy_(held)

        program, anchors = self.supply.program, plan.visit.anchors
        program.play.eval()

        def score() -> None:
            called = program.predict(self.weights, self.supply.testing, self.asked, anchors, plan.kept, plan.held)
            self.called.copy_(called)

        if SCORE not in plan.captures:
            plan.captures[SCORE] = self.lane.capture(score)
        called = _over(rows, self.asked, plan.captures[SCORE], self.called)
        return {"all": called[:, 0].contiguous(), "held": called[:, 1].contiguous()}

    # a client's visit

    def begin(self, job: Job, sent: Tensor) -> Begun:
        """Queue the first part of a client's visit: receiving and training."""
        job = self.bench.learned(job)
        with self.lane.on():
            mark, width = self.lane.mark(), self.supply.width(job.client)
            plan = self.plan(job)
            self.prepare(plan, width)
            self.receive(sent, job)
            extra = self.bench.extra(job, lambda: self.features(job.client))
            self.supply.accommodate(extra, self.extra)
            schedule = make_schedule(self.bench, self.bench.rows[job.client], job.client, job.down.round, width)
            self.fill(schedule, width)
            launched = self.lane.launch(lambda: self.train(plan, schedule.steps, width))
            return Begun(job, plan, extra, schedule, mark, launched)

    def finish(self, begun: Begun, room: float) -> Callable[[], Reply]:
        """Queue the rest of a visit, and return the call that waits for its reply.

        ``room`` is how many bytes of its memory may stay on the device.
        """
        job, plan, bench, method = begun.job, begun.plan, self.bench, self.bench.method
        client = bench.client(job.client)
        begun.launched()
        with self.lane.on():
            rates = bench.rates(job.client, job.down.round)
            embed, signals = self.embedder(job.client, begun.extra), begun.extra.signals
            visit = replace(plan.visit, client=client, embed=embed, rates=rates, signals=signals)
            with torch.no_grad():
                summary, notes = method.summarize(self.network, visit)
                kept = method.remember(self.network, visit)
            shared, own = bench.parted({**self.layout.views(self.flat.clone()), **self.layout.rest})
            sends = self.fresh({**prefixed(MODEL, shared), **summary})
            if bench.home != bench.device:
                sends |= to_host({name: value for name, value in sends.items() if name in bench.by_class})
            memory = self.fresh({**prefixed(MODEL, own), **kept, **prefixed(AUGMENT, under(AUGMENT, job.memory))})
            predictions: Tensors = {}
            if job.evaluate:
                predictions = to_host(self.predict(plan, self.supply.test_rows(job.client), kept, client.counts > 0))
            memory = memory if nbytes(memory) <= room else to_host(memory)
            told = to_host({**self.fresh(notes), **begun.extra.notes, LOG: plan.log[: begun.schedule.steps].clone()})
            done = self.lane.mark()

        def reply() -> Reply:
            done.wait()
            up = Up(
                client=job.client,
                samples=client.samples,
                tensors=self.lane.hand_over(sends),
                notes={name: value for name, value in told.items() if name != LOG},
                losses=begun.schedule.losses(plan.names, told[LOG]),
                seconds=done.seconds_since(begun.mark),
            )
            right = hits(predictions, bench.test_labels(job.client), method.classes) if predictions else {}
            return Reply(up, self.lane.hand_over(memory), right)

        return reply

    def fresh(self, tensors: Tensors) -> Tensors:
        """Return tensors none of which the next visit overwrites."""
        static = {value.untyped_storage().data_ptr() for value in self._static()}
        return {n: v.clone() if v.untyped_storage().data_ptr() in static else v for n, v in tensors.items()}

    def _static(self) -> Iterator[Tensor]:
        yield from (self.flat, self.received, *self.layout.rest.values())
        for plan in self.plans.values():
            for part in (plan.visit.anchors, plan.visit.memory, plan.visit.scratch):
                yield from part.values()
            yield from (plan.visit.client.counts, plan.visit.round, plan.visit.progress)


SCORE = ("score", 0, 0)
LOG = "log of the losses"


def _shapes(tensors: Tensors) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    return tuple((name, value.shape, value.dtype) for name, value in tensors.items())


def _copy(static: Tensors, values: Tensors) -> None:
    for name, tensor in static.items():
        tensor.copy_(values[name], non_blocking=True)


def _over(rows: Tensor, asked: Tensor, replay: Callable[[], None], answer: Tensor) -> Tensor:
    """Return the answers for all rows: a static tensor is filled with as many as fit, replayed and read, in turn."""
    answers = []
    for part in rows.split(len(asked)):
        asked[: len(part)].copy_(part)
        replay()
        answers.append(answer[: len(part)].clone())
    return torch.cat(answers) if answers else answer[:0].clone()


def _pinned(table: Tensor, device: torch.device) -> Tensor:
    return table.pin_memory() if device.type == "cuda" else table


def embeds_nothing(_part: Part, _weights: Weights) -> tuple[Tensor, Tensor]:
    """What a loss finds where it wants to embed its client's data."""
    raise CafedclError("a loss embeds nothing; its batch is what it sees")
