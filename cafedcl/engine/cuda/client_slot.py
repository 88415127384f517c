"""The static tensors of one lane, with the training step and summary captured on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import cast

import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Client, Job, Visit
from cafedcl.core.flat import FlatModel
from cafedcl.core.tensors import (
    ENCODER,
    MODEL,
    Tensors,
    cloned,
    method_memory,
    moved,
    prefixed,
    under,
)
from cafedcl.device.packed_bytes import PackedBytes
from cafedcl.engine.base import Pending
from cafedcl.engine.cuda.batch_tables import BatchTables
from cafedcl.engine.cuda.broadcast import SHAPES_KEPT, copy_into, shapes
from cafedcl.engine.cuda.captures import Captures, VisitResult
from cafedcl.engine.cuda.constants import VisitConstants
from cafedcl.engine.cuda.device_data import DeviceData
from cafedcl.engine.cuda.replica import CapturedEmbedder, Replica
from cafedcl.engine.cuda.step import Summarize
from cafedcl.engine.optimizer import start_state
from cafedcl.engine.schedule import make_schedule
from cafedcl.engine.views import LossView, SummaryView, embeds_nothing
from cafedcl.functional.metrics import KINDS
from cafedcl.functional.reply_check import numbers_are_valid
from cafedcl.methods import checked

STEP = "step"
SUMMARY = "summary"
"""The kinds of work that are captured for a visit, besides scoring."""
LOSSES = "losses"
VALID = "valid"
SENT = "sent/"
NOTE = "note/"
"""The names under which the host finds a visit's numbers; the last two are prefixes."""


