"""Your own images with their classes, and optionally their clients and train/test sides."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cafedcl.config.data_options import NONE, DataOptions
from cafedcl.core.arrays import Ints
from cafedcl.core.errors import CafedclError
from cafedcl.core.paths import data_folder
from cafedcl.data.alike import alike_classes, alike_groups, refuse_similar
from cafedcl.data.cache import Remarks, cached, choice_digest
from cafedcl.data.checked import checked_dataset, choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.duplicates import duplicates_remark
from cafedcl.data.grey_values import Window
from cafedcl.data.groups import NO_GROUPS, unit_owners
from cafedcl.data.images import DecodedImages, Opener, decode_images
from cafedcl.data.own.file_names import patients_remark
from cafedcl.data.scope import refuse_other_tasks

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
"""How many files a message names."""


@dataclass(frozen=True)
class Item:
    """One image of your own."""

    name: str
    image: Opener
    label: str
    client: str = ""
    """Its natural client; empty without natural clients."""
    side: str = "train"
    group: str = ""
    """The group that it belongs to, such as its patient; empty without groups."""


@dataclass(frozen=True)
class Collection:
    """Images of your own, and class and client names that may have no image."""

    where: str
    items: Sequence[Item]
    classes: Iterable[str] = ()
    clients: Iterable[str] = ()
    client_kind: str = "natural"
    """The split in which the clients are used: ``natural`` or ``source``."""
    group_kind: str = ""
    """What the groups are, such as ``patient``."""
    remarks: Sequence[str] = ()


def load_items(
    collection: Collection, options: DataOptions, files: Sequence[Path]
) -> tuple[Dataset, Remarks]:
    """Return the data set of a collection, from the cache if ``files`` are unchanged."""
    where = Path(collection.where).resolve()
    chosen = (where, options.size, options.strict, options.client, options.group, options.window)
    label = f"own-{re.sub('[^A-Za-z0-9_-]', '_', where.stem)[:40]}-{choice_digest(*chosen)}"
    root = data_folder(options.dir)
    return cached(root, label, files, lambda: decode_collection(collection, options))


def decode_collection(collection: Collection, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Decode a collection and return the data set, with remarks on images that were left out."""
    where = collection.where
    remarks = Remarks(collection.remarks)
    items = list(collection.items)
    refuse_other_tasks(where, [item.label for item in items])
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
    # Checked before the images are decoded, which may take minutes.
    refuse_similar(where, "class", classes)
    refuse_similar(where, "client", clients)
    natural = clients != [""]
    if natural and "" in clients:
        raise CafedclError(f"{where}: some training images have a client and some have none")
    _refuse_broken_groups(where, items, collection.group_kind)
    holders: dict[str, set[str]] = {name: set() for name in classes}
    for item in items:
        if item.client:
            holders[item.label].add(item.client)
    remarks += alike_classes(where, holders)
    if collection.group_kind:
        remarks += alike_groups(where, collection.group_kind, (item.group for item in items))
    if not collection.group_kind and options.group != NONE:
        remarks += patients_remark(where, [item.name for item in items])
    window = Window.of(options.limits, options.window)
    try:
        decoded = decode_images([item.image for item in items], options.size, window=window)
    except MemoryError:
        raise CafedclError(
            f"{where}: {len(items)} images do not fit into memory; set a smaller data.size"
        ) from None
    if decoded.bad:
        bad = [(items[i].name, reason) for i, reason in decoded.bad.items()]
        message = _broken_images(where, bad, len(items))
        if options.strict:
            raise CafedclError(f"{message}; repair or remove them, or set data.strict = false")
        if not len(decoded.kept):
            raise CafedclError(f"{message}; repair them, or give others")
        lost = {item.label for item in items} - {items[i].label for i in decoded.kept}
        if lost:
            raise CafedclError(
                f"{message}; class '{min(lost)}' has no others; repair them, or remove the class"
            )
        remarks.append(f"{message}; skipped")
    remarks += _grey_remarks(where, decoded, options)
    items = [items[i] for i in decoded.kept]
    class_of = {name: i for i, name in enumerate(classes)}
    client_of = {name: i for i, name in enumerate(clients)}
    labels = np.array([class_of[item.label] for item in items], dtype=np.int64)
    test = np.array([item.side != "train" for item in items], dtype=np.bool_)
    owners = None
    if natural:
        # Test images may have clients that have no training images; their number is not used.
        owners = np.array([client_of.get(item.client, -1) for item in items], dtype=np.int64)
    groups = NO_GROUPS
    if collection.group_kind:
        _, groups = np.unique([item.group for item in items], return_inverse=True)
    if sides <= {"train"}:
        test = choose_test(labels, owners, groups)
        if not test.any():
            raise CafedclError(
                f"{where}: there are too few images to hold some out for testing; add images, or "
                "a folder or column that says which are for testing"
            )
    if len(groups) and owners is not None:
        remarks += _spread_groups(where, collection.group_kind, groups[~test], owners[~test])
    data = checked_dataset(
        where,
        (decoded.pixels[~test], labels[~test]),
        (decoded.pixels[test], labels[test]),
        classes,
        owners[~test] if owners is not None else None,
        clients if natural else (),
        (groups[~test], groups[test]) if len(groups) else None,
        owner_kind=collection.client_kind,
        group_kind=collection.group_kind,
        window=decoded.window,
    )
    trained = np.flatnonzero(~test)
    tested = np.flatnonzero(test)
    remarks += duplicates_remark(
        where,
        (decoded.pixels[i] for i in trained),
        (decoded.pixels[i] for i in tested),
        lambda row: items[trained[row]].name,
        lambda row: items[tested[row]].name,
    )
    return data, remarks


