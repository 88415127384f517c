"""How training images are dealt to clients: long tail, then skew, then each client's validation part."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.config import SplitOptions
from cafedcl.errors import CafedclError
from cafedcl.rng import stream

Ints = npt.NDArray[np.int64]

MIN_SIZE = 10
MAX_TRIES = 1000


@dataclass(frozen=True)
class Shards:
    """Each client's images as indices into the training set. ``test`` is empty under the complete protocol."""

    train: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    counts: Tensor
    """Training images per client and class n_{k,c}, without the validation part."""

    def __len__(self) -> int:
        return len(self.train)


def long_tail(labels: Ints, classes: int, ir: float, rng: np.random.Generator) -> Ints:
    """Return the images kept by the exponential profile n_c = ⌊n_max · IR^(−c/(C−1))⌋."""
    counts = np.bincount(labels, minlength=classes)
    keep = np.floor(counts.max() * ir ** (-np.arange(classes) / max(classes - 1, 1)) + 1e-9).astype(np.int64)
    members = [rng.permutation(np.flatnonzero(labels == c))[: keep[c]] for c in range(classes)]
    return np.sort(np.concatenate(members))


def dirichlet_per_client(
    labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.Generator
) -> list[Ints]:
    """Draw q ~ Dir(α) for each client and give it N/K unassigned images, drawn without replacement with weight q_y.

    This is FedRCL's split: clients have equal sizes, and late ones drift from their draw as classes run out.
    The draw without replacement is by exponential keys (Efraimidis and Spirakis): the smallest E/q_y win.
    """
    left = np.arange(len(labels))
    shards = []
    for client in range(clients):
        size = len(labels) // clients + (client < len(labels) % clients)
        weight = np.maximum(rng.dirichlet(np.full(classes, alpha)), 1e-300)[labels[left]]
        keys = np.log(rng.standard_exponential(len(left))) - np.log(weight)
        chosen = np.argpartition(keys, size - 1)[:size] if size < len(left) else np.arange(len(left))
        shards.append(np.sort(left[chosen]))
        left = np.delete(left, chosen)
    return shards


def dirichlet_per_class(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """For each class draw p ~ Dir(α) over clients, none to those already full; redraw until all have 10 images."""
    if len(labels) < clients * MIN_SIZE:
        raise CafedclError(
            f"split: {len(labels)} images cannot give {clients} clients {MIN_SIZE} each; "
            "use fewer clients or form = 'client'"
        )
    for _ in range(MAX_TRIES):
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, dtype=np.int64)
        for c in range(classes):
            share = rng.dirichlet(np.full(clients, alpha)) * (sizes < len(labels) / clients)
            if share.sum() <= 0:
                share = (sizes < len(labels) / clients).astype(float)
            members = rng.permutation(np.flatnonzero(labels == c))
            if not len(members):
                continue
            cuts = np.floor(np.cumsum(share / share.sum())[:-1] * len(members)).astype(np.int64)
            for client, piece in enumerate(np.split(members, cuts)):
                parts[client].append(piece)
                sizes[client] += len(piece)
        if sizes.min() >= MIN_SIZE:
            return [np.sort(np.concatenate(part)) for part in parts]
    raise CafedclError(
        f"split: no draw of {MAX_TRIES} gave every one of {clients} clients {MIN_SIZE} images at alpha = {alpha:g}; "
        "use a larger alpha, fewer clients or form = 'client'"
    )


def pathological(labels: Ints, clients: int, classes: int, held: int, rng: np.random.Generator) -> list[Ints]:
    """Give every client exactly ``held`` classes, every class to somebody, and each class in equal parts."""
    if held > classes:
        raise CafedclError(f"split.classes = {held}: there are only {classes} classes")
    if clients * held < classes:
        raise CafedclError(
            f"split: {clients} clients × {held} classes cannot cover {classes} classes; "
            f"use at least {-(-classes // clients)} classes per client"
        )
    holders: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        order = rng.permutation(classes)
        for c in sorted(order, key=lambda c: len(holders[c]))[:held]:
            holders[c].append(client)
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for c, owners in enumerate(holders):
        members = rng.permutation(np.flatnonzero(labels == c))
        if len(members) < len(owners):
            raise CafedclError(
                f"split: class {c} has {len(members)} images for {len(owners)} clients; "
                "use fewer clients or a smaller ir"
            )
        for owner, piece in zip(owners, np.array_split(members, len(owners)), strict=True):
            parts[owner].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def hold_out(labels: Ints, shard: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Part a shard, stratified: ``share`` of every class, at least one where there are two, never the last."""
    held = []
    if share > 0:
        for c in np.unique(labels[shard]):
            members = rng.permutation(shard[labels[shard] == c])
            take = 0 if len(members) < 2 else min(max(1, round(share * len(members))), len(members) - 1)
            held.append(members[:take])
    out = np.sort(np.concatenate(held)) if held else shard[:0]
    return np.setdiff1d(shard, out, assume_unique=True), out


def split(labels: Tensor, classes: int, clients: int, options: SplitOptions, seed: int, test_share: float) -> Shards:
    """Deal images to clients; ``test_share`` of each client's are kept for testing (complete protocol: 0)."""
    y: Ints = labels.cpu().numpy()
    rng = stream(seed, "split")
    kept = long_tail(y, classes, options.ir, stream(seed, "long tail")) if options.ir > 1 else np.arange(len(y))
    if len(kept) < clients:
        raise CafedclError(f"split: {len(kept)} images are too few for {clients} clients")
    if options.kind == "iid":
        dealt = [np.sort(part) for part in np.array_split(rng.permutation(len(kept)), clients)]
    elif options.kind == "pathological":
        dealt = pathological(y[kept], clients, classes, options.classes, rng)
    elif options.form == "client":
        dealt = dirichlet_per_client(y[kept], clients, classes, options.alpha, rng)
    else:
        dealt = dirichlet_per_class(y[kept], clients, classes, options.alpha, rng)
    train: list[Tensor] = []
    validation: list[Tensor] = []
    test: list[Tensor] = []
    for client, part in enumerate(dealt):
        local = stream(seed, "hold out", client)
        rest, tested = hold_out(y, kept[part], test_share, local)
        fit, checked = hold_out(y, rest, options.validation, local)
        for pile, indices in ((train, fit), (validation, checked), (test, tested)):
            pile.append(torch.from_numpy(indices))
    counts = torch.stack([torch.bincount(labels.cpu()[part], minlength=classes) for part in train])
    return Shards(tuple(train), tuple(validation), tuple(test) if test_share else (), counts)


def pool(shards: Shards) -> Shards:
    """Return all clients' images as one client, for training in one place."""
    return Shards(
        (torch.cat(shards.train),),
        (torch.cat(shards.validation),),
        (torch.cat(shards.test),) if shards.test else (),
        shards.counts.sum(0, keepdim=True),
    )
