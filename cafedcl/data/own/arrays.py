"""Your own arrays: ``.npz`` with images and labels, or two ``.npy`` files."""

from pathlib import Path

import numpy as np

from cafedcl.config.data_options import DataOptions
from cafedcl.core.arrays import Array, Bytes, Ints
from cafedcl.core.errors import CafedclError
from cafedcl.data.cache import Remarks
from cafedcl.data.checked import checked_dataset, choose_test, nchw, whole_labels
from cafedcl.data.dataset import Dataset
from cafedcl.data.duplicates import duplicates_remark
from cafedcl.data.files.formats import (
    NPZ_NAMES,
    UNSPLIT_NAMES,
    ImagesAndLabels,
    images_and_labels,
    read_npy,
    read_npz,
)
from cafedcl.data.groups import NO_GROUPS
from cafedcl.data.own.array_roles import ArrayRoles, find_array_roles
from cafedcl.data.own.items import sort_names
from cafedcl.data.pixels import to_bytes

EXPECTED = (
    "expected x_train, y_train, x_test, y_test, or train_images, train_labels and so on, or x and y"
)


def read_npz_set(path: Path, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Return the data set of an ``.npz`` file, with remarks on images that were left out."""
    given = read_npz(path)
    arrays = {name.lower(): array for name, array in given.items()}
    if len(arrays) < len(given):
        raise CafedclError(
            f"{path}: two of its arrays differ only by case ({', '.join(given)}); remove one"
        )
    _refuse_halves(path, arrays)
    remarks = Remarks()
    train = images_and_labels(arrays, "train", UNSPLIT_NAMES)
    test = images_and_labels(arrays, "test")
    validation = images_and_labels(arrays, "val")
    if test is None:
        test = validation
    elif validation is not None:
        remarks.append(
            f"{path}: {len(validation[0])} validation images are left out; "
            "each client holds out its own"
        )
    if train is None:
        raise CafedclError(f"{path}: it has {', '.join(arrays) or 'no arrays'}; {EXPECTED}")
    has_test = test is not None
    roles = find_array_roles(path, arrays, has_test, options)
    data, more = _to_dataset(path, train, test, arrays.get("classes"), roles, options)
    return data, [*remarks, *roles.remarks, *more]


def _refuse_halves(path: Path, arrays: dict[str, Array]) -> None:
    """Refuse images without labels and labels without images, which would be ignored."""
    pairs = [
        (images.format(side), labels.format(side))
        for images, labels in NPZ_NAMES
        for side in ("train", "test", "val")
    ]
    for images, labels in (*pairs, *UNSPLIT_NAMES):
        if (images in arrays) != (labels in arrays):
            present, absent = (images, labels) if images in arrays else (labels, images)
            raise CafedclError(f"{path}: it has {present} but no {absent}; {EXPECTED}")


def read_npy_set(path: Path, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Return the data set of a folder's ``images.npy`` and ``labels.npy``, or of one ``.npy`` file.

    Labels of a single file are in ``NAME_labels.npy``, ``labels.npy`` or ``y.npy`` beside it.
    """
    if path.is_dir():
        images = path / "images.npy"
        labels = path / "labels.npy"
    else:
        images = path
        choices = [
            path.with_name(name) for name in (f"{path.stem}_labels.npy", "labels.npy", "y.npy")
        ]
        labels = next(
            (choice for choice in choices if choice.exists() and choice != path), choices[0]
        )
    if not labels.exists():
        raise CafedclError(f"{images}: its labels are missing; put them into {labels}")
    train = (read_npy(images), read_npy(labels))
    return _to_dataset(images, train, None, None, ArrayRoles(), options)


def _to_dataset(
    path: Path,
    train: ImagesAndLabels,
    test: ImagesAndLabels | None,
    classes: Array | None,
    roles: ArrayRoles,
    options: DataOptions,
) -> tuple[Dataset, Remarks]:
    given_test_y = None if test is None else test[1]
    train_y, test_y, names = _number_labels(path, train[1], given_test_y, classes)
    parts = {"training": train[0]}
    if test is not None:
        parts["test"] = test[0]
    pixels = to_bytes(parts, path, options.limits)
    train_x = _channels_first(pixels["training"], path)
    if len(train_x) != len(train_y):
        raise CafedclError(f"{path}: {len(train_x)} training images but {len(train_y)} labels")
    owners, owner_names = roles.owners(path, len(train_y))
    groups = roles.groups(path, len(train_y), len(test_y))
    rows = np.arange(len(train_y))
    if test is None:
        held = choose_test(train_y, owners, NO_GROUPS if groups is None else groups[0])
        test_x = train_x[held]
        test_y = train_y[held]
        train_x = train_x[~held]
        train_y = train_y[~held]
        if owners is not None:
            owners = owners[~held]
        if groups is not None:
            groups = (groups[0][~held], groups[0][held])
        rows = np.concatenate([rows[~held], rows[held]])
    else:
        test_x = _channels_first(pixels["test"], path)
        rows = np.concatenate([rows, np.arange(len(test_y))])
    if options.size and train_x.shape[2:] != (options.size, options.size):
        from cafedcl.data.images import resize_images

        try:
            train_x = resize_images(train_x, options.size)
            test_x = resize_images(test_x, options.size)
        except MemoryError:
            raise CafedclError(
                f"{path}: {len(train_x) + len(test_x)} images of {options.size}×{options.size} "
                "pixels do not fit into memory; set a smaller data.size"
            ) from None
    # Channels last, which is never mistaken for another layout, however small the images are.
    data = checked_dataset(
        path,
        (train_x.transpose(0, 2, 3, 1), train_y),
        (test_x.transpose(0, 2, 3, 1), test_y),
        names,
        owners,
        owner_names,
        groups,
        owner_kind=roles.client_kind,
        group_kind=roles.group_kind,
        window=options.limits,
    )
    numbers = rows.tolist()
    return data, duplicates_remark(
        path,
        train_x,
        test_x,
        lambda row: f"image {numbers[row]}",
        lambda row: f"image {numbers[len(train_y) + row]}",
    )


def _channels_first(x: Bytes, path: Path) -> Bytes:
    """Return images as (N, channels, height, width); refuse those whose channels may be either."""
    if x.ndim == 4 and {x.shape[1], x.shape[3]} <= {1, 3} and x.shape[1:] != (1, 1, 1):
        shape = "×".join(map(str, x.shape))
        raise CafedclError(
            f"{path}: images of shape {shape}, whose channels could be the second or the last "
            "axis; save grey images as N×height×width, and colour images larger than 3 pixels"
        )
    return nchw(x, path)


def _number_labels(
    path: Path, train: Array, test: Array | None, classes: Array | None
) -> tuple[Ints, Ints, list[str]]:
    """Return training and test labels as whole numbers from 0, and the class names."""
    for labels in (train, test):
        if labels is not None and labels.ndim == 0:
            raise CafedclError(f"{path}: the labels are a single value; one per image is expected")
    if not len(train):
        raise CafedclError(f"{path}: there are no training images")
    both = [train, train[:0] if test is None else test]
    kinds = {labels.dtype.kind for labels in both}
    if kinds & set("US"):
        if not kinds <= set("US"):
            raise CafedclError(
                f"{path}: labels of training and test images are of types {both[0].dtype} and "
                f"{both[1].dtype}; both must be texts or both whole numbers"
            )
        texts = [_texts(path, labels, "label") for labels in both]
        used = sort_names(set(texts[0]) | set(texts[1]))
        names = used if classes is None else _texts(path, classes, "class name")
        number = {name: i for i, name in enumerate(names)}
        unknown = [name for name in used if name not in number]
        if unknown:
            raise CafedclError(f"{path}: the label '{unknown[0]}' is not in the array classes")
        first, second = (
            np.array([number[name] for name in part], dtype=np.int64) for part in texts
        )
        return first, second, names
    first, second = (whole_labels(y, path) for y in both)
    everything = np.concatenate([first, second])
    low = int(everything.min())
    high = int(everything.max())
    if low < 0 or high >= len(first):
        # Every class needs a training image, so there cannot be more classes than training images.
        wrong = low if low < 0 else high
        raise CafedclError(
            f"{path}: label {wrong} is out of range; labels count the classes from 0"
        )
    if classes is None:
        return first, second, [str(c) for c in range(high + 1)]
    return first, second, _texts(path, classes, "class name")


def _texts(path: Path, array: Array, what: str) -> list[str]:
    """Return the texts of an array, which may be UTF-8 bytes or numbers, as a flat list."""
    if array.ndim == 0:
        raise CafedclError(f"{path}: a list of {what}s is expected, not a single one")
    if array.dtype.kind != "S":
        return [str(value) for value in array.ravel().tolist()]
    try:
        return [value.decode("utf-8") for value in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise CafedclError(
            f"{path}: the {what} {error.object!r} is not UTF-8 text; save texts instead of bytes"
        ) from None
