"""Each client's images as indices into the training set: hold out, merge, save and load."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.arrays import Ints, Mask
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, read_content, write_atomically
from cafedcl.core.tensors import Tensors, pack, unpack
from cafedcl.data.groups import (
    NO_GROUPS,
    broken_group,
    to_units,
    unit_owners,
    without_last_ones,
)

PARTS = ("train", "validation", "test")
"""The parts of a client's images."""


@dataclass(frozen=True)
class ClientRows:
    """One part of the images of every client, in one tensor.

    A tensor for every client would take a kilobyte each, and there may be a million clients.
    """

    indices: Tensor
    """The indices of all clients, one client after another."""
    offsets: Ints
    """Where each client begins, and the end: one more than there are clients."""

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> "ClientRows":
        """Return the rows of all clients, given those of each."""
        indices = torch.cat(list(rows)) if rows else torch.zeros(0, dtype=torch.int64)
        return cls.of_sizes(indices, np.array([len(part) for part in rows], dtype=np.int64))

    @classmethod
    def of_sizes(cls, indices: Tensor, sizes: Ints) -> "ClientRows":
        """Return the rows of clients with the given numbers of them."""
        return cls(indices, np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def sizes(self) -> Ints:
        """The number of each client's images."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        # A range counts negative numbers from the end, and refuses those beyond it.
        client = range(len(self))[client]
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(len(self)))

    def to(self, device: torch.device | str) -> "ClientRows":
        """Return the rows on a device."""
        return ClientRows(self.indices.to(device), self.offsets)


NO_ROWS = ClientRows.of([])
"""The rows of no clients."""


@dataclass(frozen=True)
class Shards:
    """The images of each client. ``test`` is empty under the complete protocol."""

    train: ClientRows
    validation: ClientRows
    test: ClientRows
    counts: Tensor
    """Training images per client and class n_{k,c}, without the validation part."""
    names: tuple[str, ...] = ()
    """The clients' names; empty if they have numbers only."""

    def __len__(self) -> int:
        return len(self.train)

    def tensors(self) -> Tensors:
        """Return everything but the names as a few tensors, on the host."""
        tensors: Tensors = {"counts": self.counts.cpu()}
        for name in PARTS:
            rows: ClientRows = getattr(self, name)
            tensors[f"{name}/sizes"] = torch.from_numpy(rows.sizes)
            tensors[f"{name}/indices"] = rows.indices.cpu()
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Tensors, names: Sequence[str]) -> "Shards":
        """Return the shards that were made into tensors."""
        parts = []
        for name in PARTS:
            indices = tensors[f"{name}/indices"]
            sizes = tensors[f"{name}/sizes"]
            if sizes.dtype != torch.int64 or (sizes < 0).any() or sizes.sum() != len(indices):
                raise ValueError(f"{name}/sizes does not fit {name}/indices")
            parts.append(ClientRows.of_sizes(indices, sizes.numpy()))
        train, validation, test = parts
        return cls(train, validation, test, tensors["counts"], tuple(map(str, names)))


