"""From arrays to a data set: shapes, types and labels are checked."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.arrays import Array, Bytes, Ints, Mask
from cafedcl.core.errors import CafedclError
from cafedcl.core.rng import draw_by_class, stream
from cafedcl.data.alike import refuse_similar
from cafedcl.data.dataset import Dataset
from cafedcl.data.groups import NO_GROUPS, to_units, unit_owners, without_last_ones
from cafedcl.data.pixels import to_bytes
from cafedcl.data.scope import SCOPE

TEST_SHARE = 0.2
MOST_CLASSES = 2**31


def checked_dataset(
    where: object,
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    names: Sequence[str],
    owners: Ints | None = None,
    owner_names: Sequence[str] = (),
    groups: tuple[Ints, Ints] | None = None,
    **more: Any,
) -> Dataset:
    """Return the data set of (images, labels) pairs; images are NHW, NHWC or NCHW.

    ``where`` names the source in error messages. ``owners`` is the natural client of every training
    image, ``groups`` the group of every training and every test image. ``more`` are other fields of
    the data set by name.
    """
    pixels = to_bytes({"training": train[0], "test": test[0]}, where)
    train_x = nchw(pixels["training"], where)
    train_y = whole_labels(train[1], where)
    test_x = nchw(pixels["test"], where)
    test_y = whole_labels(test[1], where)
    check_parts(where, (train_x, train_y), (test_x, test_y), names)
    refuse_similar(where, "class", names)
    refuse_similar(where, "client", owner_names)
    if owners is not None:
        check_owners(where, owners, len(train_y), owner_names)
    if groups is not None:
        check_groups(where, groups, (len(train_y), len(test_y)))
        more["groups"], more["test_groups"] = (_tensor(part) for part in groups)
    return Dataset.of(
        _tensor(train_x),
        _tensor(train_y),
        _tensor(test_x),
        _tensor(test_y),
        tuple(names),
        owners=None if owners is None else _tensor(owners),
        owner_names=tuple(owner_names),
        **more,
    )


def check_groups(where: object, groups: tuple[Ints, Ints], images: tuple[int, int]) -> None:
    """Check the group of every training and every test image."""
    for part, found, number in zip(("training", "test"), groups, images, strict=True):
        if len(found) != number:
            raise CafedclError(
                f"{where}: {number} {part} images but {len(found)} of them have a group"
            )
    both = np.intersect1d(*groups)
    if len(both):
        raise CafedclError(
            f"{where}: group {both[0]} has images in training and in test; move them to one side"
        )


def check_parts(
    where: object, train: tuple[Array, Ints], test: tuple[Array, Ints], names: Sequence[str]
) -> None:
    """Check images (N, channels, height, width), their labels and the classes' names."""
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise CafedclError(
            f"{where}: two classes are named '{twice[0]}'; give every class its own name"
        )
    train_x, train_y = train
    test_x, test_y = test
    for part, x, y in (("training", train_x, train_y), ("test", test_x, test_y)):
        if len(x) != len(y):
            raise CafedclError(f"{where}: {len(x)} {part} images but {len(y)} labels")
        if not len(x):
            raise CafedclError(f"{where}: there are no {part} images")
        wrong = np.flatnonzero((y < 0) | (y >= len(names)))
        if len(wrong):
            raise CafedclError(
                f"{where}: label {y[wrong[0]]} of {part} image {wrong[0]} is out of range; "
                f"labels of {len(names)} classes are 0 to {len(names) - 1}"
            )
    if train_x.shape[1:] != test_x.shape[1:]:
        shapes = " and ".join("×".join(map(str, x.shape[1:])) for x in (train_x, test_x))
        raise CafedclError(f"{where}: training and test images differ in shape, {shapes}")
    empty = np.flatnonzero(np.bincount(train_y, minlength=len(names)) == 0)
    if len(empty):
        # If classes have their own names, the first one may be empty for any reason.
        from_one = names[empty[0]] == "0" and np.concatenate([train_y, test_y]).min() == 1
        hint = "; labels count from 0, so take 1 from each if yours count from 1"
        raise CafedclError(
            f"{where}: class '{names[empty[0]]}' has no training image; "
            "add some or leave the class out" + (hint if from_one else "")
        )


def check_owners(where: object, owners: Ints, images: int, owner_names: Sequence[str]) -> None:
    """Check the natural client of every training image."""
    if len(owners) != images:
        raise CafedclError(
            f"{where}: {images} training images but {len(owners)} of them have a client"
        )
    if owners.min() < 0 or owners.max() >= len(owner_names):
        raise CafedclError(
            f"{where}: clients are numbered {owners.min()} to {owners.max()}, but "
            f"{len(owner_names)} are named"
        )
    idle = np.flatnonzero(np.bincount(owners, minlength=len(owner_names)) == 0)
    if len(idle):
        raise CafedclError(
            f"{where}: client '{owner_names[idle[0]]}' has no training image; "
            "add some or leave the client out"
        )


