"""The reference engine: plain PyTorch, one client after another, on any device."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Batch, Embed, Failure, Job, Part, Reply, Up, Visit, Weights
from cafedcl.core.environment import is_arm
from cafedcl.core.errors import in_words
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.memory import keep_freed_memory
from cafedcl.core.rng import stream, torch_stream
from cafedcl.core.tensors import (
    ANCHORS,
    AUGMENT,
    ENCODER,
    MODEL,
    Tensors,
    cloned,
    method_memory,
    moved,
    prefixed,
    under,
)
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.optimizer import ClientOptimizer
from cafedcl.engine.private_steps import LossOfOneImage, summed_gradients
from cafedcl.engine.views import embeds_nothing
from cafedcl.functional.metrics import KINDS, count_correct, predictions
from cafedcl.methods import checked
from cafedcl.task.private_steps import PrivateSteps
from cafedcl.task.task import Task, arithmetic


class ReferenceEngine:
    """Trains clients serially. Every other engine must compute what this one computes."""

    name: ClassVar[str] = "reference"

    def __init__(self, task: Task) -> None:
        if task.device.type == "cpu":
            keep_freed_memory()
        self.task = task
        self.data = task.clients.inputs
        self.network = task.network
        self.flat = FlatNetwork(task.network)
        self.gradient = torch.empty_like(self.flat.vector)
        self.factors = self.flat.factors(ENCODER, task.schedule.options.encoder_factor)
        state = task.network.state_dict()
        self.tensors = {n: value.detach() for n, value in state.items() if n not in task.frozen}
        """The weights that change."""
        self.layout = image_layout(task)

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs one after another."""
        for job in jobs:
            yield self.attempt(job)

    def attempt(self, job: Job) -> Reply | Failure:
        """Run one job; any error in it fails the client, not the round."""
        try:
            with arithmetic(self.task):
                return self.work(job)
        except Exception as error:
            return Failure(job.client, in_words(error))

    def work(self, job: Job) -> Reply:
        """One client's round: receive, train, summarize, remember, score its own model if asked."""
        began = time.perf_counter()
        task = self.task
        method = task.method
        job = task.tail.learn(job)
        visit = self.visit(job)
        self.load(visit.received)
        synthetic = task.tail.synthetic_images(job, lambda: self._features(job.client))
        embed = self._embedder(job.client, visit.received, synthetic)
        visit = replace(visit, embed=embed, signals=synthetic.signals)
        with torch_stream(task.seed, "client", job.client, job.down.round):
            if task.private_steps:
                losses = self._private_epochs(job, visit, task.private_steps)
            else:
                losses = self._epochs(job, visit, synthetic)
        self.network.eval()
        told = task.release.client(visit.client)
        signals = task.told_signals(told, synthetic.signals)
        with torch.no_grad():
            seen = replace(visit, client=told, signals=signals)
            # Copies: a method may return the network's weights, which the next client overwrites.
            summary, notes = map(cloned, checked.summarize(method, self.network, seen))
            kept = cloned(checked.remember(method, self.network, visit))
        shared, own = task.parted({name: value.clone() for name, value in self.tensors.items()})
        correct: Tensors = {}
        if job.evaluate:
            x, _ = task.clients.test_set(job.client)
            predicted = self._predict(x, visit.anchors, kept, task.prior(job.client))
            labels = task.clients.test_labels(job.client)
            correct = count_correct(predicted, labels, method.classes)
        up = Up(
            client=job.client,
            samples=told.samples,
            tensors=summary,
            model=shared,
            notes={**notes, **synthetic.notes},
            losses=losses,
            seconds=time.perf_counter() - began,
        )
        augmentation = prefixed(AUGMENT, under(AUGMENT, job.memory))
        reply = Reply(up, {**prefixed(MODEL, own), **kept, **augmentation}, correct)
        return task.release.reply(reply, told, task.fields)

    def visit(self, job: Job) -> Visit:
        """Return what a method sees of a visit before training."""
        task = self.task
        client = task.clients.client(job.client)
        received = {
            **task.initial,
            **self._device(under(MODEL, job.down.tensors)),
            **self._device(under(MODEL, job.memory)),
        }
        return Visit(
            client=client,
            round=torch.tensor(float(job.down.round), device=task.device),
            progress=torch.tensor(job.down.round / task.rounds, device=task.device),
            received=received,
            anchors=self._device(under(ANCHORS, job.down.tensors)),
            memory=self._device(method_memory(job.memory)),
            scratch=checked.scratch(task.method, client),
            embed=embeds_nothing,
            rates=task.rates(job.client, job.down.round),
        )

    def load(self, weights: Tensors) -> None:
        """Load the network's weights and buffers; those that never change are already there."""
        for name, tensor in self.tensors.items():
            tensor.copy_(weights[name])

    def _load_server(self, tensors: Tensors) -> None:
        """Load the server's model; personal weights, which it ignores, are the initial ones."""
        self.load({**self.task.initial, **under(MODEL, tensors)})

    def _epochs(self, job: Job, visit: Visit, synthetic: SyntheticImages) -> dict[str, float]:
        """Train locally; return the mean of every term of the loss over the last epoch."""
        task = self.task
        options = task.schedule.options
        shard = task.clients.shards.train[job.client]
        x = self._images(torch.cat([self.data.train_x[shard], synthetic.x]))
        y = torch.cat([self.data.train_y[shard], synthetic.y])
        weight = torch.ones(len(y), device=task.device)
        weight[len(shard) :] = task.tail.augmenter.options.weight
        shift: Tensor | None = None
        if synthetic.shift is not None:
            # Real images come first, and their features are not shifted.
            shift = F.pad(synthetic.shift, (0, 0, len(shard), 0))
        constants = self.constants(x, shift, visit)
        size = task.schedule.batch_size(len(y))
        draws = stream(task.seed, "batches", job.client, job.down.round)
        optimizer = ClientOptimizer(self.flat.vector, self.gradient, options, self.factors)
        self.network.train()
        last_epoch: list[tuple[int, Tensors]] = []
        for epoch in range(options.epochs):
            order = torch.from_numpy(draws.permutation(len(y))).to(task.device)
            rate = task.schedule.learning_rate(job.down.round, epoch)
            for tensor in visit.scratch.values():
                tensor.zero_()
            last_epoch.clear()
            shifts = split_optional(None if shift is None else shift[order], len(y), size)
            parts = (part.split(size) for part in (x[order], y[order], weight[order], order))
            for batch_x, batch_y, batch_weight, rows, batch_shift in zip(
                *parts, shifts, strict=True
            ):
                self.network.shift = batch_shift
                drawn = self._device(task.transforms.draw(len(batch_y)))
                transformed = task.transforms.apply(batch_x, drawn)
                batch_constants = {name: values[rows] for name, values in constants.items()}
                batch = Batch(transformed, batch_y, batch_weight, batch_constants)
                terms = checked.loss(task.method, self.network, batch, visit)
                total = reduce(torch.add, terms.values())
                checked.check_gradient(task.method, total)
                self.flat.gradient_of(total, self.gradient)
                optimizer.step(rate)
                detached = {name: term.detach() for name, term in terms.items()}
                last_epoch.append((len(batch_y), detached))
        self.network.shift = None
        names = last_epoch[0][1]
        return {
            name: sum(images * float(terms[name]) for images, terms in last_epoch) / len(y)
            for name in names
        }

    @torch.no_grad()
    def constants(self, x: Tensor, shift: Tensor | None, visit: Visit) -> Tensors:
        """Return the method's constants of all images of a visit.

        There are none if random transforms change the images: every step then computes its own.
        """
        if self.task.transforms or not self.task.method.defines("constants"):
            return {}
        size = self.task.eval_batch
        found = []
        shifts = split_optional(shift, len(x), size)
        for images, its_shift in zip(x.split(size), shifts, strict=True):
            self.network.shift = its_shift
            found.append(checked.constants(self.task.method, self.network, images, visit))
        self.network.shift = None
        return {name: torch.cat([part[name] for part in found]) for name in found[0]}

    def _private_epochs(self, job: Job, visit: Visit, private: PrivateSteps) -> dict[str, float]:
        """Train locally with DP-SGD. No losses are returned, because they would have no noise."""
        task = self.task
        options = task.schedule.options
        shard = task.clients.shards.train[job.client]
        x = self.data.images(self.data.train_x[shard])
        y = self.data.train_y[shard]
        size = task.schedule.batch_size(len(y))
        draws = private.draws(job.client, job.down.round)
        optimizer = ClientOptimizer(self.flat.vector, self.gradient, options, self.factors)
        loss = LossOfOneImage(self.network, task.method, visit)
        self.network.train()
        for epoch in range(options.epochs):
            rate = task.schedule.learning_rate(job.down.round, epoch)
            for _ in range(task.schedule.steps(len(y)) // options.epochs):
                rows = draws.batch(len(y), size / len(y)).to(task.device)
                drawn = self._device(task.transforms.draw(len(rows)))
                images = task.transforms.apply(x[rows], drawn) if len(rows) else x[rows]
                batch = Batch(images, y[rows], torch.ones(len(rows), device=task.device))
                total = summed_gradients(self.flat, loss, batch, private.clip)
                total += private.noise * private.clip * draws.noise(total)
                # The expected number of images: the real one would reveal if an image is included.
                self.gradient.copy_(total / min(size, len(y)))
                optimizer.step(rate)
        return {}

    def _embedder(self, client: int, received: Tensors, synthetic: SyntheticImages) -> Embed:
        cache: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            if (part, weights) not in cache:
                other_weights = received if weights == "received" else None
                cache[part, weights] = self._embed_part(client, part, other_weights, synthetic)
            return cache[part, weights]

        return embed

    @torch.no_grad()
    def _embed_part(
        self, client: int, part: Part, other_weights: Tensors | None, synthetic: SyntheticImages
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings and labels of a part of the client's data, in evaluation mode."""
        if part == "synthetic":
            x = synthetic.x
            y = synthetic.y
            shift = synthetic.shift
        else:
            shards = self.task.clients.shards
            shard = (shards.train if part == "train" else shards.validation)[client]
            x = self.data.train_x[shard]
            y = self.data.train_y[shard]
            shift = None
        if other_weights is None:
            return self._in_batches(x, self._embedding, shift), y
        trained = {name: value.clone() for name, value in self.tensors.items()}
        self.load(other_weights)
        z = self._in_batches(x, self._embedding, shift)
        self.load(trained)
        return z, y

    def _embedding(self, x: Tensor) -> Tensor:
        return checked.embed(self.task.method, self.network, x)

    def _in_batches(
        self, x: Tensor, function: Callable[[Tensor], Tensor], shift: Tensor | None = None
    ) -> Tensor:
        """Apply a function to uint8 images, batch by batch under the current weights."""
        size = self.task.eval_batch
        if not len(x):
            # One image gives the shape of the result.
            return function(self._images(self.data.train_x[:1]))[:0]
        results = []
        shifts = split_optional(shift, len(x), size)
        for batch, batch_shift in zip(x.split(size), shifts, strict=True):
            self.network.shift = batch_shift
            results.append(function(self._images(batch)))
        self.network.shift = None
        return torch.cat(results)

    @torch.no_grad()
    def _features(self, client: int) -> Tensor:
        """Return the encoder's features of a client's training images, in evaluation mode."""
        self.network.eval()
        x = self.data.train_x[self.task.clients.shards.train[client]]
        return self._in_batches(x, self.network.features)

    @torch.no_grad()
    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        with arithmetic(self.task):
            self._load_server(tensors)
            self.network.eval()
            x = self.data.train_x[rows.to(self.task.device)]
            return self._in_batches(x, self._embedding)

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model."""
        with arithmetic(self.task):
            self._load_server(tensors)
            x, _ = self.task.clients.test_set(None)
            anchors = self._device(under(ANCHORS, tensors))
            no_prior = torch.zeros(self.task.method.classes, device=self.task.device)
            predicted = self._predict(x, anchors, {}, no_prior)["all"]
        return lambda: predicted

    @torch.no_grad()
    def _predict(self, x: Tensor, anchors: Tensors, memory: Tensors, prior: Tensor) -> Tensors:
        """Return the predicted classes by their kind, for a client with this prior."""
        self.network.eval()
        found = []
        for batch in x.split(self.task.eval_batch):
            images = self._images(batch)
            scores = checked.scores(self.task.method, self.network, images, anchors, memory)
            found.append(predictions(scores, prior))
        by_kind = torch.cat(found).to(torch.int16).cpu()
        return dict(zip(KINDS, by_kind.unbind(1), strict=True))

    def _images(self, x: Tensor) -> Tensor:
        """Return uint8 images as the encoder's input. Rows taken from it keep its layout."""
        return self.data.images(x, self.layout)

    def _device(self, tensors: Tensors) -> Tensors:
        return moved(tensors, self.task.device)

    def close(self) -> None:
        """There is nothing to free."""


def image_layout(task: Task) -> torch.memory_format:
    """Return the order in memory of the encoder's input, which decides the last bits of a result.

    With channels last, oneDNN's convolutions are faster. But group normalisation is slower, so an
    encoder says what suits it. ARM was not measured.
    """
    suits = getattr(task.network.encoder, "channels_last", False)
    if suits and task.onednn and task.device.type == "cpu" and not is_arm():
        return torch.channels_last
    return torch.contiguous_format


def split_optional(values: Tensor | None, length: int, size: int) -> Sequence[Tensor | None]:
    """Return values in batches; a None for every batch if there are no values."""
    if values is None:
        return [None] * -(-length // size)
    batches: Sequence[Tensor] = values.split(size)
    return batches
