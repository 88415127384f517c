"""Your own images with their classes, and optionally their clients and train/test sides."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.cache import Remarks, cached
from cafedcl.data.checked import checked_dataset, choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.images import Opener, decode_images
from cafedcl.data.paths import data_folder

SIDES = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
LISTED = 5
"""How many broken images a message names."""


@dataclass(frozen=True)
class Item:
    """One image of your own."""

    name: str
    image: Opener
    label: str
    client: str = ""
    """Its natural client; empty without natural clients."""
    side: str = "train"


@dataclass(frozen=True)
class Collection:
    """Images of your own, and class and client names that may have no image."""

    where: str
    items: Sequence[Item]
    classes: Iterable[str] = ()
    clients: Iterable[str] = ()


def load_items(
    collection: Collection, options: DataOptions, files: Sequence[Path]
) -> tuple[Dataset, Remarks]:
    """Return the data set of a collection, from the cache if ``files`` are unchanged."""
    where = Path(collection.where).resolve()
    choice = hashlib.sha256(f"{where}|{options.size}|{options.strict}".encode()).hexdigest()[:8]
    label = f"own-{re.sub('[^A-Za-z0-9_-]', '_', where.stem)[:40]}-{choice}"
    root = data_folder(options.dir)
    return cached(root, label, files, lambda: decode_collection(collection, options))


def decode_collection(collection: Collection, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Decode a collection and return the data set, with remarks on images that were left out."""
    where = collection.where
    remarks = Remarks()
    items = list(collection.items)
    sides = {item.side for item in items}
    validation = sum(item.side == "validation" for item in items)
    if "test" in sides and validation:
        items = [item for item in items if item.side != "validation"]
        remarks.append(
            f"{where}: {validation} validation images are left out; each client holds out its own"
        )
    classes = sort_names({item.label for item in items} | set(collection.classes))
    clients = sort_names(
        {item.client for item in items if item.side == "train"} | set(collection.clients) - {""}
    )
    _refuse_similar(where, "class", classes, [" ".join(name.split()) for name in classes])
    _refuse_similar(
        where, "client", clients, [" ".join(name.casefold().split()) for name in clients]
    )
    natural = clients != [""]
    if natural and "" in clients:
        raise CafedclError(f"{where}: some training images have a client and some have none")
    try:
        decoded = decode_images([item.image for item in items], options.size)
    except MemoryError:
        raise CafedclError(
            f"{where}: {len(items)} images do not fit into memory; set a smaller data.size"
        ) from None
    if decoded.bad:
        bad = [(items[i].name, reason) for i, reason in decoded.bad.items()]
        message = _broken_images(where, bad, len(items))
        if options.strict:
            raise CafedclError(f"{message}; repair or remove them, or set data.strict = false")
        message += "; skipped"
        if not len(decoded.kept):
            raise CafedclError(message)
        remarks.append(message)
    items = [items[i] for i in decoded.kept]
    class_of = {name: i for i, name in enumerate(classes)}
    client_of = {name: i for i, name in enumerate(clients)}
    labels = np.array([class_of[item.label] for item in items], dtype=np.int64)
    test = np.array([item.side != "train" for item in items], dtype=np.bool_)
    owners = None
    if natural:
        # Test images may have clients that have no training images; their number is not used.
        owners = np.array([client_of.get(item.client, -1) for item in items], dtype=np.int64)
    if sides <= {"train"}:
        test = choose_test(labels, owners)
    data = checked_dataset(
        where,
        (decoded.pixels[~test], labels[~test]),
        (decoded.pixels[test], labels[test]),
        classes,
        owners[~test] if owners is not None else None,
        clients if natural else (),
    )
    return data, remarks


def sort_names(names: Iterable[str]) -> list[str]:
    """Return sorted names: by value if all are whole numbers, else as text."""
    names = list(names)
    if all(name.isascii() and name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _refuse_similar(where: str, what: str, names: Sequence[str], folded: Sequence[str]) -> None:
    """Refuse names that are equal when case or blanks are ignored; most likely a typing error."""
    seen: dict[str, str] = {}
    for name, key in zip(names, folded, strict=True):
        if key in seen:
            difference = "case or blanks" if what == "client" else "blanks"
            raise CafedclError(
                f"{where}: the {what} names '{seen[key]}' and '{name}' differ only by "
                f"{difference}; rename one of them"
            )
        seen[key] = name


def _broken_images(where: str, bad: Sequence[tuple[str, str]], total: int) -> str:
    listed = ", ".join(f"{name} ({reason})" for name, reason in bad[:LISTED])
    more = f" and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
    return f"{where}: {len(bad)} of {total} images cannot be read: {listed}{more}"