def check_dataset(where: object, data: Dataset) -> None:
    """Check a data set that foreign code made, as any other is checked."""
    images = (data.train_x, data.test_x)
    labels = (data.train_y, data.test_y, data.owners)
    numbered = (*labels, data.groups, data.test_groups)
    if not all(isinstance(value, Tensor) for value in (*images, *numbered, data.mean, data.std)):
        raise CafedclError(
            f"{where}: its images, labels, owners, groups, mean and std must be tensors"
        )
    for x in images:
        if x.dtype != torch.uint8 or x.dim() != 4 or not all(x.shape[1:]):
            raise CafedclError(
                f"{where}: its images are {x.dtype} of shape {tuple(x.shape)}; "
                "expected uint8 of shape (N, channels, height, width)"
            )
        if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            raise CafedclError(
                f"{where}: its images have the shape {tuple(x.shape)}, with the channels last, it "
                "seems; expected (N, channels, height, width): use permute(0, 3, 1, 2)"
            )
    for y in numbered:
        if y.dtype != torch.int64 or y.dim() != 1:
            raise CafedclError(
                f"{where}: its labels, owners or groups are {y.dtype} of shape {tuple(y.shape)}; "
                "expected int64, one number per image"
            )
    if not isinstance(data.names, tuple) or not all(isinstance(name, str) for name in data.names):
        raise CafedclError(f"{where}: its class names must be a tuple of texts")
    train_x, test_x = (x.cpu().numpy() for x in images)
    train_y, test_y, owners = (y.cpu().numpy() for y in labels)
    check_parts(where, (train_x, train_y), (test_x, test_y), data.names)
    moments = torch.cat([data.mean.flatten(), data.std.flatten()])
    if not (moments.isfinite().all() and (data.std > 0).all()):
        raise CafedclError(f"{where}: its mean and std must be finite, and std greater than 0")
    if len(data.groups) or len(data.test_groups):
        groups = (data.groups.cpu().numpy(), data.test_groups.cpu().numpy())
        check_groups(where, groups, (len(train_y), len(test_y)))
    if len(owners):
        numbers = range(max(0, int(owners.max())) + 1)
        check_owners(where, owners, len(train_y), data.owner_names or [str(i) for i in numbers])


def _tensor(array: Array) -> Tensor:
    # Arrays over a file's bytes are read-only, which a tensor must not be.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def nchw(x: Bytes, where: object) -> Bytes:
    """Return images as (N, channels, height, width); a last axis of 1 or 3 is the channels."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in (1, 3):
        shape = "×".join(map(str, x.shape)) or "(), a single number"
        raise CafedclError(
            f"{where}: images of shape {shape}; expected N×height×width, with 1 or 3 channels"
        )
    if 0 in x.shape[1:]:
        raise CafedclError(f"{where}: the images have no pixels")
    # The stride of a single channel has no meaning, but PyTorch chooses kernels by it, and so the
    # last bits of scores. Flattening gives the usual stride.
    return np.ascontiguousarray(x).reshape(-1).reshape(x.shape)


def whole_labels(y: Array, where: object) -> Ints:
    """Return labels as int64; one column is flattened, and several labels per image are refused."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise CafedclError(
            f"{where}: labels of shape {y.shape}; one whole number per image is expected, as "
            f"y.argmax(1) makes of one-hot labels ({SCOPE})"
        )
    if y.dtype.kind not in "iufb":
        raise CafedclError(
            f"{where}: labels are of type {y.dtype}; one whole number per image is expected"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise CafedclError(f"{where}: the label of image {np.flatnonzero(np.isnan(y))[0]} is NaN")
    if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
        raise CafedclError(
            f"{where}: labels are fractions; one whole number per image is expected ({SCOPE})"
        )
    # Larger numbers and infinities would turn into other labels.
    wrong = np.flatnonzero(np.abs(y.astype(np.float64)) > MOST_CLASSES)
    if len(wrong):
        raise CafedclError(
            f"{where}: label {y[wrong[0]]} is out of range; labels count the classes from 0"
        )
    return y.astype(np.int64)


def part_of(counts: Ints, share: float) -> Ints:
    """Return how many images of every class to hold out: the share, at least one, never all."""
    return np.clip(np.round(share * counts).astype(np.int64), 1, np.maximum(counts - 1, 0))


def choose_test(labels: Ints, owners: Ints | None = None, groups: Ints = NO_GROUPS) -> Mask:
    """Choose a fifth of the images for testing, stratified by class and natural client.

    The choice is the same every time. Every client and every class keeps an image for training, and
    every class with at least two images has one for testing if possible. With groups, a fifth of
    the groups is chosen.
    """
    if len(groups):
        return _choose_test_groups(labels, owners, groups)
    rng = stream(0, "test set")
    held = np.zeros(len(labels), dtype=np.bool_)
    if owners is None:
        held[draw_by_class(labels, part_of(np.bincount(labels), TEST_SHARE), rng)] = True
        return held
    # A client may have few images of a class, so rounding every share would be far off. Instead
    # images are sorted by (client, class), shuffled within each, and every fifth is taken.
    order = rng.permutation(len(labels))
    order = order[np.lexsort((labels[order], owners[order]))]
    of_class = np.bincount(labels)
    of_client = np.bincount(owners)
    due = 0.0
    for index in order:
        due += TEST_SHARE
        label = labels[index]
        owner = owners[index]
        # The small number absorbs rounding errors of the sum.
        if due >= 1 - 1e-9 and of_class[label] > 1 and of_client[owner] > 1:
            held[index] = True
            due -= 1
            of_class[label] -= 1
            of_client[owner] -= 1
    # Every fifth image may include none of a rare class. Without a test image, nobody would know
    # how well it is recognised.
    for label in np.flatnonzero(np.bincount(labels[held], minlength=len(of_class)) == 0):
        members = order[labels[order] == label]
        members = members[of_client[owners[members]] > 1]
        if of_class[label] > 1 and len(members):
            held[members[0]] = True
            of_client[owners[members[0]]] -= 1
    return held


def _choose_test_groups(labels: Ints, owners: Ints | None, groups: Ints) -> Mask:
    unit, unit_labels = to_units(labels, groups)
    if owners is None:
        held = without_last_ones(choose_test(unit_labels), unit, labels)
    else:
        held = choose_test(unit_labels, unit_owners(unit, owners))
        held = without_last_ones(held, unit, labels)
        held = without_last_ones(held, unit, owners)
    chosen: Mask = held[unit]
    return chosen