def _refuse_broken_groups(where: str, items: Sequence[Item], kind: str) -> None:
    """Refuse groups that the data's own split has in training and in test."""
    if not kind:
        return
    trained = {item.group for item in items if item.side == "train"}
    for item in items:
        if item.side != "train" and item.group in trained:
            raise CafedclError(
                f"{where}: {kind} '{item.group}' has images in training and in test, such as "
                f"{item.name}; move them to one side, or set data.group = none"
            )


def _spread_groups(where: str, kind: str, groups: Ints, owners: Ints) -> Remarks:
    """Return a remark on groups whose images several clients have."""
    _, unit = np.unique(groups, return_inverse=True)
    number = int((unit_owners(unit, owners) > owners.max()).sum())
    if not number:
        return []
    return [
        f"{where}: {number} values of {kind} occur at several clients; each counts as one {kind}, "
        "whose images stay at their clients, but are all trained on or all held out"
    ]


def _grey_remarks(where: str, decoded: DecodedImages, options: DataOptions) -> Remarks:
    """Return remarks on how grey values of more than 8 bits became bytes."""
    remarks = Remarks()
    if options.limits and not decoded.deep:
        # Not an error: sites of one run share its options, and only some may have such images.
        remarks.append(
            f"{where}: data.window = {options.window} changes nothing: no image has more than 8 "
            "bits"
        )
    if decoded.deep and not options.limits:
        how = "each by its own window"
        except_for = ""
        if decoded.window:
            low, high = decoded.window
            how = f"values {low:g} to {high:g}"
        if decoded.window and decoded.own_window:
            except_for = f", but {decoded.own_window} by the window in their file"
        remarks.append(
            f"{where}: {decoded.deep} images have more than 8 bits per pixel; {how} become 256 "
            f"grey levels{except_for} (data.window = LOW,HIGH chooses other values)"
        )
    if decoded.reduced:
        remarks.append(
            f"{where}: {decoded.reduced} colour images have 16 bits per channel; "
            "the upper 8 are used"
        )
    return remarks


def sort_names(names: Iterable[str]) -> list[str]:
    """Return sorted names: by value if all are whole numbers, else as text."""
    names = list(names)
    if all(name.isascii() and name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _broken_images(where: str, bad: Sequence[tuple[str, str]], total: int) -> str:
    listed = ", ".join(f"{name} ({reason})" for name, reason in bad[:LISTED])
    more = f" and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
    return f"{where}: {len(bad)} of {total} images cannot be read: {listed}{more}"
