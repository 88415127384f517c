"""One lane's network: static weights, and passes over images with them, captured once and replayed."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Embed, Part, Weights
from cafedcl.core.tensors import Tensors, cloned, under
from cafedcl.device.lane import Lane
from cafedcl.engine.cuda.broadcast import copy_into, shapes
from cafedcl.engine.cuda.captures import Plan
from cafedcl.engine.cuda.device_data import PARTS, DeviceData
from cafedcl.engine.cuda.step import ENCODER, Bound, Given
from cafedcl.engine.layout import Layout

SCORE = "score"


class Replica:
    """A copy of the network on one lane, whose weights always lie in the same tensors, and what it
    sees in images.

    Its callers have switched gradients off.
    """

    def __init__(self, device_data: DeviceData) -> None:
        self.device_data = device_data
        self.task = device_data.task
        self.lane = Lane(self.task.device)
        self.network = copy.deepcopy(self.task.network).eval()
        self.layout = Layout(self.network, device_data.channels_last)
        self.flat = self.layout.flat
        self.leaves = self.layout.leaves
        dtype = device_data.program.dtype
        network = {**self.leaves, **self.layout.rest}
        self.half = self.flat if dtype == self.flat.dtype else self.flat.to(dtype)
        self.halves = {} if self.half is self.flat else under(ENCODER, self.layout.views(self.half))
        for half in self.halves.values():
            half.requires_grad_()
        rest = under(ENCODER, self.layout.rest)
        self.still = {} if self.half is self.flat else device_data.program.play.runner.cast(rest)
        self.weights = Given(network, {**under(ENCODER, network), **self.still, **self.halves})
        self.network.runner = Bound(device_data.program.play.runner, self.weights.body)
        self.received = torch.empty_like(self.flat)
        device = self.task.device
        self.extra = device_data.room()
        self.looking = torch.zeros(device_data.look, dtype=torch.int64, device=device)
        self.seen: Tensor | None = None
        self.see: Callable[[], None] | None = None
        chunks = -(-len(device_data.test_x) // self.task.eval_batch)
        self.asked = torch.zeros(chunks, self.task.eval_batch, dtype=torch.int64, device=device)
        self.rows: Tensor | None = None
        """What was asked for last."""
        self.predicted = torch.zeros(
            chunks, self.task.eval_batch, 2, dtype=torch.int16, device=device
        )
        self.at = torch.zeros(1, dtype=torch.int64, device=device)

    def load(self, flat: Tensor) -> None:
        """Make these the current weights."""
        self.flat.copy_(flat)
        if self.half is not self.flat:
            self.half.copy_(flat)

    def embed(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the current weights."""

        def look() -> None:
            z = self.look(self.looking)
            if self.seen is None:
                self.seen = torch.empty_like(z)
            self.seen.copy_(z)

        if self.see is None:
            self.device_data.program.play.eval()
            self.see = self.lane.capture(look)
        assert self.seen is not None
        return over(rows, self.looking, self.see, self.seen)

    def look(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images in one pass, uncaptured."""
        return self.device_data.program.embed(
            self.weights, self.device_data.training, self.extra, rows
        )

    def embedder(self, client: int, extra: SyntheticImages) -> Embed:
        """Return the function that gives a method its client's embeddings; real images are embedded
        all at once.
        """
        own = self.task.clients.shards.train[client]
        held_out = self.task.clients.shards.validation[client]
        y = self.task.clients.data.train_y
        cache: dict[tuple[bool, Weights], Tensor] = {}

        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            real = part != "synthetic"
            if (real, weights) not in cache:
                rows = (
                    torch.cat([own, held_out])
                    if real
                    else torch.arange(len(extra), device=own.device) + len(y)
                )
                with self.holding(weights):
                    cache[real, weights] = self.embed(rows)
            z = cache[real, weights]
            if not real:
                return z, extra.y
            return (z[: len(own)], y[own]) if part == "train" else (z[len(own) :], y[held_out])

        return embed

    @contextmanager
    def holding(self, weights: str) -> Iterator[None]:
        """Run a block under the trained or the received weights."""
        trained = self.flat.clone() if weights == "received" else None
        if trained is not None:
            self.load(self.received)
        yield
        if trained is not None:
            self.load(trained)

    def features(self, client: int) -> Tensor:
        """Return the encoder's features of a client's training images under the current weights."""
        rows = self.task.clients.shards.train[client].split(self.task.eval_batch)
        return torch.cat(
            [self.network.features(self.device_data.training(part, {})[0]) for part in rows]
        )

    def predict(self, plan: Plan, rows: Tensor, kept: Tensors, held: Tensor | None) -> Tensor:
        """Return the predicted classes of test images, among all and among those held, on their way
        to the host.

        Rows that are the same tensor as the last are not copied again. Nobody asks for classes held
        if it is None.
        """
        program = self.device_data.program
        anchors = plan.visit.anchors
        size = self.task.eval_batch
        chunks = -(-len(rows) // size)
        if shapes(kept) != shapes(plan.kept):
            plan.kept = cloned(kept)
            for key in [key for key in plan.captures if key[0] == SCORE]:
                del plan.captures[key]
        copy_into(plan.kept, kept)
        if held is not None:
            plan.held.copy_(held)
        if self.rows is not rows:
            self.rows = rows
            self.asked.view(-1)[: len(rows)].copy_(rows)

        def ready() -> None:
            program.play.eval()
            self.at.zero_()

        def score() -> None:
            images = self.device_data.testing
            asked = self.asked
            at = self.at
            predicted = self.predicted
            program.predict(
                self.weights, images, asked, at, anchors, plan.kept, plan.held, predicted
            )

        plan.prepare(self.lane, SCORE, size, chunks, score, ready)
        self.at.zero_()
        plan.repeat(SCORE, size, chunks)
        return self.predicted.view(-1, 2)[: len(rows)].to("cpu", non_blocking=True, copy=True)


class CapturedEmbedder:
    """Gives a method its client's embeddings under a capture; what is not of the part asked for has
    label −1.
    """

    def __init__(self, sight: Replica, looked: Tensor) -> None:
        self.sight = sight
        self.rows, self.parts = looked
        self.y = sight.task.clients.data.train_y.index_select(0, self.rows)
        self.seen: Tensors = {}
        """By the weights they are made with."""

    def __call__(self, part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
        """Return embeddings and labels."""
        if weights not in self.seen:
            self.see(weights)
        return self.seen[weights], self.y.masked_fill(self.parts != PARTS.index(part), -1)

    def see(self, weights: str) -> None:
        """Look at all images under the trained or the received weights."""
        with self.sight.holding(weights):
            few = self.rows.split(self.sight.device_data.look)
            self.seen[weights] = torch.cat([self.sight.look(rows) for rows in few])


def over(rows: Tensor, asked: Tensor, replay: Callable[[], None], answer: Tensor) -> Tensor:
    """Return the answers for all rows: a static tensor is filled with as many as fit, replayed and
    read, in turn.
    """
    answers = []
    for part in rows.split(len(asked)):
        asked[: len(part)].copy_(part)
        replay()
        answers.append(answer[: len(part)].clone())
    return torch.cat(answers) if answers else answer[:0].clone()
