"""What a run is about: the method and its network, the clients' data, their synthetic images.

None of it changes between rounds. Every engine works on one `Task`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cafedcl.augment import checked as checked_tail
from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages
from cafedcl.augment.transforms import TransformChain
from cafedcl.core.contract import Census, Claims, Client, Enrolment, Field, Job, Up
from cafedcl.core.rng import stream
from cafedcl.core.tensors import AUGMENT, ENCODER, Tensors, prefixed, under
from cafedcl.data.dataset import Dataset
from cafedcl.data.shards import Shards
from cafedcl.functional.contrast import shares
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.models.base import Network, frozen_names
from cafedcl.task.local_schedule import LocalSchedule
from cafedcl.task.private_steps import PrivateSteps
from cafedcl.task.release import PLAIN, Release

T = TypeVar("T")
CLIENTS_KEPT = 10_000
"""`Client` objects that are kept, so that they are not made for every visit."""


class OnDemand(Generic[T]):
    """A value per client, by its number, made on demand.

    There may be a million clients, of which a thousand take part in a round.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make

    def __getitem__(self, client: int) -> T:
        return self.make(client)


@dataclass(frozen=True)
class ClientData:
    """Who has which images, on the device."""

    data: Dataset
    shards: Shards
    census: Census
    """What clients learn about all clients."""
    own_rows: Tensor | None = None
    """The test images that own models are scored on, if not all."""
    encoded: Dataset | None = None
    """The data with the features of a frozen encoder in place of images, if it runs only once."""

    @property
    def inputs(self) -> Dataset:
        """The data as the network takes them."""
        return self.encoded or self.data

    @property
    def remote(self) -> bool:
        """Whether the training images are elsewhere, and only their numbers are known here."""
        return not len(self.data.train_y)

    def client(self, index: int) -> Client:
        """Return what a client knows about itself and received when it enrolled."""
        if index not in self._clients:
            if len(self._clients) >= CLIENTS_KEPT:
                self._clients.clear()
            samples = int(self.shards.counts[index].sum())
            holds = self.holds[index].to(self._counts.device)
            self._clients[index] = Client(index, samples, self._counts[index], holds, self._census)
        return self._clients[index]

    @cached_property
    def _clients(self) -> dict[int, Client]:
        return {}

    @cached_property
    def _census(self) -> Census:
        return Census(*(value.float().to(self._counts.device) for value in self.census))

    @cached_property
    def _counts(self) -> Tensor:
        return self.shards.counts.float().to(self.data.train_x.device)

    @cached_property
    def holds(self) -> "OnDemand[Tensor]":
        """The classes each client has, in order, on the host."""
        return OnDemand(lambda client: self.shards.counts[client].nonzero().flatten())

    def test_set(self, client: int | None) -> tuple[Tensor, Tensor]:
        """Return the test images as the network takes them, and their labels, for a client's own
        model or the server's (None).

        They are the complete set or, for own models, a part of it. Under `pfllib` clients have test
        images of their own, and the server's model is scored on those of all clients.
        """
        if not self.shards.test:
            return self._part_of_test_set if client is not None else self._complete_test_set
        indices = self.shards.test.indices if client is None else self.shards.test[client]
        return self.inputs.train_x[indices], self.inputs.train_y[indices]

    def test_images(self, rows: Tensor) -> Tensor:
        """Return some of the images that the server's model is scored on, as uint8."""
        if self.shards.test:
            return self.data.train_x[self.shards.test.indices[rows]]
        return self.data.test_x[rows]

    def test_labels(self, client: int) -> Tensor:
        """Return the labels of a client's test images, on the host."""
        # Without test images of their own, all clients have the same.
        whose = client if self.shards.test else 0
        if whose not in self._test_labels:
            self._test_labels[whose] = self.test_set(whose)[1].cpu()
        return self._test_labels[whose]

    @cached_property
    def _test_labels(self) -> dict[int, Tensor]:
        return {}

    @property
    def _complete_test_set(self) -> tuple[Tensor, Tensor]:
        return self.inputs.test_x, self.inputs.test_y

    @cached_property
    def _part_of_test_set(self) -> tuple[Tensor, Tensor]:
        if self.own_rows is None:
            return self._complete_test_set
        return self.inputs.test_x[self.own_rows], self.inputs.test_y[self.own_rows]


