"""The server's weighted means. Equation numbers are those of the CAFedCL paper."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cafedcl.contract import Up
from cafedcl.pack import Tensors


def normalise(weights: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return weights over their sum along the first axis; ``epsilon`` is added to the sum, as Eqs. 10 and 12 print it.

    The printed ε shrinks what is averaged by Σ/(Σ+ε) in every round, so it is zero unless the letter is asked for.
    Where nobody has any weight, all count alike.
    """
    total = weights.sum(0) + epsilon
    return torch.where(total > 0, weights / total, torch.full_like(weights, 1 / len(weights)))


def uniform(clients: int) -> Tensor:
    """Return the coefficients of a plain mean."""
    return torch.full((clients,), 1 / clients, dtype=torch.float64)


def weighted_mean(models: Sequence[Tensors], coefficients: Tensor) -> Tensors:
    """Return Σ_k a_k θ_k (Eq. 12 with a_k = Conf_k/ΣConf, FedAvg with a_k = n_k/Σn), summed in float64.

    Counters such as a batch norm's number of batches are taken from the client that has seen most.
    """
    mean: Tensors = {}
    for name, first in models[0].items():
        stack = torch.stack([model[name] for model in models])
        if first.is_floating_point():
            mean[name] = torch.tensordot(coefficients.to(stack.device), stack.double(), 1).to(first.dtype)
        else:
            mean[name] = stack.amax(0)
    return mean


def holders(ups: Sequence[Up], classes: int) -> Tensor:
    """Return which client reported which class, as a (clients, classes) mask."""
    mask = torch.zeros(len(ups), classes, dtype=torch.bool)
    for row, up in zip(mask, ups, strict=True):
        row[up.tensors["classes"].cpu()] = True
    return mask


def spread(ups: Sequence[Up], name: str, classes: int) -> Tensor:
    """Return the clients' per-class entries as one dense (clients, classes, …) tensor, zero where a class is absent."""
    rows = [up.tensors[name] for up in ups]
    dense = rows[0].new_zeros((len(ups), classes, *rows[0].shape[1:]))
    for row, up, value in zip(dense, ups, rows, strict=True):
        row[up.tensors["classes"]] = value
    return dense


def mean_prototypes(prototypes: Tensor, alpha: Tensor, known: Tensor, previous: Tensor) -> Tensor:
    """Return p_{g,c} = Σ_k α_{k,c} p_{k,c} (Eq. 7; Eq. 10 with confidences, Eq. 2 with counts), summed in float64.

    ``prototypes`` is (clients, classes, dim), ``alpha`` (clients, classes). A class that is not ``known`` from this
    round keeps its previous prototype bit for bit: never an average of zero vectors.
    """
    mean = torch.einsum("kc,kcd->cd", alpha.double(), prototypes.double()).to(previous.dtype)
    return torch.where(known[:, None], mean, previous)


def no_prototypes(classes: int, dim: int) -> Tensors:
    """Return the server's table of prototypes before any is known."""
    known = torch.zeros(classes, dtype=torch.bool)
    return {"anchors/prototypes": torch.zeros(classes, dim), "anchors/known": known}


def merge_prototypes(state: Tensors, ups: Sequence[Up], weights: str | None = None) -> Tensors:
    """Return the table of prototypes after a round: the mean over each class's holders.

    ``weights`` names the entry of the replies that weights them (Eq. 2 with ``counts``); without it all count alike.
    """
    table = state["anchors/prototypes"]
    held = holders(ups, len(table)).to(table.device)
    weight = held if weights is None else spread(ups, weights, len(table))
    mean = mean_prototypes(spread(ups, "prototypes", len(table)), normalise(weight.double()), held.any(0), table)
    return {"anchors/prototypes": mean, "anchors/known": state["anchors/known"] | held.any(0)}
