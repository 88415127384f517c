"""One lane's place of work: static tensors, the steps captured on them, and a client's whole visit
queued there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Client, Job, Reply, Up, Visit
from cafedcl.core.flat import FlatModel
from cafedcl.core.tensors import (
    AUGMENT,
    MODEL,
    Tensors,
    cloned,
    moved,
    nbytes,
    prefixed,
    under,
    without,
)
from cafedcl.device.lane import to_host
from cafedcl.device.packed_bytes import PackedBytes
from cafedcl.engine.base import Pending
from cafedcl.engine.cuda.batch_tables import BatchTables
from cafedcl.engine.cuda.broadcast import KEPT, copy_into, shapes
from cafedcl.engine.cuda.captures import Plan, VisitResult
from cafedcl.engine.cuda.device_data import DeviceData
from cafedcl.engine.cuda.replica import CapturedEmbedder, Replica
from cafedcl.engine.cuda.step import ENCODER, Summarize
from cafedcl.engine.schedule import make_schedule
from cafedcl.engine.views import LossView, SummaryView, embeds_nothing
from cafedcl.functional.metrics import KINDS, correct
from cafedcl.functional.reply_check import sound

STEP = "step"
OUTCOME = "outcome"
"""What is captured of a visit: a step of its training, and what it comes to."""


class ClientSlot(Replica):
    """A place where every visit is copied into the same tensors and replayed."""

    def __init__(self, device_data: DeviceData) -> None:
        super().__init__(device_data)
        self.velocity = torch.zeros_like(self.flat) if self.task.schedule.options.momentum else None
        self.one = torch.ones((), device=self.task.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.task.device)
        self.arrival: tuple[Tensor, Callable[[], None]] | None = None
        """Where the server's weights are taken from, and the capture that takes them."""
        self.feeds: dict[int, BatchTables] = {}
        self.looked: dict[int, Tensor] = {}
        self.plans: dict[object, Plan] = {}
        self.static: set[int] = set()
        """Where tensors lie that every visit overwrites; found anew when there is a new plan."""

    def close(self) -> None:
        """Let go of all captures."""
        for plan in self.plans.values():
            plan.close()
        self.arrival = self.see = None

    # receiving

    def plan(self, job: Job) -> Plan:
        """Return the plan for the anchors of a round and the shapes of a client's memory, which is
        copied in.
        """
        memory = without((MODEL, AUGMENT), job.memory)
        shape = (id(self.device_data.broadcast.anchors), shapes(memory))
        plan = self.plans.pop(shape, None)
        if plan is None:
            plan = Plan(self._static_visit(job.client, memory))
            self.static.clear()
        self.plans[shape] = plan
        while len(self.plans) > KEPT:
            self.plans.pop(next(iter(self.plans))).close()
        copy_into(plan.visit.memory, memory)
        return plan

    def _static_visit(self, index: int, memory: Tensors) -> Visit:
        device = self.task.device
        client = self.task.clients.client(index)
        broadcast = self.device_data.broadcast
        known = LossView(client.counts.clone(), client.most, client.total)
        return Visit(
            client=cast(Client, known),
            round=broadcast.round,
            progress=broadcast.progress,
            received=self.layout.views(self.received),
            anchors=broadcast.anchors,
            memory={name: value.to(device, copy=True) for name, value in memory.items()},
            scratch=self.task.method.scratch(client),
            embed=embeds_nothing,
            rates=float("nan"),
        )

    def receive(self, sent: Tensor, job: Job) -> None:
        """Go to the start of a visit: take in the server's weights, and the client's own over them."""
        if self.arrival is None or self.arrival[0] is not sent:
            self.arrival = sent, self.lane.capture(lambda: self.arrive(sent))
        self.arrival[1]()
        own = under(MODEL, job.memory)
        if own:
            views = self.layout.views(self.received)
            copy_into({name: views[name] for name in own if name in views}, own)
            self.load(self.received)
        if self.layout.rest:
            copy_into(
                self.layout.rest, {**self.task.initial, **under(MODEL, job.down.tensors), **own}
            )
            copy_into(self.still, under(ENCODER, self.layout.rest))

    def arrive(self, sent: Tensor) -> None:
        """Take in the server's weights, before the first step. This is captured."""
        self.received.copy_(sent)
        self.load(sent)
        self.cursor.zero_()
        if self.velocity is not None:
            self.velocity.zero_()

    # training

    def step(self, plan: Plan, width: int) -> None:
        """One optimizer step: gather, forward, loss, backward, clip, update. This is what is
        captured.
        """
        program = self.device_data.program
        feed = self.feed(width).tables
        at = self.cursor
        asked = [*self.leaves.values(), *self.halves.values()]
        with torch.enable_grad():
            loss, terms = program.objective(
                self.weights, self.device_data.training, self.extra, feed, at, plan.visit
            )
            found = torch.autograd.grad(loss, asked, self.one, allow_unused=True)
        half = None if self.half is self.flat else self.half
        program.update(
            self.flat, half, self.gradients(found), self.velocity, feed, at, terms, plan.log
        )

    def gradients(self, found: Sequence[Tensor | None]) -> list[list[Tensor]]:
        """Return each weight's gradients as it lies: through the weight itself, through its half,
        or both.
        """
        own = found[: len(self.leaves)]
        half = found[len(self.leaves) :]
        gradients = []
        for entry, weight, *both in zip_longest(
            self.layout.entries.values(), self.leaves.values(), own, half
        ):
            parts = [part for part in both if part is not None] or [torch.zeros_like(weight)]
            gradients.append([entry.place.as_it_lies(part) for part in parts])
        return gradients

    def feed(self, width: int) -> BatchTables:
        """Return the static tables of a schedule of this width."""
        if width not in self.feeds:
            client = next(
                k
                for k in range(len(self.task.clients.shards))
                if self.device_data.width(k) == width
            )
            sample = make_schedule(self.task, self.task.tail.rows[client], client, 0, width)
            self.feeds[width] = BatchTables(sample, self.device_data.steps, self.task.device)
        return self.feeds[width]

    def prepare(self, plan: Plan, width: int) -> None:
        """Capture the steps of a width, if they are not yet. It moves the weights."""
        if not plan.names:
            self.cursor.zero_()
            feed = self.feed(width).tables
            program = self.device_data.program
            images = self.device_data.training
            plan.names = program.names(
                self.weights, images, self.extra, feed, self.cursor, plan.visit
            )
            plan.log = self.flat.new_zeros(self.device_data.steps, len(plan.names))

        def ready() -> None:
            self.device_data.program.play.train()
            self.cursor.zero_()

        plan.prepare(
            self.lane, STEP, width, self.device_data.steps, lambda: self.step(plan, width), ready
        )

    # a client's visit

    def visit(self, job: Job, sent: Tensor, room: float) -> Iterator[Reply | None]:
        """Queue a client's training, then what it comes to, and wait for the reply: three stages,
        each when asked for.

        ``room`` is how many bytes of its memory may stay on the device.
        """
        task = self.task
        method = self.task.method
        job = task.tail.learned(job)
        client = task.clients.client(job.client)
        augmented = (
            prefixed(AUGMENT, under(AUGMENT, job.memory)) if task.tail.augmented[job.client] else {}
        )
        with self.lane.on(), torch.no_grad():
            began = self.lane.mark()
            width = self.device_data.width(job.client)
            plan = self.plan(job)
            plan.visit.client.counts.copy_(client.counts)
            self.prepare(plan, width)
            self.receive(sent, job)
            extra = task.tail.extra(job, lambda: self.features(job.client))
            self.device_data.accommodate(extra, self.extra)
            schedule = make_schedule(
                task, task.tail.rows[job.client], job.client, job.down.round, width
            )
            self.feed(width).fill(schedule)
            plan.repeat(STEP, width, schedule.steps)
        yield None

        with self.lane.on(), torch.no_grad():
            outcome = self.outcome(plan, job, extra)
            trained = self.flat.clone()
            rest = self.fresh(self.layout.rest)
            shared, own = self.parted(trained, rest)
            memory = {**prefixed(MODEL, own), **outcome.kept, **augmented}
            predicted = None
            if job.evaluate:
                predicted = self.predict(
                    plan, self.device_data.test_rows(job.client), outcome.kept, client.counts > 0
                )
            memory = memory if nbytes(memory) <= room else to_host(memory)
            notes = to_host(extra.notes)
            done = self.lane.mark()
        yield None

        done.wait()
        broadcast = outcome.packed.read(outcome.broadcast)
        small = as_tensors(SENT, broadcast)
        held = task.clients.holds[job.client]
        if outcome.whole and len(held) < method.classes:
            small = {name: value[held] for name, value in small.items()}
        up = Up(
            client=job.client,
            samples=client.samples,
            tensors={**outcome.sent, **small},
            model=shared,
            notes={**as_tensors(NOTE, broadcast), **notes},
            losses=schedule.losses(plan.names, broadcast[LOG]),
            seconds=done.seconds_since(began),
        )
        right: Tensors = {}
        if predicted is not None:
            right = correct(
                dict(zip(KINDS, predicted.T, strict=True)),
                task.clients.test_labels(job.client),
                method.classes,
            )
        self.lane.hand_over([trained, *rest.values(), *outcome.sent.values(), *memory.values()])
        yield Reply(up, memory, right, sound=not augmented and bool(broadcast[SOUND]))

    def score(self, job: Job, sent: Tensor, rows: Tensor) -> Pending:
        """Queue a look of the received model at test images, and return the call that waits for its
        predictions.
        """
        self.lane.follow()
        with self.lane.on():
            self.receive(sent, job)
            plan = self.plan(job)
            predicted = self.predict(plan, rows, {}, None)
            done = self.lane.mark()

        def predictions() -> Tensor:
            done.wait()
            return predicted[:, KINDS.index("all")]

        return predictions

    def parted(self, trained: Tensor, rest: Tensors) -> tuple[Mapping[str, Tensor], Tensors]:
        """Return the weights that are averaged, and those that stay with their client."""
        if self.task.personal or rest:
            return self.task.parted({**self.layout.views(trained), **rest})
        return FlatModel(trained, self.layout.slices), {}

    def outcome(self, plan: Plan, job: Job, extra: SyntheticImages) -> VisitResult:
        """Return what a visit comes to, with what it tells on its way to the host."""
        client = job.client
        task = self.task
        made = None if len(extra) else self.replayed(plan, client)
        keep = cloned
        if made is None:
            visit = replace(
                plan.visit,
                client=task.clients.client(client),
                embed=self.embedder(client, extra),
                rates=task.rates(client, job.down.round),
                signals=extra.signals,
            )
            made = self.conclude(plan, visit, self.device_data.program.summarize)._replace(
                whole=False
            )
            keep = self.fresh
        return made._replace(
            sent=keep(made.sent),
            kept=keep(made.kept),
            broadcast=made.broadcast.to("cpu", non_blocking=True),
        )

    def replayed(self, plan: Plan, client: int) -> VisitResult | None:
        """Return what a visit comes to by one replay, if the method can be captured and the
        client's images are few.

        It is good until the next replay.
        """
        looked = self.device_data.looked(client) if self.task.method.replayed else None
        if looked is None:
            return None
        size = looked.shape[1]
        if size not in self.looked:
            self.looked[size] = torch.zeros_like(looked)
        place = self.looked[size].copy_(looked)
        if (OUTCOME, size, 1) not in plan.captures:
            known = plan.visit.client
            holds = torch.arange(self.task.method.classes, device=looked.device)
            anyone = cast(Client, SummaryView(known.counts, holds, known.most, known.total))
            program = self.device_data.program
            first = CapturedEmbedder(self, place)
            program.play.eval()
            whole = self.conclude(
                plan, replace(plan.visit, client=anyone, embed=first), program.summarize
            ).whole
            asked = tuple(first.seen)

            def conclude() -> None:
                look = CapturedEmbedder(self, place)
                for weights in asked:
                    look.see(weights)
                visit = replace(plan.visit, client=anyone, embed=look)
                found = self.conclude(plan, visit, program.summary if asked else program.summarize)
                plan.outcomes[size] = found._replace(whole=whole)

            plan.captures[OUTCOME, size, 1] = self.lane.capture(conclude)
        plan.captures[OUTCOME, size, 1]()
        return plan.outcomes[size]

    def conclude(self, plan: Plan, visit: Visit, summarize: Summarize) -> VisitResult:
        """Let the method summarize a visit, and put together what the host is told."""
        small = self.task.per_class
        summary, notes, kept = summarize(self.network, visit)
        sent = {name: value for name, value in summary.items() if name not in small}
        others = (*summary.values(), *kept.values(), *self.layout.rest.values())
        numbers = [value for value in others if value.is_floating_point() and value.numel()]
        broadcast = {
            **prefixed(SENT, {name: value for name, value in summary.items() if name in small}),
            **prefixed(NOTE, notes),
            LOG: plan.log,
            SOUND: sound([self.flat, *numbers], summary, self.task.fields),
        }
        packed = PackedBytes(broadcast)
        whole = summary.get("classes") is visit.client.holds
        return VisitResult(
            sent, kept, packed.wrap(moved(broadcast, self.task.device)), packed, whole
        )

    def fresh(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Return tensors none of which the next visit overwrites."""
        self.static = self.static or {
            value.untyped_storage().data_ptr() for value in self._static()
        }
        return {
            n: v.clone() if v.untyped_storage().data_ptr() in self.static else v
            for n, v in tensors.items()
        }

    def _static(self) -> Iterator[Tensor]:
        yield from (
            self.flat,
            self.received,
            *self.layout.rest.values(),
            *self.device_data.broadcast.values(),
        )
        for plan in self.plans.values():
            yield from (
                *plan.visit.memory.values(),
                *plan.visit.scratch.values(),
                plan.visit.client.counts,
            )


def as_tensors(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Tensors:
    """Return the arrays below ``prefix`` as tensors, with the prefix taken off."""
    return under(
        prefix, {name: torch.from_numpy(a) for name, a in arrays.items() if name.startswith(prefix)}
    )


LOG = "log"
SOUND = "sound"
SENT = "sent/"
NOTE = "note/"
"""What the host is told of a visit: the losses, whether all numbers are as they should be, entries
per class, notes.
"""
