"""A copy of the network on one lane, and captured passes of images through it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Embed, Part, Weights
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.tensors import ENCODER, Tensors, cloned, under
from cafedcl.device.lane import Lane
from cafedcl.engine.cuda.broadcast import copy_into, shapes
from cafedcl.engine.cuda.captures import Captures
from cafedcl.engine.cuda.device_data import PARTS, DeviceData
from cafedcl.engine.cuda.step import BoundEncoder, StepWeights
from cafedcl.functional.metrics import KINDS

SCORE = "score"


class Replica:
    """A copy of the network on one lane, whose weights are always in the same tensors.

    Callers must switch gradients off.
    """

    def __init__(self, device_data: DeviceData) -> None:
        self.device_data = device_data
        self.task = device_data.task
        device = self.task.device
        program = device_data.program
        self.lane = Lane(device)
        self.network = copy.deepcopy(self.task.network).eval()
        self.network_weights = FlatNetwork(self.network, channels_last=device_data.channels_last)
        self.flat = self.network_weights.vector
        self.leaves = self.network_weights.leaves
        rest = self.network_weights.rest
        weights = {**self.leaves, **rest}
        self.changing = {n: value for n, value in rest.items() if n not in self.task.frozen}
        """What is not trained, but changes: the statistics of normalisations, for example."""
        # In a lower precision the encoder reads a second vector, so that no step has to cast the
        # weights. In fp32 it is the same one.
        self.half = self.flat
        self.halves: Tensors = {}
        self.untrained: Tensors = {}
        """The encoder's buffers and frozen weights in the lower precision."""
        if program.dtype != self.flat.dtype:
            self.half = self.flat.to(program.dtype)
            self.halves = under(ENCODER, self.network_weights.views(self.half))
            for half in self.halves.values():
                half.requires_grad_()
            self.untrained = program.functional.runner.cast(under(ENCODER, rest))
        encoder = {**under(ENCODER, weights), **self.untrained, **self.halves}
        self.weights = StepWeights(weights, encoder)
        self.network.runner = BoundEncoder(program.functional.runner, encoder)
        self.received = torch.empty_like(self.flat)
        """The weights that the current visit began with."""
        self.synthetic = device_data.synthetic_room()
        self.embed_rows = torch.zeros(device_data.embed_batch, dtype=torch.int64, device=device)
        self.embed_result: Tensor | None = None
        self.embed_call: Callable[[], None] | None = None
        """The captured pass of ``embed_rows``, and where it leaves the embeddings."""
        batches = -(-len(device_data.test_x) // self.task.eval_batch)
        shape = (batches, self.task.eval_batch)
        self.test_rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self.last_rows: Tensor | None = None
        """The rows that were copied into ``test_rows`` last."""
        self.predicted = torch.zeros(*shape, len(KINDS), dtype=torch.int16, device=device)
        self.batch = torch.zeros(1, dtype=torch.int64, device=device)
        """The number of the next batch to score, which every pass increments on the device."""

    def load(self, flat: Tensor) -> None:
        """Make these the current weights."""
        self.flat.copy_(flat)
        if self.half is not self.flat:
            self.half.copy_(flat)

    def embed(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the current weights."""

        def embed_batch() -> None:
            z = self.embed_uncaptured(self.embed_rows)
            if self.embed_result is None:
                self.embed_result = torch.empty_like(z)
            self.embed_result.copy_(z)

        if self.embed_call is None:
            self.device_data.program.functional.eval()
            self.embed_call = self.lane.capture(embed_batch)
        assert self.embed_result is not None
        embeddings = []
        for part in rows.split(len(self.embed_rows)):
            # The last part is shorter; the results of the rows after it are not read.
            self.embed_rows[: len(part)].copy_(part)
            self.embed_call()
            embeddings.append(self.embed_result[: len(part)].clone())
        return torch.cat(embeddings) if embeddings else self.embed_result[:0].clone()

    def embed_uncaptured(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images in one pass."""
        return self.device_data.program.embed(
            self.weights, self.device_data.training, self.synthetic, rows
        )

    def embedder(self, client: int, synthetic: SyntheticImages) -> Embed:
        """Return the function that gives a method its client's embeddings.

        Training and validation images are embedded together, in as few passes as possible.
        """
        own = self.task.clients.shards.train[client]
        held_out = self.task.clients.shards.validation[client]
        labels = self.task.clients.data.train_y
        cache: dict[tuple[bool, Weights], Tensor] = {}

        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            is_real = part != "synthetic"
            if (is_real, weights) not in cache:
                if is_real:
                    rows = torch.cat([own, held_out])
                else:
                    rows = torch.arange(len(synthetic), device=own.device) + len(labels)
                with self.holding(weights):
                    cache[is_real, weights] = self.embed(rows)
            z = cache[is_real, weights]
            if part == "synthetic":
                return z, synthetic.y
            if part == "train":
                return z[: len(own)], labels[own]
            return z[len(own) :], labels[held_out]

        return embed

    @contextmanager
    def holding(self, weights: str) -> Iterator[None]:
        """Run a block under the trained or the received weights."""
        if weights != "received":
            yield
            return
        trained = self.flat.clone()
        self.load(self.received)
        yield
        self.load(trained)

    def features(self, client: int) -> Tensor:
        """Return the encoder's features of a client's training images under the current weights."""
        batches = self.task.clients.shards.train[client].split(self.task.eval_batch)
        images = [self.device_data.training(rows, {})[0] for rows in batches]
        return torch.cat([self.network.features(x) for x in images])

    def predict(
        self, captures: Captures, rows: Tensor, kept: Tensors, prior: Tensor | None
    ) -> Tensor:
        """Return predicted classes (images, kinds) of test images, being copied to the host.

        ``prior`` is the client's; it may be None if the columns that use it are not read. Rows that
        are the same tensor as the last are not copied again.
        """
        program = self.device_data.program
        size = self.task.eval_batch
        batches = -(-len(rows) // size)
        if shapes(kept) != shapes(captures.kept):
            captures.kept = cloned(kept)
            for key in [key for key in captures.calls if key[0] == SCORE]:
                del captures.calls[key]
        copy_into(captures.kept, kept)
        if prior is not None:
            captures.prior.copy_(prior)
        if self.last_rows is not rows:
            self.last_rows = rows
            self.test_rows.view(-1)[: len(rows)].copy_(rows)

        def rewind() -> None:
            program.functional.eval()
            self.batch.zero_()

        def score() -> None:
            program.predict(
                self.weights,
                self.device_data.testing,
                self.test_rows,
                self.batch,
                captures.visit.anchors,
                captures.kept,
                captures.prior,
                self.predicted,
            )

        captures.prepare(self.lane, SCORE, size, batches, score, rewind)
        self.batch.zero_()
        captures.repeat(SCORE, size, batches)
        predicted = self.predicted.view(-1, len(KINDS))[: len(rows)]
        return predicted.to("cpu", non_blocking=True, copy=True)


class CapturedEmbedder:
    """Gives a method its client's embeddings under a capture.

    A capture has a fixed size, so every part includes all images of the client; images that are not
    in the requested part have the label −1.
    """

    def __init__(self, replica: Replica, rows: Tensor) -> None:
        self.replica = replica
        self.rows, self.parts = rows
        self.y = replica.task.clients.data.train_y.index_select(0, self.rows)
        self.seen: Tensors = {}
        """Embeddings by the weights they are made with."""

    def __call__(self, part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
        """Return embeddings and labels."""
        if weights not in self.seen:
            self.embed(weights)
        return self.seen[weights], self.y.masked_fill(self.parts != PARTS.index(part), -1)

    def embed(self, weights: str) -> None:
        """Embed all images under the trained or the received weights."""
        with self.replica.holding(weights):
            batches = self.rows.split(self.replica.device_data.embed_batch)
            passes = [self.replica.embed_uncaptured(rows) for rows in batches]
            self.seen[weights] = torch.cat(passes)