class ClientSlot(Replica):
    """A network on one lane on which clients train in turn.

    Every visit is copied into the same tensors, because a captured step reads and writes fixed
    addresses. Callers must switch gradients off.
    """

    def __init__(self, device_data: DeviceData) -> None:
        super().__init__(device_data)
        options = self.task.schedule.options
        self.optimizer_state = start_state(self.flat, options)
        self.factors = self.network_weights.factors(ENCODER, options.encoder_factor)
        self.one = torch.ones((), device=self.task.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.task.device)
        """The number of the next step, which every step increments on the device."""
        self.receiving: tuple[Tensor, Callable[[], None]] | None = None
        """The vector that the server's weights are copied from, and the capture that copies it."""
        self.tables: dict[int, BatchTables] = {}
        self.image_rows: dict[int, Tensor] = {}
        """The rows of a client's own images, by their number with padding."""
        self.captures: dict[object, Captures] = {}
        """By the shapes of anchors and memory; the last used is last."""
        self.overwritten: set[int] = set()
        """Addresses of the tensors that the next visit overwrites; empty until needed."""

    def close(self) -> None:
        """Free all captures."""
        for captures in self.captures.values():
            captures.close()
        self.receiving = None
        self.embed_call = None

    # receiving

    def captures_for(self, job: Job) -> Captures:
        """Return the captures for a job's shapes of anchors and memory, and copy its memory in."""
        memory = method_memory(job.memory)
        key = (id(self.device_data.broadcast.anchors), shapes(memory))
        captures = self.captures.pop(key, None)
        if captures is None:
            captures = Captures(self._static_visit(job.client, memory))
            self.overwritten.clear()
        self.captures[key] = captures
        while len(self.captures) > SHAPES_KEPT:
            oldest = next(iter(self.captures))
            self.captures.pop(oldest).close()
        copy_into(captures.visit.memory, memory)
        rates = cast(Tensor, captures.visit.rates)
        rates.fill_(self.task.rates(job.client, job.down.round))
        return captures

    def _static_visit(self, index: int, memory: Tensors) -> Visit:
        client = self.task.clients.client(index)
        broadcast = self.device_data.broadcast
        view = LossView(client.counts.clone(), client.census)
        return Visit(
            client=cast(Client, view),
            round=broadcast.round,
            progress=broadcast.progress,
            received=self.network_weights.views(self.received),
            anchors=broadcast.anchors,
            memory={name: value.to(self.task.device, copy=True) for name, value in memory.items()},
            scratch=checked.scratch(self.task.method, client),
            embed=embeds_nothing,
            rates=torch.ones((), device=self.task.device),
        )

    def receive(self, server_weights: Tensor, job: Job) -> None:
        """Start a visit: load the server's weights, then the client's personal ones."""
        if self.receiving is None or self.receiving[0] is not server_weights:
            capture = self.lane.capture(lambda: self._load_server_weights(server_weights))
            self.receiving = server_weights, capture
        self.receiving[1]()
        personal = under(MODEL, job.memory)
        if personal:
            views = self.network_weights.views(self.received)
            copy_into({name: views[name] for name in personal if name in views}, personal)
            self.load(self.received)
        if self.changing:
            values = {**self.task.initial, **under(MODEL, job.down.tensors), **personal}
            copy_into(self.changing, values)
            if self.untrained:
                encoder = under(ENCODER, self.changing)
                copy_into({name: self.untrained[name] for name in encoder}, encoder)

    def _load_server_weights(self, server_weights: Tensor) -> None:
        """Load the server's weights and reset the state of a visit. This is captured."""
        self.received.copy_(server_weights)
        self.load(server_weights)
        self.cursor.zero_()
        for value in self.optimizer_state.values():
            value.zero_()

    # training

    def step(self, captures: Captures, width: int) -> None:
        """One optimizer step: gather, forward, loss, backward, clip, update. This is captured."""
        program = self.device_data.program
        constants = captures.constants
        assert constants is not None
        tables = self.batch_tables(width).tables
        asked = [*self.leaves.values(), *self.halves.values()]
        with torch.enable_grad():
            loss, terms = program.objective(
                self.weights,
                self.device_data.training,
                self.synthetic,
                tables,
                self.cursor,
                captures.visit,
                constants.tables,
            )
            checked.check_gradient(self.task.method, loss)
            found = torch.autograd.grad(loss, asked, self.one, allow_unused=True)
        program.update(
            self.flat,
            None if self.half is self.flat else self.half,
            self._gradients(found),
            self.optimizer_state,
            self.factors,
            tables,
            self.cursor,
            terms,
            captures.loss_log,
        )

    def _gradients(self, found: Sequence[Tensor | None]) -> list[list[Tensor]]:
        """Return each weight's gradients in memory order.

        A weight has a gradient through itself, through its copy in lower precision, or both.
        """
        own = found[: len(self.leaves)]
        half = found[len(self.leaves) :]
        slices = self.network_weights.slices.values()
        gradients = []
        # Only the encoder's weights, which come first, have a copy.
        for part, weight, *both in zip_longest(slices, self.leaves.values(), own, half):
            parts = [gradient for gradient in both if gradient is not None]
            parts = parts or [torch.zeros_like(weight)]
            gradients.append([part.in_memory_order(gradient) for gradient in parts])
        return gradients

    def batch_tables(self, width: int) -> BatchTables:
        """Return the static tables of a schedule of this width."""
        if width not in self.tables:
            clients = range(len(self.task.clients.shards))
            client = next(k for k in clients if self.device_data.width(k) == width)
            sample = make_schedule(self.task, self.task.tail.rows[client], client, 0, width)
            self.tables[width] = BatchTables(sample, self.device_data.steps, self.task.device)
        return self.tables[width]

    def prepare(self, captures: Captures, width: int) -> None:
        """Capture the steps of a width, unless they are captured. Capturing moves the weights."""
        if not captures.loss_names:
            constants = captures.constants = self._visit_constants(captures)
            self.cursor.zero_()
            captures.loss_names = self.device_data.program.loss_names(
                self.weights,
                self.device_data.training,
                self.synthetic,
                self.batch_tables(width).tables,
                self.cursor,
                captures.visit,
                constants.tables,
            )
            shape = (self.device_data.steps, len(captures.loss_names))
            captures.loss_log = self.flat.new_zeros(shape)

        def rewind() -> None:
            self.device_data.program.functional.train()
            self.cursor.zero_()

        captures.prepare(
            self.lane,
            STEP,
            width,
            self.device_data.steps,
            lambda: self.step(captures, width),
            rewind,
        )

    def _visit_constants(self, captures: Captures) -> VisitConstants:
        """Return what keeps the constants of these captures' visits."""
        task = self.task
        device_data = self.device_data

        def compute() -> Tensors:
            # Random transforms change the images, so every step computes its own constants.
            if task.transforms or not task.method.defines("constants"):
                return {}
            return device_data.program.constants(
                self.weights,
                device_data.training,
                self.synthetic,
                self.embed_rows,
                captures.visit,
            )

        return VisitConstants(
            self.lane,
            self.embed_rows,
            compute,
            most=int(task.tail.sizes.max()),
            images=len(task.clients.data.train_y) + device_data.most_synthetic,
        )

    # the client's result

    def split_personal(
        self, trained: Tensor, rest: Tensors
    ) -> tuple[Mapping[str, Tensor], Tensors]:
        """Return the weights that are averaged, and those that stay with their client."""
        if self.task.personal or rest:
            return self.task.parted({**self.network_weights.views(trained), **rest})
        return FlatModel(trained, self.network_weights.slices), {}

    def summarize(self, captures: Captures, job: Job, synthetic: SyntheticImages) -> VisitResult:
        """Return the result of a visit, whose part for the host is already being copied there."""
        replayed = None if len(synthetic) else self.replay_summary(captures, job.client)
        if replayed is not None:
            # The next replay overwrites the result of this one.
            return replayed._replace(
                sent=cloned(replayed.sent),
                kept=cloned(replayed.kept),
                to_host=replayed.to_host.to("cpu", non_blocking=True),
            )
        visit = replace(
            captures.visit,
            client=self.task.clients.client(job.client),
            embed=self.embedder(job.client, synthetic),
            rates=self.task.rates(job.client, job.down.round),
            signals=synthetic.signals,
        )
        result = self._result(captures, visit, self.device_data.program.summarize)
        return result._replace(
            sent=self.unshared(result.sent),
            kept=self.unshared(result.kept),
            to_host=result.to_host.to("cpu", non_blocking=True),
        )

    def replay_summary(self, captures: Captures, client: int) -> VisitResult | None:
        """Return a visit's result by one replay; None if this client's summary is not captured.

        A method may say that its summary cannot be captured, and a client may have too many images.
        The result is valid until the next replay.
        """
        if not self.task.method.replayed:
            return None
        rows = self.device_data.image_rows(client)
        if rows is None:
            return None
        size = rows.shape[1]
        if size not in self.image_rows:
            self.image_rows[size] = torch.zeros_like(rows)
        static_rows = self.image_rows[size].copy_(rows)
        if (SUMMARY, size, 1) not in captures.calls:
            self._capture_summary(captures, static_rows)
        captures.calls[SUMMARY, size, 1]()
        return captures.results[size]

    def _capture_summary(self, captures: Captures, rows: Tensor) -> None:
        """Capture the summary of clients with as many images as there are rows.

        It is the summary of a client that holds all classes; the host picks those of the client.
        """
        size = rows.shape[1]
        known = captures.visit.client
        holds = torch.arange(self.task.method.classes, device=rows.device)
        view = cast(Client, SummaryView(known.counts, holds, known.census))
        program = self.device_data.program
        program.functional.eval()
        # An uncaptured run shows which weights the method embeds with. The embeddings are computed
        # before the summary, so that the encoder need not be compiled into it.
        probe = CapturedEmbedder(self, rows)
        visit = replace(captures.visit, client=view, embed=probe, captured=True)
        self._result(captures, visit, program.summarize)
        asked = tuple(probe.seen)

        def summarize() -> None:
            embedder = CapturedEmbedder(self, rows)
            for weights in asked:
                embedder.embed(weights)
            visit = replace(captures.visit, client=view, embed=embedder, captured=True)
            compiles = asked and program.method.compiles_summary
            chosen = program.compiled_summary if compiles else program.summarize
            captures.results[size] = self._result(captures, visit, chosen)

        captures.calls[SUMMARY, size, 1] = self.lane.capture(summarize)

    def _result(self, captures: Captures, visit: Visit, summarize: Summarize) -> VisitResult:
        """Let the method summarize a visit, and pack what the host needs of it."""
        per_class = self.task.per_class
        summary, notes, kept = summarize(self.network, visit)
        others = (*summary.values(), *kept.values(), *self.changing.values())
        numbers = [value for value in others if value.is_floating_point() and value.numel()]
        on_host = {
            **prefixed(SENT, {name: v for name, v in summary.items() if name in per_class}),
            **prefixed(NOTE, notes),
            LOSSES: captures.loss_log,
            VALID: numbers_are_valid([self.flat, *numbers], summary, self.task.fields),
        }
        packed = PackedBytes.like(on_host)
        return VisitResult(
            sent={name: value for name, value in summary.items() if name not in per_class},
            kept=kept,
            to_host=packed.wrap(moved(on_host, self.task.device)),
            packed=packed,
            captured=visit.captured,
        )

    def unshared(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Return tensors, with copies of those that the next visit overwrites."""
        if not self.overwritten:
            self.overwritten = {
                value.untyped_storage().data_ptr() for value in self._static_tensors()
            }
        return {
            name: value.clone() if value.untyped_storage().data_ptr() in self.overwritten else value
            for name, value in tensors.items()
        }

    def _static_tensors(self) -> Iterator[Tensor]:
        yield from (self.flat, self.received, *self.network_weights.rest.values())
        yield from self.device_data.broadcast.values()
        for captures in self.captures.values():
            visit = captures.visit
            yield from (*visit.memory.values(), *visit.scratch.values(), visit.client.counts)

    # scoring the server's model

    def score(self, job: Job, server_weights: Tensor, rows: Tensor) -> Pending:
        """Queue the server model's predictions of test images; return the call that waits."""
        self.lane.follow()
        with self.lane.on():
            self.receive(server_weights, job)
            predicted = self.predict(self.captures_for(job), rows, {}, None)
            done = self.lane.mark()

        def predictions() -> Tensor:
            done.wait()
            return predicted[:, KINDS.index("all")]

        return predictions
