"""The reference engine: plain PyTorch, one client after another, on any device."""

import time
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Batch, Embed, Failure, Job, Part, Reply, Up, Visit, Weights
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.rng import stream, torch_stream
from cafedcl.core.tensors import ANCHORS, AUGMENT, MODEL, Tensors, moved, prefixed, under, without
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.flip_and_crop import augment, draw
from cafedcl.engine.sgd import SGD
from cafedcl.functional.metrics import count_correct
from cafedcl.task.task import Task, arithmetic


class ReferenceEngine:
    """Trains clients serially. What it computes is what every other engine has to compute."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.network = task.network
        self.flat = FlatNetwork(task.network)
        self.gradient = self.flat.flat_gradient()
        self.tensors = {name: value.detach() for name, value in task.network.state_dict().items()}

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs one after another."""
        for job in jobs:
            yield self.attempt(job)

    def attempt(self, job: Job) -> Reply | Failure:
        """Run one job; whatever goes wrong in it is the client's failure, not the round's."""
        try:
            with arithmetic(self.task):
                return self.work(job)
        except Exception as error:
            return Failure(job.client, f"{type(error).__name__}: {error}")

    def work(self, job: Job) -> Reply:
        """One client's round: receive, train, summarize, remember, and score its own model if
        asked.
        """
        began = time.perf_counter()
        task = self.task
        method = self.task.method
        job = task.tail.learned(job)
        received = {
            **task.initial,
            **self._device(under(MODEL, job.down.tensors)),
            **self._device(under(MODEL, job.memory)),
        }
        self.load(received)
        client = task.clients.client(job.client)
        extra = task.tail.extra(job, lambda: self._features(job.client))
        visit = Visit(
            client=client,
            round=torch.tensor(float(job.down.round), device=task.device),
            progress=torch.tensor(job.down.round / task.rounds, device=task.device),
            received=received,
            anchors=self._device(under(ANCHORS, job.down.tensors)),
            memory=self._device(without((MODEL, AUGMENT), job.memory)),
            scratch=method.scratch(client),
            embed=self._embedder(job.client, received, extra),
            rates=task.rates(job.client, job.down.round),
            signals=extra.signals,
        )
        with torch_stream(task.seed, "client", job.client, job.down.round):
            losses = self._epochs(job, visit, extra)
        self.network.eval()
        with torch.no_grad():
            summary, notes = method.summarize(self.network, visit)
            kept = method.remember(self.network, visit)
        shared, own = task.parted({name: value.clone() for name, value in self.tensors.items()})
        right: Tensors = {}
        if job.evaluate:
            x, _ = task.clients.test_set(job.client)
            predicted = self._predict(x, visit.anchors, kept, client.counts > 0)
            right = count_correct(predicted, task.clients.test_labels(job.client), method.classes)
        return Reply(
            Up(
                client=job.client,
                samples=client.samples,
                tensors=summary,
                model=shared,
                notes={**notes, **extra.notes},
                losses=losses,
                seconds=time.perf_counter() - began,
            ),
            memory={
                **prefixed(MODEL, own),
                **kept,
                **prefixed(AUGMENT, under(AUGMENT, job.memory)),
            },
            correct=right,
        )

    def load(self, weights: Tensors) -> None:
        """Make these the network's weights and buffers."""
        for name, tensor in self.tensors.items():
            tensor.copy_(weights[name])

    def _epochs(self, job: Job, visit: Visit, extra: SyntheticImages) -> dict[str, float]:
        """The local training loop; returns the mean of every term of the loss over the last epoch."""
        task = self.task
        options = self.task.schedule.options
        shard = task.clients.shards.train[job.client]
        x = task.clients.data.images(torch.cat([task.clients.data.train_x[shard], extra.x]))
        y = torch.cat([task.clients.data.train_y[shard], extra.y])
        weight = torch.ones(len(y), device=task.device)
        weight[len(shard) :] = task.tail.augmenter.options.weight
        shift = None if extra.shift is None else F.pad(extra.shift, (0, 0, len(shard), 0))
        size = task.schedule.batch_size(len(y))
        draws = stream(task.seed, "batches", job.client, job.down.round)
        sgd = SGD(self.flat.vector, self.gradient, options)
        self.network.train()
        seen: list[tuple[int, Tensors]] = []
        for epoch in range(options.epochs):
            order = torch.from_numpy(draws.permutation(len(y))).to(task.device)
            rate = task.schedule.learning_rate(job.down.round, epoch)
            for tensor in visit.scratch.values():
                tensor.zero_()
            seen.clear()
            moves = parted(None if shift is None else shift[order], len(y), size)
            batches = zip(*(part[order].split(size) for part in (x, y, weight)), moves, strict=True)
            for xs, ys, ws, self.network.shift in batches:
                drawn = self._device(draw(len(ys), options))
                batch = Batch(augment(xs, drawn, options), ys, ws)
                terms = task.method.loss(self.network, batch, visit)
                sum(list(terms.values())[1:], start=next(iter(terms.values()))).backward()
                sgd.step(rate)
                seen.append((len(ys), {name: term.detach() for name, term in terms.items()}))
        self.network.shift = None
        return {
            name: sum(n * float(terms[name]) for n, terms in seen) / len(y) for name in seen[0][1]
        }

    def _embedder(self, client: int, received: Tensors, extra: SyntheticImages) -> Embed:
        cache: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            if (part, weights) not in cache:
                cache[part, weights] = self._embed(
                    client, part, received if weights == "received" else None, extra
                )
            return cache[part, weights]

        return embed

    @torch.no_grad()
    def _embed(
        self, client: int, part: Part, weights: Tensors | None, extra: SyntheticImages
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings and labels of a part of the client's data, in evaluation mode."""
        data = self.task.clients.data
        shards = self.task.clients.shards
        if part == "synthetic":
            x = extra.x
            y = extra.y
            shift = extra.shift
        else:
            shard = (shards.train if part == "train" else shards.validation)[client]
            x = data.train_x[shard]
            y = data.train_y[shard]
            shift = None
        trained = {name: value.clone() for name, value in self.tensors.items()} if weights else {}
        if weights:
            self.load(weights)
        z = self._look(x, self._embedding, shift)
        if weights:
            self.load(trained)
        return z, y

    def _embedding(self, x: Tensor) -> Tensor:
        return self.task.method.embed(self.network, x)

    def _look(
        self, x: Tensor, act: Callable[[Tensor], Tensor], shift: Tensor | None = None
    ) -> Tensor:
        """Return what is seen in uint8 images, a chunk at a time, under the current weights."""
        images = self.task.clients.data.images
        size = self.task.eval_batch
        if not len(x):
            return act(images(self.task.clients.data.train_x[:1]))[:0]
        seen = []
        for chunk, self.network.shift in zip(
            x.split(size), parted(shift, len(x), size), strict=True
        ):
            seen.append(act(images(chunk)))
        self.network.shift = None
        return torch.cat(seen)

    @torch.no_grad()
    def _features(self, client: int) -> Tensor:
        """Return the encoder's features of a client's training images, in evaluation mode."""
        self.network.eval()
        return self._look(
            self.task.clients.data.train_x[self.task.clients.shards.train[client]],
            self.network.features,
        )

    @torch.no_grad()
    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        with arithmetic(self.task):
            self.load(under(MODEL, tensors))
            self.network.eval()
            return self._look(
                self.task.clients.data.train_x[rows.to(self.task.device)], self._embedding
            )

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images by the server's model."""
        with arithmetic(self.task):
            self.load(under(MODEL, tensors))
            x, _ = self.task.clients.test_set(None)
            everything = torch.ones(
                self.task.method.classes, dtype=torch.bool, device=self.task.device
            )
            predicted = self._predict(x, self._device(under(ANCHORS, tensors)), {}, everything)[
                "all"
            ]
        return lambda: predicted

    @torch.no_grad()
    def _predict(self, x: Tensor, anchors: Tensors, memory: Tensors, held: Tensor) -> Tensors:
        """Return the predicted class of every image, among all classes and among those the client
        holds.
        """
        self.network.eval()
        free = []
        restricted = []
        for chunk in x.split(self.task.eval_batch):
            scores = self.task.method.scores(
                self.network, self.task.clients.data.images(chunk), anchors, memory
            )
            free.append(scores.argmax(1))
            restricted.append(scores.masked_fill(~held, -torch.inf).argmax(1))
        return {
            "all": torch.cat(free).to(torch.int16).cpu(),
            "held": torch.cat(restricted).to(torch.int16).cpu(),
        }

    def _device(self, tensors: Tensors) -> Tensors:
        return moved(tensors, self.task.device)

    def close(self) -> None:
        """Nothing to let go of."""


def parted(values: Tensor | None, length: int, size: int) -> Sequence[Tensor | None]:
    """Return values in chunks; as many Nones if there are none."""
    return [None] * -(-length // size) if values is None else values.split(size)
