"""The server's weighted means. Equation numbers are those of the CAFedCL paper."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.contract import Up
from cafedcl.core.flat import FlatModel, WeightSlices, as_vector, slices_of
from cafedcl.core.tensors import Tensors


def normalise(weights: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return weights over their sum along the first axis; ``epsilon`` is added to the sum, as Eqs.
    10 and 12 print it.

    The printed ε shrinks what is averaged by Σ/(Σ+ε) in every round, so it is zero unless the
    letter is asked for. Where nobody has any weight, all count alike.
    """
    total = weights.sum(0) + epsilon
    return torch.where(total > 0, weights / total, torch.full_like(weights, 1 / len(weights)))


def uniform(clients: int) -> Tensor:
    """Return the weights of a plain mean."""
    return torch.ones(clients, dtype=torch.float64)


class Average:
    """Σ_k w_k θ_k / (Σ_k w_k + ε), summed in float64 as the models come in, so that none has to be
    kept.

    Eq. 12 (eq:enc_conf_agg) with w_k = Conf_k, FedAvg with w_k = n_k. Counters such as a batch
    norm's number of batches are taken from the client that has seen most.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.total = epsilon
        self.sum: Tensor | None = None
        self.slices: WeightSlices = {}
        self.kinds: dict[str, torch.dtype] = {}
        self.counters: Tensors = {}

    def add(self, model: Mapping[str, Tensor], weight: float) -> None:
        """Add a model with its weight."""
        floating = model if isinstance(model, FlatModel) else self._count(model)
        if floating:
            if self.sum is None:
                self.slices = slices_of(floating)
                self.kinds = {name: value.dtype for name, value in floating.items()}
            flat = as_vector(floating, self.slices)
            self.sum = torch.zeros_like(flat, dtype=torch.float64) if self.sum is None else self.sum
            self.sum.add_(flat, alpha=weight)
        self.total += weight

    def _count(self, model: Mapping[str, Tensor]) -> Tensors:
        """Take in a model's counters, and return its other weights."""
        floating = {name: value for name, value in model.items() if value.is_floating_point()}
        for name in model.keys() - floating.keys():
            self.counters[name] = torch.maximum(model[name], self.counters.get(name, model[name]))
        return floating

    def result(self) -> Tensors:
        """Return the mean, its weights as parts of one vector; nothing if nobody had any weight."""
        if self.total <= 0:
            return {}
        mean = dict(self.counters)
        if self.sum is not None:
            whole = self.sum / self.total
            vectors = {kind: whole.to(kind) for kind in set(self.kinds.values())}
            mean |= {
                name: place.of(vectors[self.kinds[name]]) for name, place in self.slices.items()
            }
        return mean


class Entries:
    """What clients sent per class, laid out: a row for every client, a column for every class, zero
    where it has none.

    Tables are where the entries are.
    """

    def __init__(self, ups: Sequence[Up], classes: int) -> None:
        self.ups = ups
        self.classes = classes
        listed = [up.tensors["classes"] for up in ups]
        columns = torch.cat(listed)
        rows = torch.from_numpy(np.repeat(np.arange(len(ups)), [mine.shape[0] for mine in listed]))
        self.place = rows.to(columns.device), columns
        self.tables: Tensors = {}

    @cached_property
    def held(self) -> Tensor:
        """Which client reported which class, as a (clients, classes) mask."""
        mask = torch.zeros(
            len(self.ups), self.classes, dtype=torch.bool, device=self.place[1].device
        )
        mask[self.place] = True
        return mask

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tables:
            values = torch.cat([up.tensors[name] for up in self.ups])
            shape = (len(self.ups), self.classes, *values.shape[1:])
            self.tables[name] = values.view(shape) if self.full else values.new_zeros(shape)
            if not self.full:
                self.tables[name][self.place] = values
        return self.tables[name]

    @cached_property
    def full(self) -> bool:
        """Whether every client has all classes, in order: then entries lie as in a table already."""
        number = len(self.ups)
        columns = self.place[1]
        return len(columns) == number * self.classes and torch.equal(
            columns.view(number, -1),
            torch.arange(self.classes, device=columns.device).expand(number, -1),
        )


def combined(alpha: Tensor, prototypes: Tensor) -> Tensor:
    """Return Σ_k α_{k,c} p_{k,c} in float64, from (clients, classes) and (clients, classes, dim)."""
    return torch.einsum("kc,kcd->cd", alpha.double(), prototypes.double())


def mean_prototypes(prototypes: Tensor, alpha: Tensor, known: Tensor, previous: Tensor) -> Tensor:
    """Return p_{g,c} = Σ_k α_{k,c} p_{k,c} (Eq. 7; Eq. 10 with confidences, Eq. 2 with counts),
    summed in float64.

    ``prototypes`` is (clients, classes, dim), ``alpha`` (clients, classes). A class that is not
    ``known`` from this round keeps its previous prototype bit for bit: never an average of zero
    vectors.
    """
    return torch.where(known[:, None], combined(alpha, prototypes).to(previous.dtype), previous)


def no_prototypes(classes: int, dim: int) -> Tensors:
    """Return the server's table of prototypes before any is known."""
    known = torch.zeros(classes, dtype=torch.bool)
    return {"anchors/prototypes": torch.zeros(classes, dim), "anchors/known": known}


def merge_prototypes(state: Tensors, ups: Sequence[Up], weights: str | None = None) -> Tensors:
    """Return the table of prototypes after a round: the mean over each class's holders.

    ``weights`` names the entry of the replies that weights them (Eq. 2 with ``counts``); without it
    all count alike.
    """
    table = state["anchors/prototypes"]
    sent = Entries(ups, len(state["anchors/prototypes"]))
    held = sent.held
    weight = held if weights is None else sent[weights]
    mean = mean_prototypes(sent["prototypes"], normalise(weight.double()), held.any(0), table)
    return {"anchors/prototypes": mean, "anchors/known": state["anchors/known"] | held.any(0)}
