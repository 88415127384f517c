"""The reference engine: plain PyTorch, one client after another, on any device."""

import time
from collections.abc import Iterable

import torch
from torch import Tensor

from cafedcl.contract import Batch, Embed, Failure, Job, Part, Reply, Up, Visit, Weights
from cafedcl.data.augment import augment, draw
from cafedcl.engine.base import Bench, Results, arithmetic
from cafedcl.engine.sgd import SGD, flatten
from cafedcl.metrics import hits
from cafedcl.pack import ANCHORS, MODEL, Tensors, moved, prefixed, under, without
from cafedcl.rng import stream, torch_stream


class Eager:
    """Trains clients serially. What it computes is what every other engine has to compute."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.network = bench.network
        self.weights = flatten(bench.network)
        self.tensors = {name: value.detach() for name, value in bench.network.state_dict().items()}

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs one after another."""
        for job in jobs:
            yield self.attempt(job)

    def attempt(self, job: Job) -> Reply | Failure:
        """Run one job; whatever goes wrong in it is the client's failure, not the round's."""
        try:
            with arithmetic(self.bench):
                return self.work(job)
        except Exception as error:
            return Failure(job.client, f"{type(error).__name__}: {error}")

    def work(self, job: Job) -> Reply:
        """One client's round: receive, train, summarize, remember, and score its own model if asked."""
        began, bench, method = time.perf_counter(), self.bench, self.bench.method
        received = {
            **bench.initial,
            **self._device(under(MODEL, job.down.tensors)),
            **self._device(under(MODEL, job.memory)),
        }
        self.load(received)
        client = bench.client(job.client)
        visit = Visit(
            client=client,
            round=torch.tensor(float(job.down.round), device=bench.device),
            progress=torch.tensor(job.down.round / bench.rounds, device=bench.device),
            received=received,
            anchors=self._device(under(ANCHORS, job.down.tensors)),
            memory=self._device(without(MODEL, job.memory)),
            scratch=method.scratch(client),
            embed=self._embedder(job.client, received),
            rates=bench.rates(job.client, job.down.round),
        )
        with torch_stream(bench.seed, "client", job.client, job.down.round):
            losses = self._epochs(job, visit)
        self.network.eval()
        with torch.no_grad():
            summary, notes = method.summarize(self.network, visit)
            kept = method.remember(self.network, visit)
        shared, own = bench.parted({name: value.clone() for name, value in self.tensors.items()})
        right: Tensors = {}
        if job.evaluate:
            x, y = bench.test_set(job.client)
            right = hits(self._predict(x, visit.anchors, kept, client.counts > 0), y.cpu(), method.classes)
        return Reply(
            Up(
                client=job.client,
                samples=client.samples,
                tensors={**prefixed(MODEL, shared), **summary},
                notes=notes,
                losses=losses,
                seconds=time.perf_counter() - began,
            ),
            memory={**prefixed(MODEL, own), **kept},
            hits=right,
        )

    def load(self, weights: Tensors) -> None:
        """Make these the network's weights and buffers."""
        for name, tensor in self.tensors.items():
            tensor.copy_(weights[name])

    def _epochs(self, job: Job, visit: Visit) -> dict[str, float]:
        """The local training loop; returns the mean of every term of the loss over the last epoch."""
        bench, options = self.bench, self.bench.train
        shard = bench.shards.train[job.client]
        x, y = bench.data.images(bench.data.train_x[shard]), bench.data.train_y[shard]
        size = bench.batch_size(len(shard))
        ones = torch.ones(size, device=bench.device)
        draws = stream(bench.seed, "batches", job.client, job.down.round)
        sgd = SGD(self.weights, options)
        self.network.train()
        seen: list[tuple[int, Tensors]] = []
        for epoch in range(options.epochs):
            order = torch.from_numpy(draws.permutation(len(shard))).to(bench.device)
            rate = bench.learning_rate(job.down.round, epoch)
            for tensor in visit.scratch.values():
                tensor.zero_()
            seen.clear()
            for xs, ys in zip(x[order].split(size), y[order].split(size), strict=True):
                drawn = self._device(draw(len(ys), options))
                batch = Batch(augment(xs, drawn, options), ys, ones[: len(ys)])
                terms = bench.method.loss(self.network, batch, visit)
                sum(list(terms.values())[1:], start=next(iter(terms.values()))).backward()
                sgd.step(rate)
                seen.append((len(ys), {name: term.detach() for name, term in terms.items()}))
        return {name: sum(n * float(terms[name]) for n, terms in seen) / len(shard) for name in seen[0][1]}

    def _embedder(self, client: int, received: Tensors) -> Embed:
        cache: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

        def embed(part: Part, weights: Weights) -> tuple[Tensor, Tensor]:
            if (part, weights) not in cache:
                cache[part, weights] = self._embed(client, part, received if weights == "received" else None)
            return cache[part, weights]

        return embed

    @torch.no_grad()
    def _embed(self, client: int, part: Part, weights: Tensors | None) -> tuple[Tensor, Tensor]:
        """Return the embeddings and labels of a part of the client's data, in evaluation mode."""
        bench = self.bench
        shard = (bench.shards.train if part == "train" else bench.shards.validation)[client]
        trained = {name: value.clone() for name, value in self.tensors.items()} if weights else {}
        if weights:
            self.load(weights)
        z = self._look(shard)
        if weights:
            self.load(trained)
        return z, bench.data.train_y[shard]

    def _look(self, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the current weights."""
        bench = self.bench
        if not len(rows):
            return bench.method.embed(self.network, bench.data.images(bench.data.train_x[:1]))[:0]
        chunks = bench.data.train_x[rows].split(bench.chunk)
        return torch.cat([bench.method.embed(self.network, bench.data.images(chunk)) for chunk in chunks])

    @torch.no_grad()
    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images under the server's model."""
        with arithmetic(self.bench):
            self.load(under(MODEL, tensors))
            self.network.eval()
            return self._look(rows.to(self.bench.device))

    def predict(self, tensors: Tensors) -> Tensor:
        """Return the predictions of the server's model on the test images."""
        with arithmetic(self.bench):
            self.load(under(MODEL, tensors))
            x, _ = self.bench.test_set(None)
            everything = torch.ones(self.bench.method.classes, dtype=torch.bool, device=self.bench.device)
            return self._predict(x, self._device(under(ANCHORS, tensors)), {}, everything)["all"]

    @torch.no_grad()
    def _predict(self, x: Tensor, anchors: Tensors, memory: Tensors, held: Tensor) -> Tensors:
        """Return the predicted class of every image, among all classes and among those the client holds."""
        self.network.eval()
        free, restricted = [], []
        for chunk in x.split(self.bench.chunk):
            scores = self.bench.method.scores(self.network, self.bench.data.images(chunk), anchors, memory)
            free.append(scores.argmax(1))
            restricted.append(scores.masked_fill(~held, -torch.inf).argmax(1))
        return {"all": torch.cat(free).to(torch.int16).cpu(), "held": torch.cat(restricted).to(torch.int16).cpu()}

    def _device(self, tensors: Tensors) -> Tensors:
        return moved(tensors, self.bench.device)

    def close(self) -> None:
        """Nothing to let go of."""
