"""Each client's images as indices into the training set: holding parts out, pooling, saving and
loading.
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors, pack, unpack

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shards:
    """What each client has. ``test`` is empty under the complete protocol."""

    train: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    counts: Tensor
    """Training images per client and class n_{k,c}, without the validation part."""

    def __len__(self) -> int:
        return len(self.train)


def hold_out(
    labels: Ints, owner: Ints, share: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Return which images are held out, stratified by client and class; ``owner`` is −1 for images
    nobody has.

    Of every client's class it is ``share``, at least one where there are two, and never the last
    one.
    """
    held = np.zeros(len(labels), dtype=bool)
    if share <= 0:
        return held
    key = rng.random(len(labels))
    order = np.lexsort((key, labels, owner))
    order = order[owner[order] >= 0]
    group = owner[order] * (labels.max() + 1) + labels[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    take = np.where(
        sizes < 2, 0, np.minimum(np.maximum(1, np.round(share * sizes)), sizes - 1)
    ).astype(np.int64)
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    held[order[rank < np.repeat(take, sizes)]] = True
    return held


def gather(
    labels: Ints, classes: int, clients: int, parts: tuple[Ints, Ints, Ints | None]
) -> Shards:
    """Return shards from the owner of every image in each part (training, validation, test), −1
    where it is in none.
    """
    piles: list[tuple[Tensor, ...]] = []
    for owner in parts:
        if owner is None:
            piles.append(())
            continue
        order = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[order], np.arange(clients + 1))
        indices = torch.from_numpy(order)
        piles.append(
            tuple(indices[a:b] for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
        )
    train, validation, test = piles
    mine = parts[0] >= 0
    counts = np.bincount(parts[0][mine] * classes + labels[mine], minlength=clients * classes)
    return Shards(train, validation, test, torch.from_numpy(counts.reshape(clients, classes)))


def pool(shards: Shards) -> Shards:
    """Return all clients' images as one client, for training in one place."""
    return Shards(
        (torch.cat(shards.train),),
        (torch.cat(shards.validation),),
        (torch.cat(shards.test),) if shards.test else (),
        shards.counts.sum(0, keepdim=True),
    )


def fingerprint(labels: Tensor) -> str:
    """Return a digest of the labels, by which a saved split knows its data."""
    return blake2b(labels.cpu().numpy().astype("<i8").tobytes(), digest_size=12).hexdigest()


def save_shards(shards: Shards, labels: Tensor, path: Path) -> None:
    """Write a split to a file that ``--split file:PATH`` reads."""
    tensors: Tensors = {"counts": shards.counts}
    for name in ("train", "validation", "test"):
        parts = getattr(shards, name)
        tensors[f"{name}/sizes"] = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        tensors[f"{name}/indices"] = (
            torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.int64)
        )
    try:
        path.write_bytes(pack(tensors, {"labels": fingerprint(labels), "images": len(labels)}))
    except OSError as error:
        raise CafedclError(f"{path}: cannot be written: {error.strerror}") from None


def load_shards(path: Path, labels: Tensor) -> Shards:
    """Read a split; one that was made for other data is refused."""
    try:
        tensors, header = unpack(path.read_bytes())
        if header["labels"] != fingerprint(labels):
            raise CafedclError(
                f"{path}: this split was made for other data ({header['images']} training images)"
            )
        train, validation, test = (
            tensors[f"{name}/indices"].split(tensors[f"{name}/sizes"].tolist())
            for name in ("train", "validation", "test")
        )
        return Shards(train, validation, test, tensors["counts"])
    except OSError as error:
        raise CafedclError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, RuntimeError) as error:
        raise CafedclError(
            f"{path}: not a split written by `cafedcl split --export`: {error}"
        ) from None
