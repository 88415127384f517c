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
    """Return weights divided by their sum along the first axis.

    ``epsilon`` is added to the sum, as printed in Eqs. 10 and 12. That shrinks the average by
    Σ/(Σ+ε) in every round, so it is zero by default. Where all weights are zero, the result is
    equal weights.
    """
    total = weights.sum(0) + epsilon
    return torch.where(total > 0, weights / total, torch.full_like(weights, 1 / len(weights)))


def uniform(clients: int) -> Tensor:
    """Return the weights of a plain mean."""
    return torch.ones(clients, dtype=torch.float64)


class Average:
    """The weighted mean of models, Σ_k w_k θ_k / (Σ_k w_k + ε), summed in float64.

    Models are added as they arrive, so none has to be kept. The mean is Eq. 12 (eq:enc_conf_agg)
    with w_k = Conf_k, and FedAvg with w_k = n_k. Integer counters, such as a batch norm's number
    of batches, are not averaged: the largest is taken.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.total = epsilon
        self.sum: Tensor | None = None
        self.slices: WeightSlices = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.counters: Tensors = {}

    def add(self, model: Mapping[str, Tensor], weight: float) -> None:
        """Add a model with its weight."""
        self.total += weight
        weights = model if isinstance(model, FlatModel) else self._take_counters(model)
        if not weights:
            return
        if not self.slices:
            self.slices = slices_of(weights)
            self.dtypes = {name: value.dtype for name, value in weights.items()}
        vector = as_vector(weights, self.slices)
        if self.sum is None:
            self.sum = torch.zeros_like(vector, dtype=torch.float64)
        self.sum.add_(vector, alpha=weight)

    def _take_counters(self, model: Mapping[str, Tensor]) -> Tensors:
        """Record a model's counters, and return its other weights."""
        floating = {name: value for name, value in model.items() if value.is_floating_point()}
        for name in model.keys() - floating.keys():
            self.counters[name] = torch.maximum(model[name], self.counters.get(name, model[name]))
        return floating

    def result(self) -> Tensors:
        """Return the mean, as views of one vector; nothing if all clients had weight 0."""
        if self.total <= 0:
            return {}
        mean = dict(self.counters)
        if self.sum is not None:
            vector = self.sum / self.total
            by_dtype = {dtype: vector.to(dtype) for dtype in set(self.dtypes.values())}
            for name, part in self.slices.items():
                mean[name] = part.of(by_dtype[self.dtypes[name]])
        return mean


class Entries:
    """What clients sent per class, as tables (clients, classes, …), zero where a client sent none.

    ``entries["prototypes"]`` is such a table. It is on the device of the entries.
    """

    def __init__(self, ups: Sequence[Up], classes: int) -> None:
        self.ups = ups
        self.classes = classes
        listed = [up.tensors["classes"] for up in ups]
        columns = torch.cat(listed)
        lengths = [len(classes) for classes in listed]
        rows = torch.from_numpy(np.repeat(np.arange(len(ups)), lengths))
        self.index = rows.to(columns.device), columns
        """The row and the column of every entry."""
        self.tables: Tensors = {}

    @cached_property
    def held(self) -> Tensor:
        """Which client reported which class, as a (clients, classes) mask."""
        mask = torch.zeros(
            len(self.ups), self.classes, dtype=torch.bool, device=self.index[1].device
        )
        mask[self.index] = True
        return mask

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tables:
            values = torch.cat([up.tensors[name] for up in self.ups])
            shape = (len(self.ups), self.classes, *values.shape[1:])
            if self.full:
                self.tables[name] = values.view(shape)
            else:
                self.tables[name] = values.new_zeros(shape)
                self.tables[name][self.index] = values
        return self.tables[name]

    @cached_property
    def full(self) -> bool:
        """Whether every client sent all classes, in order: then the entries are a table already."""
        clients = len(self.ups)
        columns = self.index[1]
        if len(columns) != clients * self.classes:
            return False
        all_classes = torch.arange(self.classes, device=columns.device)
        return torch.equal(columns.view(clients, -1), all_classes.expand(clients, -1))


def combined(alpha: Tensor, prototypes: Tensor) -> Tensor:
    """Return Σ_k α_{k,c} p_{k,c} in float64; shapes are (clients, classes) and (…, dim)."""
    return torch.einsum("kc,kcd->cd", alpha.double(), prototypes.double())


def mean_prototypes(prototypes: Tensor, alpha: Tensor, known: Tensor, previous: Tensor) -> Tensor:
    """Return p_{g,c} = Σ_k α_{k,c} p_{k,c}, summed in float64.

    This is Eq. 7, Eq. 10 with confidences as weights, or Eq. 2 with counts. ``prototypes`` is
    (clients, classes, dim), ``alpha`` (clients, classes). A class that is not ``known`` from this
    round keeps its previous prototype bit for bit: it is never an average of zero vectors.
    """
    return torch.where(known[:, None], combined(alpha, prototypes).to(previous.dtype), previous)


def no_prototypes(classes: int, dim: int) -> Tensors:
    """Return the server's table of prototypes before any is known."""
    known = torch.zeros(classes, dtype=torch.bool)
    return {"anchors/prototypes": torch.zeros(classes, dim), "anchors/known": known}


def merge_prototypes(state: Tensors, ups: Sequence[Up], weights: str | None = None) -> Tensors:
    """Return the table of prototypes after a round: the mean over the clients that have the class.

    ``weights`` names the entry of the replies that holds their weights (Eq. 2 with ``counts``);
    without it all clients have the same weight.
    """
    table = state["anchors/prototypes"]
    sent = Entries(ups, len(state["anchors/prototypes"]))
    held = sent.held
    weight = held if weights is None else sent[weights]
    mean = mean_prototypes(sent["prototypes"], normalise(weight.double()), held.any(0), table)
    return {"anchors/prototypes": mean, "anchors/known": state["anchors/known"] | held.any(0)}
