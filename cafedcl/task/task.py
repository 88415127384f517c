"""What a run is about: method, network and data, on the device."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.augment.base import Augmenter, Extra, Own
from cafedcl.config.sections import TrainOptions
from cafedcl.core.contract import Client, Field, Job
from cafedcl.core.rng import stream
from cafedcl.core.tensors import AUGMENT, Tensors, prefixed, under
from cafedcl.data.dataset import Dataset
from cafedcl.data.shards import Shards
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class Bench:
    """Method, network and data of a run, on the device."""

    method: Method
    augmenter: Augmenter
    network: Network
    initial: Tensors
    data: Dataset
    shards: Shards
    census: tuple[Tensor, Tensor]
    """The largest and the summed number of training images per class over all clients."""
    train: TrainOptions
    seed: int
    rounds: int
    chunk: int
    """Images per evaluation batch."""
    typical: int
    """Training images of an average client: what a pooled run takes its batch size from."""
    threads: int
    onednn: bool

    @property
    def device(self) -> torch.device:
        """Where the data lie and the clients train."""
        return self.data.train_x.device

    @property
    def remote(self) -> bool:
        """Whether the training images lie elsewhere, and only their numbers are known here."""
        return not len(self.data.train_y)

    @cached_property
    def home(self) -> torch.device:
        """Where the server keeps its state besides the model, and what clients send per class.

        That is the host for means of a few numbers, and the device if nothing is per class, or the server trains; but
        for MPS, which has no float64 to take means in.
        """
        trains = self.method.server_trains and self.device.type != "mps"
        return torch.device("cpu") if self.by_class and not trains else self.device

    @cached_property
    def fields(self) -> dict[str, Field]:
        """What clients send besides the weights."""
        return self.method.fields(self.network)

    @cached_property
    def by_class(self) -> frozenset[str]:
        """What clients send per class, which is small: the server works on it at home."""
        names = {name for name, field in self.fields.items() if field.per_class}
        return frozenset({"classes", *names} if names else ())

    def shared(self) -> Tensors:
        """Return the initial weights that are averaged; the others stay with their clients."""
        return self.parted(self.initial)[0]

    def parted(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """Return the weights that are averaged, and those that stay with their client."""
        own = {name: value for name, value in weights.items() if name in self.personal}
        return {name: value for name, value in weights.items() if name not in own}, own

    @cached_property
    def personal(self) -> frozenset[str]:
        """The weights that stay with their client."""
        return frozenset(name for name in self.initial if re.fullmatch(self.method.personal, name))

    @property
    def serves(self) -> bool:
        """Whether there is a server model to score: every weight is shared."""
        return len(self.shared()) == len(self.initial)

    def client(self, index: int) -> Client:
        """Return what a client knows of itself and was told when it enrolled."""
        if index not in self._clients:
            samples, holds = int(self.shards.counts[index].sum()), self.holds[index].to(self.device)
            most, total = (value.float().to(self.device) for value in self.census)
            self._clients[index] = Client(index, samples, self._counts[index], holds, most, total)
        return self._clients[index]

    @cached_property
    def holds(self) -> tuple[Tensor, ...]:
        """The classes each client has, in order, on the host."""
        return tuple(counts.nonzero().flatten() for counts in self.shards.counts)

    @cached_property
    def _clients(self) -> dict[int, Client]:
        return {}

    @cached_property
    def _counts(self) -> Tensor:
        return self.shards.counts.float().to(self.device)

    @cached_property
    def wanted(self) -> npt.NDArray[np.int64]:
        """How many images tail augmentation gives every client and class, m_{k,c}."""
        return self.augmenter.wanted(self.shards.counts.cpu()).numpy()

    @cached_property
    def augmented(self) -> tuple[bool, ...]:
        """Which clients have synthetic images."""
        return tuple(bool(numbers.any()) for numbers in self.wanted)

    @cached_property
    def _nothing(self) -> Extra:
        return Extra(self.data.train_x[:0], self.data.train_y[:0])

    @cached_property
    def rows(self) -> tuple[npt.NDArray[np.int64], ...]:
        """The images each client trains on, on the host.

        They are rows of the training set, then of the client's synthetic images, which are counted on from its end.
        """
        end = len(self.data.train_x)
        extra = (np.arange(end, end + int(number)) for number in self.wanted.sum(1))
        return tuple(np.r_[own.cpu().numpy(), more] for own, more in zip(self.shards.train, extra, strict=True))

    def learned(self, job: Job) -> Job:
        """Return the job of a client that has learned what its tail augmentation needs."""
        if not self.augmented[job.client]:
            return job
        memory = self.augmenter.learn(self._own(job, "learn", lambda: torch.zeros(0)))
        return replace(job, memory={**job.memory, **prefixed(AUGMENT, memory)})

    def extra(self, job: Job, features: Callable[[], Tensor]) -> Extra:
        """Return the synthetic images of a client; ``features`` gives the encoder's features of its own images."""
        if not self.augmented[job.client]:
            return self._nothing
        return self.augmenter.make(self._own(job, "augment", features))

    def _own(self, job: Job, purpose: str, features: Callable[[], Tensor]) -> Own:
        rows, held, data = self.shards.train[job.client], self.shards.validation[job.client], self.data
        return Own(
            x=data.train_x[rows],
            y=data.train_y[rows],
            known=self._labels[self.rows[job.client][: len(rows)]],
            held_x=data.train_x[held],
            held_y=data.train_y[held],
            wanted=self.wanted[job.client],
            memory=under(AUGMENT, job.memory),
            features=features,
            round=job.down.round,
            draws=stream(self.seed, purpose, job.client, job.down.round),
        )

    @cached_property
    def _labels(self) -> npt.NDArray[np.int64]:
        return self.data.train_y.cpu().numpy()

    def batch_size(self, samples: int) -> int:
        """Return a client's batch size: fixed, or such that an epoch has the wanted number of iterations."""
        size = self.typical if self.method.pooled else samples
        return self.train.batch_size or math.ceil(size / self.train.iterations)

    def steps(self, samples: int) -> int:
        """Return the optimizer steps of a visit to a client with so many images."""
        return self.train.epochs * -(-samples // self.batch_size(samples))

    def learning_rate(self, round: int, epoch: int) -> float:
        """Return the learning rate of one local epoch."""
        return self.train.lr * self.train.lr_decay ** (round + (epoch if self.train.lr_decay_in_round else 0))

    def rates(self, client: int, round: int) -> float:
        """Return the sum of the learning rates over all steps of a visit."""
        steps = self.steps(len(self.rows[client])) // self.train.epochs
        return steps * sum(self.learning_rate(round, epoch) for epoch in range(self.train.epochs))

    def test_set(self, client: int | None) -> tuple[Tensor, Tensor]:
        """Return the uint8 test images and labels: the complete set, or under `pfllib` the clients' own (None: all)."""
        if not self.shards.test:
            return self.data.test_x, self.data.test_y
        indices = torch.cat(self.shards.test) if client is None else self.shards.test[client]
        return self.data.train_x[indices], self.data.train_y[indices]

    def test_labels(self, client: int) -> Tensor:
        """Return the labels of a client's test images, on the host."""
        whose = client if self.shards.test else None
        if whose not in self._test_labels:
            self._test_labels[whose] = self.test_set(whose)[1].cpu()
        return self._test_labels[whose]

    @cached_property
    def _test_labels(self) -> dict[int | None, Tensor]:
        return {}


@contextmanager
def arithmetic(bench: Bench) -> Iterator[None]:
    """Run a block with the run's number of threads and library of kernels, and without TF32: they make the bits."""
    onednn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    before = torch.get_num_threads(), onednn.enabled, cudnn.allow_tf32
    torch.set_num_threads(bench.threads)
    onednn.enabled, cudnn.allow_tf32 = bench.onednn, False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        onednn.enabled, cudnn.allow_tf32 = before[1:]
