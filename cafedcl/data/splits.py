"""Splitting training images over clients: the long tail, then the skew, then validation images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from cafedcl.config.split_options import SplitOptions
from cafedcl.core.arrays import Ints
from cafedcl.core.client_names import client_title
from cafedcl.core.errors import CafedclError
from cafedcl.core.paths import absolute
from cafedcl.core.rng import draw_by_class, stream
from cafedcl.data.groups import NO_GROUPS, to_units
from cafedcl.data.shards import (
    PARTS,
    Shards,
    choose_held_out,
    load_shards,
    refuse_broken_groups,
    shards_of_owners,
)
from cafedcl.data.split_tables import is_table, load_table

MIN_SIZE = 10
MAX_TRIES = 1000
BLOCK = 1_000_000
"""Random numbers drawn at once for many small clients."""


@dataclass(frozen=True)
class SplitWords:
    """The words of messages: whether images or groups are assigned, and names of classes and
    clients.
    """

    units: str = "images"
    classes: Sequence[str] = ()
    clients: Sequence[str] = ()

    def class_title(self, c: int) -> str:
        """Return a class by its name, or by its number where it has none."""
        return f"class '{self.classes[c]}'" if self.classes else f"class {c}"


UNNAMED = SplitWords()


def tail_profile(most: int, classes: int, ir: float, shape: str) -> Ints:
    """Return how many images of each class a long tail keeps.

    ``exponential``: n_c = ⌊n_max · IR^(−c/(C−1))⌋. ``step``: the first half of the classes keeps
    all images, the other half ⌊n_max/IR⌋.
    """
    if shape == "exponential":
        exponent = np.arange(classes) / max(classes - 1, 1)
    else:
        exponent = (np.arange(classes) >= (classes + 1) // 2).astype(float)
    # The small number keeps a rounding error below a whole number from losing an image.
    return np.floor(most * ir**-exponent + 1e-9).astype(np.int64)


def long_tail(labels: Ints, classes: int, ir: float, shape: str, rng: np.random.Generator) -> Ints:
    """Return the indices of the images that a long tail keeps of the whole training set."""
    keep = tail_profile(int(np.bincount(labels, minlength=classes).max()), classes, ir, shape)
    return draw_by_class(labels, keep, rng)


def dirichlet_per_client(
    labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.Generator
) -> Ints:
    """Draw q ~ Dir(α) for each client, and N/K of the unassigned images with weight q_y.

    This is FedRCL's split: clients have equal sizes, and late ones drift from their draw as classes
    run out. Images are drawn without replacement, which equals an exponential race: the j-th image
    of a class with r left arrives after a gap of rate q_c·(r − j), and the first N/K arrivals over
    all classes win.
    """
    # All images sorted by class and shuffled inside each class. A class is used from its end:
    # `left[c]` images of it remain, and they end before position `top[c]`.
    deck = np.lexsort((rng.random(len(labels)), labels))
    left = np.bincount(labels, minlength=classes)
    top = left.cumsum()
    weights = np.maximum(rng.dirichlet(np.full(classes, alpha), clients), 1e-30)
    owner = np.full(len(labels), -1)
    sizes = np.bincount(_equal_parts(len(labels), np.arange(clients)), minlength=clients)
    steps = np.arange(sizes[0])[:, None]
    at_once = max(1, BLOCK // int(sizes[0] * classes))
    for client, size in enumerate(sizes.tolist()):
        if client % at_once == 0:
            waits = rng.standard_exponential(int(sizes[client : client + at_once].sum()) * classes)
        gaps = waits[: size * classes].reshape(size, classes)
        waits = waits[size * classes :]
        behind = left - steps[:size]
        # The common case, in which no class can run out, is the faster one.
        if behind[-1].min() > 0:
            arrivals = (gaps / (weights[client] * behind)).cumsum(0).ravel()
        else:
            late = (gaps / (weights[client] * np.maximum(behind, 1))).cumsum(0)
            arrivals = np.where(behind > 0, late, np.inf).ravel()
        numbers = np.bincount(
            np.argpartition(arrivals, size - 1)[:size] % classes, minlength=classes
        )
        # The last numbers[c] remaining images of every class c, all classes at once.
        owner[deck[np.repeat(top - numbers.cumsum(), numbers) + steps[:size, 0]]] = client
        left -= numbers
        top -= numbers
    return owner


def dirichlet_per_class(
    labels: Ints,
    clients: int,
    classes: int,
    alpha: float,
    rng: np.random.Generator,
    words: SplitWords = UNNAMED,
) -> Ints:
    """For each class draw p ~ Dir(α) over clients; redraw until every client has 10 images.

    A client that already has its N/K images gets no more.
    """
    if len(labels) < clients * MIN_SIZE:
        raise CafedclError(
            f"split: {len(labels)} {words.units} cannot give {clients} clients {MIN_SIZE} each; "
            "use fewer clients or form = 'client'"
        )
    for _ in range(MAX_TRIES):
        owner = np.full(len(labels), -1)
        sizes = np.zeros(clients, dtype=np.int64)
        for c in range(classes):
            members = rng.permutation(np.flatnonzero(labels == c))
            if not len(members):
                continue
            room = sizes < len(labels) / clients
            share = rng.dirichlet(np.full(clients, alpha)) * room
            # A small α can put all its mass on full clients, or underflow to NaN.
            if not share.sum() > 0:
                share = room.astype(float)
            cuts = np.floor(np.cumsum(share / share.sum())[:-1] * len(members)).astype(np.int64)
            numbers = np.diff(np.r_[0, cuts, len(members)])
            owner[members] = np.repeat(np.arange(clients), numbers)
            sizes += numbers
        if sizes.min() >= MIN_SIZE:
            return owner
    raise CafedclError(
        f"split: none of {MAX_TRIES} draws gave each of {clients} clients {MIN_SIZE} {words.units} "
        f"at alpha = {alpha:g}; use a larger alpha, fewer clients or form = 'client'"
    )


def pathological(
    labels: Ints,
    clients: int,
    classes: int,
    held: int,
    rng: np.random.Generator,
    words: SplitWords = UNNAMED,
) -> Ints:
    """Give every client exactly ``held`` classes; holders of a class get equal parts of it.

    Every class has a holder.
    """
    if held > classes:
        raise CafedclError(f"split.classes = {held}: there are only {classes} classes")
    if clients * held < classes:
        raise CafedclError(
            f"split: {clients} clients × {held} classes cannot cover {classes} classes; "
            f"use at least {-(-classes // clients)} classes per client"
        )
    load = np.zeros(classes)
    holders: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        # The classes with the fewest holders so far; random fractions break ties.
        chosen = np.argsort(load + rng.random(classes))[:held]
        load[chosen] += 1
        for c in chosen:
            holders[c].append(client)
    owner = np.full(len(labels), -1)
    for c, owners in enumerate(holders):
        members = rng.permutation(np.flatnonzero(labels == c))
        if len(members) < len(owners):
            raise CafedclError(
                f"split: {words.class_title(c)} has {len(members)} {words.units} for "
                f"{len(owners)} clients; "
                "use fewer clients, fewer classes per client or a smaller ir"
            )
        owner[members] = _equal_parts(len(members), np.array(owners))
    return owner


def quantity(labels: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Give clients sizes in proportions drawn from Dir(α), at least one image each.

    Labels play no role.
    """
    numbers = 1 + rng.multinomial(len(labels) - clients, rng.dirichlet(np.full(clients, alpha)))
    owner = np.empty(len(labels), dtype=np.int64)
    owner[rng.permutation(len(labels))] = np.repeat(np.arange(clients), numbers)
    return owner