def stratified_rows(labels: Tensor, number: int) -> Tensor:
    """Choose about ``number`` images, evenly spaced in every class; for 0, all in order.

    Each class has its share of them, and at least one if it has any.
    """
    if not 0 < number < len(labels):
        return torch.arange(len(labels))
    chosen = []
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        wanted = max(1, round(number * len(rows) / len(labels)))
        chosen.append(rows[torch.arange(wanted) * len(rows) // wanted])
    return torch.cat(chosen).sort().values


def choose_held_out(
    labels: Ints,
    owner: Ints,
    share: float,
    rng: np.random.Generator,
    groups: Ints = NO_GROUPS,
) -> Mask:
    """Choose images to hold out, stratified by client and class; ``owner`` is −1 for unused images.

    Of every client's class, ``share`` is held out: at least one image if there are two, never all.
    With groups, whole groups are held out.
    """
    held = np.zeros(len(labels), dtype=bool)
    if len(groups):
        used = np.flatnonzero(owner >= 0)
        unit, unit_labels = to_units(labels[used], groups[used])
        units = unit_owners(unit, owner[used])
        chosen = choose_held_out(unit_labels, units, share, rng)
        client_and_class = owner[used] * (labels.max() + 1) + labels[used]
        held[used] = without_last_ones(chosen, unit, client_and_class)[unit]
        return held
    if share <= 0:
        return held
    key = rng.random(len(labels))
    # Sorted by client, then class, then the random key.
    order = np.lexsort((key, labels, owner))
    order = order[owner[order] >= 0]
    group = owner[order] * (labels.max() + 1) + labels[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    wanted = np.minimum(np.maximum(1, np.round(share * sizes)), sizes - 1)
    take = np.where(sizes < 2, 0, wanted).astype(np.int64)
    # An image's rank in its group of equal client and class; groups are shuffled by the random key.
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    held[order[rank < np.repeat(take, sizes)]] = True
    return held


def shards_of_owners(
    labels: Ints, classes: int, clients: int, parts: tuple[Ints, Ints, Ints | None]
) -> Shards:
    """Return the shards, given every image's owner in each part (training, validation, test).

    The owner is −1 for an image that is not in the part.
    """
    by_part = []
    for owner in parts:
        if owner is None:
            by_part.append(NO_ROWS)
            continue
        order = np.argsort(owner, kind="stable")
        # Unused images (−1) are sorted before client 0's.
        cuts = np.searchsorted(owner[order], np.arange(clients + 1))
        by_part.append(ClientRows(torch.from_numpy(order[cuts[0] :]), cuts - cuts[0]))
    train, validation, test = by_part
    owner = parts[0]
    used = owner >= 0
    # One bincount over (client, class) pairs, numbered row by row.
    counts = np.bincount(owner[used] * classes + labels[used], minlength=clients * classes)
    return Shards(train, validation, test, torch.from_numpy(counts.reshape(clients, classes)))


def merge_clients(shards: Shards) -> Shards:
    """Return all clients' images as one client, for centralised training."""
    return Shards(
        ClientRows.of([shards.train.indices]),
        ClientRows.of([shards.validation.indices]),
        ClientRows.of([shards.test.indices]) if shards.test else NO_ROWS,
        shards.counts.sum(0, keepdim=True),
    )


def fingerprint(labels: Tensor) -> str:
    """Return a digest of the labels, which ties a saved split to its data."""
    return blake2b(labels.cpu().numpy().astype("<i8").tobytes(), digest_size=12).hexdigest()


OWN_FILE = re.compile(rb'.{8}\{"__metadata__":\{"header":"\{\\"labels\\":', re.DOTALL)
"""The beginning of a split file."""


def save_shards(shards: Shards, labels: Tensor, path: Path) -> None:
    """Write a split to a file that ``--split file:PATH`` reads."""
    header = {"labels": fingerprint(labels), "images": len(labels), "names": shards.names}
    with explained(path):
        write_atomically(path, pack(shards.tensors(), header))


def load_shards(path: Path, labels: Tensor, groups: Ints = NO_GROUPS) -> Shards:
    """Read a split; a split of other data, or one that separates a group, is refused."""
    try:
        tensors, header = unpack(read_content(path))
        if header["labels"] != fingerprint(labels):
            raise CafedclError(
                f"{path}: this split was made for other data ({header['images']} training images)"
            )
        # Files of cafedcl 0.2 have no names.
        shards = Shards.from_tensors(tensors, header.get("names", ()))
    except (ValueError, KeyError, RuntimeError) as error:
        raise CafedclError(
            f"{path}: not a split written by `cafedcl split --export`: {error}"
        ) from None
    _check_shards(path, shards, labels.cpu())
    if len(groups):
        refuse_broken_groups(path, shards, groups)
    return shards


def refuse_broken_groups(path: Path, shards: Shards, groups: Ints) -> None:
    """Refuse a split in which a group is both in training and held out.

    A group may have several clients, as the data may say in a natural split.
    """
    part = np.full(len(groups), -1)
    for number, rows in enumerate((shards.train, shards.validation, shards.test)):
        part[rows.indices.numpy()] = number
    if broken_group(groups, part) is not None:
        raise CafedclError(
            f"{path}: this split was made without the data's groups: it trains on images of a "
            "group and holds out others; export it again, or set data.group = none"
        )


def _check_shards(path: Path, shards: Shards, labels: Tensor) -> None:
    """Refuse an inconsistent split, such as one from a damaged file."""
    damaged = CafedclError(f"{path}: damaged: export it again with `cafedcl split --export`")
    clients = len(shards.train)
    parts = (shards.train.indices, shards.validation.indices, shards.test.indices)
    if len(shards.validation) != clients or len(shards.test) not in (0, clients) or not clients:
        raise damaged
    if len(shards.names) not in (0, clients):
        raise damaged
    everything = torch.cat(parts)
    if everything.dtype != torch.int64 or everything.dim() != 1 or shards.counts.dim() != 2:
        raise damaged
    if ((everything < 0) | (everything >= len(labels))).any():
        raise damaged
    if len(everything.unique()) != len(everything) or len(shards.counts) != clients:
        raise damaged
    classes = shards.counts.shape[1]
    owner = np.repeat(np.arange(clients), shards.train.sizes)
    pairs = torch.from_numpy(owner) * classes + labels[shards.train.indices]
    counted = torch.bincount(pairs, minlength=clients * classes)
    if not shards.train.sizes.all() or not torch.equal(counted, shards.counts.flatten()):
        raise damaged