@dataclass(frozen=True)
class TailAugmentation:
    """The synthetic images that clients train on in addition to their own."""

    augmenter: Augmenter
    clients: ClientData
    seed: int

    @cached_property
    def synthetic_counts(self) -> npt.NDArray[np.int64]:
        """How many synthetic images every client gets of every class, m_{k,c}."""
        return self.augmenter.synthetic_counts(self.clients.shards.counts.cpu()).numpy()

    @cached_property
    def augmented(self) -> npt.NDArray[np.bool_]:
        """Which clients have synthetic images."""
        return np.asarray(self.synthetic_counts.any(1))

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many images each client trains on, with the synthetic ones."""
        return np.asarray(self.clients.shards.train.sizes + self.synthetic_counts.sum(1))

    @cached_property
    def rows(self) -> "OnDemand[npt.NDArray[np.int64]]":
        """The images each client trains on, on the host.

        They are rows of the training set, then of the client's synthetic images, whose numbers
        continue from its end.
        """
        end = len(self.clients.data.train_x)
        on_host = self.clients.shards.train.to("cpu")

        def rows_of(client: int) -> npt.NDArray[np.int64]:
            own: npt.NDArray[np.int64] = on_host[client].numpy()
            if not self.augmented[client]:
                return own
            number = int(self.synthetic_counts[client].sum())
            return np.concatenate([own, np.arange(end, end + number)])

        return OnDemand(rows_of)

    def learn(self, job: Job) -> Job:
        """Return the job of a client that has learned what its tail augmentation needs."""
        if not self.augmented[job.client]:
            return job
        memory = checked_tail.learn(self.augmenter, self._own(job, "learn", lambda: torch.zeros(0)))
        return replace(job, memory={**job.memory, **prefixed(AUGMENT, memory)})

    def synthetic_images(self, job: Job, features: Callable[[], Tensor]) -> SyntheticImages:
        """Return the synthetic images of a client; ``features`` gives the encoder's features of its
        own images.
        """
        if not self.augmented[job.client]:
            return self._nothing
        return checked_tail.make(self.augmenter, self._own(job, "augment", features))

    @cached_property
    def _nothing(self) -> SyntheticImages:
        data = self.clients.inputs
        return SyntheticImages(data.train_x[:0], data.train_y[:0])

    def _own(self, job: Job, purpose: str, features: Callable[[], Tensor]) -> ClientImages:
        data = self.clients.data
        rows = self.clients.shards.train[job.client]
        held_out = self.clients.shards.validation[job.client]
        return ClientImages(
            x=data.train_x[rows],
            y=data.train_y[rows],
            host_y=self._labels[self.rows[job.client][: len(rows)]],
            held_x=data.train_x[held_out],
            held_y=data.train_y[held_out],
            synthetic_counts=self.synthetic_counts[job.client],
            memory=under(AUGMENT, job.memory),
            features=features,
            round=job.down.round,
            draws=stream(self.seed, purpose, job.client, job.down.round),
        )

    @cached_property
    def _labels(self) -> npt.NDArray[np.int64]:
        return self.clients.data.train_y.cpu().numpy()


@dataclass(frozen=True)
class Task:
    """Method, network and clients of a run, on the device."""

    method: Method
    network: Network
    initial: Tensors
    """The network's weights and buffers before the first round."""
    clients: ClientData
    tail: TailAugmentation
    schedule: LocalSchedule
    transforms: TransformChain
    """Random transforms of training images."""
    seed: int
    rounds: int
    eval_batch: int
    """Images per evaluation batch."""
    scores_own: bool
    """Whether clients' own models are scored."""
    threads: int
    onednn: bool
    private_steps: PrivateSteps | None = None
    """How clients make their steps private; None if they do not."""
    release: Release = PLAIN
    """What clients report to the server."""
    frozen_encoder: nn.Module | None = None
    """An encoder that runs only once; the network begins behind it."""
    tested: Tensor | None = None
    """Test images per client and class that sites enrolled with; None if no site did."""

    @property
    def device(self) -> torch.device:
        """Where the data are and the clients train."""
        return self.clients.data.train_x.device

    @cached_property
    def server_device(self) -> torch.device:
        """Where the server keeps its state and what clients send, except for the model.

        Means of a few numbers are fastest on the host. The state is on the device if nothing is
        sent per class, or if the server trains; but not on MPS, which has no float64 for means.
        """
        trains = self.method.server_trains and self.device.type != "mps"
        return torch.device("cpu") if self.per_class and not trains else self.device

    @cached_property
    def fields(self) -> dict[str, Field]:
        """What clients send besides the weights."""
        return checked.fields(self.method, self.network)

    @cached_property
    def per_class(self) -> frozenset[str]:
        """The names of what clients send per class."""
        names = {name for name, field in self.fields.items() if field.per_class}
        return frozenset({"classes", *names} if names else ())

    @cached_property
    def enrolment(self) -> Enrolment:
        """What the server knows of all clients before the first round, on the host."""
        counts = self.release.counts(self.clients.shards.counts.cpu())
        census = Census(*(value.cpu() for value in self.clients.census))
        return Enrolment(counts, self.tail.augmenter.new_samples(counts), census)

    @cached_property
    def most_tested(self) -> Tensor | None:
        """The most test images per client and class that a test result may count; None if no client
        has said how many it has.
        """
        return (
            None if self.tested is None else self.release.tested({"tested": self.tested})["tested"]
        )

    def told_signals(self, told: Client, signals: Tensors) -> Tensors:
        """Return what tail augmentation reports, consistent with the reported counts.

        The number of synthetic images would otherwise reveal how many real ones are missing.
        """
        if self.release.options.is_plain or "synthetic" not in signals:
            return signals
        most = self.tail.augmenter.new_samples(told.counts[None])[0].to(signals["synthetic"])
        return {**signals, "synthetic": torch.minimum(signals["synthetic"], most)}

    @cached_property
    def claims(self) -> Claims:
        """What each client may claim, by the method, from its enrolment."""
        return checked.claims(self.method, self.enrolment, self.fields)

    def contradiction(self, up: Up) -> str | None:
        """Return why a reply cannot come from what its client enrolled with, or None."""
        return checked.contradiction(self.method, up, self.enrolment)

    def shared(self) -> Tensors:
        """Return the initial weights that are averaged; the others stay with their clients."""
        return self.parted(self.initial)[0]

    def parted(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """Return the weights that are averaged, and those that stay with their client."""
        own = {name: value for name, value in weights.items() if name in self.personal}
        unsent = self.personal | self.frozen
        return {name: value for name, value in weights.items() if name not in unsent}, own

    @cached_property
    def personal(self) -> frozenset[str]:
        """The names of the weights that stay with their client."""
        names = self.initial.keys() - self.frozen
        return frozenset(name for name in names if re.fullmatch(self.method.personal, name))

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the encoder's weights and statistics that training never changes.

        They are never sent: they never change, and every client has the initial ones.
        """
        return frozenset(ENCODER + name for name in frozen_names(self.network.encoder))

    def frozen_weights(self) -> Tensors:
        """Return the weights and statistics that training never changes."""
        if self.frozen_encoder is not None:
            return prefixed(ENCODER, self.frozen_encoder.state_dict())
        return {name: self.initial[name] for name in self.initial if name in self.frozen}

    @property
    def has_server_model(self) -> bool:
        """Whether there is a server model to score: all weights that it needs are shared."""
        return not self.personal or (self.method.personal_is_optional and bool(self.shared()))

    def prior(self, client: int) -> Tensor:
        """Return log π_k of a client's training labels; −∞ for a class that it does not hold.

        It is 0 for the other classes if the method's own scores already include it.
        """
        counts = self.clients.client(client).counts
        if self.method.knows_prior:
            return torch.zeros_like(counts).masked_fill(counts <= 0, -torch.inf)
        return shares(counts).log()

    def with_clients(self, **changes: Any) -> "Task":
        """Return the task with other data, shards or census, for its tail augmentation as well."""
        clients = replace(self.clients, **changes)
        return replace(self, clients=clients, tail=replace(self.tail, clients=clients))

    def rates(self, client: int, round: int) -> float:
        """Return the sum of the learning rates over a client's visit, stretched by momentum."""
        return self.schedule.summed_rates(len(self.tail.rows[client]), round)


@contextmanager
def arithmetic(task: Task) -> Iterator[None]:
    """Run a block with the run's number of threads and kernel library, and without TF32.

    All three decide the last bits of a result.
    """
    onednn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    before = torch.get_num_threads(), onednn.enabled, cudnn.allow_tf32
    torch.set_num_threads(task.threads)
    onednn.enabled = task.onednn
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        onednn.enabled = before[1]
        cudnn.allow_tf32 = before[2]