def iid(labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Give every client the same number of images, whatever their labels."""
    owner = np.empty(len(labels), dtype=np.int64)
    owner[rng.permutation(len(labels))] = _equal_parts(len(labels), np.arange(clients))
    return owner


def _equal_parts(images: int, owners: Ints) -> Ints:
    """Return an owner for every image, in equal parts; the first owners get the remainder."""
    numbers = np.full(len(owners), images // len(owners))
    numbers[: images % len(owners)] += 1
    return np.repeat(owners, numbers)


def assign_clients(
    labels: Ints,
    natural: Ints,
    classes: int,
    clients: int,
    options: SplitOptions,
    seed: int,
    words: SplitWords = UNNAMED,
) -> Ints:
    """Return the client of every image, or of every group, after the long tail was applied."""
    rng = stream(seed, "split")
    if len(labels) < clients:
        raise CafedclError(f"split: {len(labels)} {words.units} are too few for {clients} clients")
    if len(natural):
        return natural
    if options.kind == "iid":
        return iid(labels, clients, rng)
    if options.kind == "quantity":
        return quantity(labels, clients, options.alpha, rng)
    if options.kind == "pathological":
        return pathological(labels, clients, classes, options.classes, rng, words)
    if options.form == "client":
        return dirichlet_per_client(labels, clients, classes, options.alpha, rng)
    return dirichlet_per_class(labels, clients, classes, options.alpha, rng, words)


def split(
    labels: Tensor,
    natural: Tensor,
    classes: int,
    clients: int,
    options: SplitOptions,
    seed: int,
    test_share: float,
    groups: Tensor | None = None,
    words: SplitWords = UNNAMED,
) -> Shards:
    """Split images over clients, and each client's into training, validation and test images.

    ``natural`` is the natural client of every image, empty if there are none. ``test_share`` is 0
    under the complete protocol. ``groups`` is the group of every image; a group is never separated;
    None or empty if there are none.
    """
    group: Ints = NO_GROUPS if groups is None else groups.cpu().numpy()
    y: Ints = labels.cpu().numpy()
    if options.kind == "file":
        path = Path(absolute(options.file))
        if is_table(path):
            shares = (options.validation, test_share)
            loaded = shards_of_table(path, y, classes, seed, shares, group)
        else:
            loaded = load_shards(path, labels, group)
        _check_test_part(path, loaded, test_share)
        return loaded
    kept = np.arange(len(y))
    if options.ir > 1:
        kept = long_tail(y, classes, options.ir, options.tail, stream(seed, "long tail"))
        _refuse_lost_classes(y, kept, classes, options.ir, words)
    born: Ints = np.zeros(0, dtype=np.int64)
    if options.kind in ("natural", "source"):
        born = natural.cpu().numpy()[kept]
    owner = np.full(len(y), -1)
    if len(group) and not len(born):
        unit, unit_labels = to_units(y[kept], group[kept])
        grouped = replace(words, units="groups")
        assigned = assign_clients(unit_labels, born, classes, clients, options, seed, grouped)
        owner[kept] = assigned[unit]
    else:
        owner[kept] = assign_clients(y[kept], born, classes, clients, options, seed, words)
    parts = _parts(y, owner, (options.validation, test_share), seed, group)
    shards = shards_of_owners(y, classes, clients, parts)
    empty = np.flatnonzero(shards.train.sizes == 0)
    if len(empty):
        raise CafedclError(
            f"split: {client_title(words.clients, int(empty[0]))} has no training images; "
            "use a smaller ir or another split"
        )
    return shards


def shards_of_table(
    path: Path, labels: Ints, classes: int, seed: int, shares: tuple[float, float], groups: Ints
) -> Shards:
    """Return the split of a table.

    ``shares`` of the images are held out for validation and test, if the table has no parts.
    """
    table = load_table(path, labels)
    if len(table.part):
        train, validation, test = (table.owners(part) for part in PARTS)
        parts = (train, validation, test if (test >= 0).any() else None)
    else:
        parts = _parts(labels, table.owner, shares, seed, groups)
    shards = shards_of_owners(labels, classes, table.clients, parts)
    empty = np.flatnonzero(shards.train.sizes == 0)
    if len(empty):
        title = client_title(table.names, int(empty[0]))
        raise CafedclError(f"{path}: {title} has no training images")
    shards = replace(shards, names=table.names)
    if len(groups):
        refuse_broken_groups(path, shards, groups)
    return shards


def _check_test_part(path: Path, shards: Shards, test_share: float) -> None:
    """Refuse a saved split that was made for another protocol of evaluation."""
    if len(shards.test) and not test_share:
        raise CafedclError(
            f"{path}: it gives clients test images of their own, which only evaluate.protocol = "
            "pfllib uses; set that, or make the split without it"
        )
    if test_share and not len(shards.test):
        raise CafedclError(
            f"{path}: it has no test images, which evaluate.protocol = pfllib needs; make the "
            "split with it, or leave it out"
        )


def _refuse_lost_classes(
    labels: Ints, kept: Ints, classes: int, ir: float, words: SplitWords
) -> None:
    """Refuse a long tail that leaves nothing of a class that had images."""
    before = np.bincount(labels, minlength=classes)
    after = np.bincount(labels[kept], minlength=classes)
    lost = np.flatnonzero((before > 0) & (after == 0))
    if len(lost):
        raise CafedclError(
            f"split.ir = {ir:g}: {words.class_title(lost[0])} would keep no image; "
            f"use at most {before.max()}"
        )


def _parts(
    labels: Ints, owner: Ints, shares: tuple[float, float], seed: int, groups: Ints
) -> tuple[Ints, Ints, Ints | None]:
    """Return the owners of training, validation and test images.

    ``shares`` of the images are for validation and test; without a share for test there are none.
    """
    held, tested = shares
    rest, test = _separate(labels, owner, tested, seed, "test part", groups)
    train, validation = _separate(labels, rest, held, seed, "validation part", groups)
    return train, validation, test if tested else None


def _separate(
    labels: Ints, owner: Ints, share: float, seed: int, purpose: str, groups: Ints
) -> tuple[Ints, Ints]:
    """Return the owners of the remaining images and of those held out."""
    held = choose_held_out(labels, owner, share, stream(seed, purpose), groups)
    return np.where(held, -1, owner), np.where(held, owner, -1)
