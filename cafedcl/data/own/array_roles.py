"""Clients and groups of images in arrays: ``hospital_train``, ``patient``, ``source_test`` and so
on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cafedcl.config.data_options import NONE, DataOptions
from cafedcl.core.arrays import Array, Ints
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.data.alike import alike_groups
from cafedcl.data.files.formats import UNSPLIT_NAMES, names_of_side
from cafedcl.data.groups import broken_group
from cafedcl.data.own.columns import ADVICE, TABLE_WORDS, role_of_lookalike
from cafedcl.data.own.items import sort_names

SIDE_FORMS = ("{word}_{side}", "{side}_{word}")


@dataclass(frozen=True)
class ArrayRoles:
    """The clients and groups of the images, as texts."""

    clients: list[str] | None = None
    client_kind: str = "natural"
    train_groups: list[str] | None = None
    test_groups: list[str] | None = None
    group_kind: str = ""
    remarks: list[str] = field(default_factory=list)

    def owners(self, path: Path, images: int) -> tuple[Ints | None, list[str]]:
        """Return the client of every training image by number, and the clients' names."""
        if self.clients is None:
            return None, []
        _check_length(path, "clients", len(self.clients), images)
        names = sort_names(set(self.clients))
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[name] for name in self.clients], dtype=np.int64), names

    def groups(self, path: Path, train: int, test: int) -> tuple[Ints, Ints] | None:
        """Return the groups of training and of test images by number; None without groups."""
        if self.train_groups is None:
            return None
        _check_length(path, f"values of {self.group_kind}", len(self.train_groups), train)
        tested = self.test_groups or []
        _check_length(path, f"values of {self.group_kind} in test", len(tested), test)
        _, numbers = np.unique([*self.train_groups, *tested], return_inverse=True)
        side = (np.arange(len(numbers)) >= train).astype(np.int64)
        if broken_group(numbers, side) is not None:
            raise CafedclError(
                f"{path}: a {self.group_kind} has images in training and in test; move them to one "
                "side, or set data.group = none"
            )
        return numbers[:train], numbers[train:]


def find_array_roles(
    path: Path, arrays: Mapping[str, Array], has_test: bool, options: DataOptions
) -> ArrayRoles:
    """Return the clients and groups among the arrays of an ``.npz`` file."""
    used: set[str] = set()

    def values(word: str, side: str) -> list[str] | None:
        names = [form.format(word=word, side=side) for form in SIDE_FORMS]
        if side == "train":
            # x and y beside x_test and y_test have patient beside patient_test.
            names.append(word)
        name = next((name for name in names if name in arrays), None)
        if name is None:
            return None
        used.update((name, f"{word}s"))
        return _texts(path, name, arrays[name], arrays.get(f"{word}s"))

    def first(role: str, chosen: str) -> tuple[str, list[str] | None]:
        if chosen == NONE:
            return "", None
        words = (chosen.lower(),) if chosen else TABLE_WORDS[role]
        for word in words:
            found = values(word, "train")
            if found is not None:
                return word, found
        if chosen:
            raise CafedclError(
                f"{path}: data.{role} = {chosen}: there is no array {chosen} or {chosen}_train; "
                f"{nearest(chosen, list(arrays))}"
            )
        return "", None

    _, clients = first("client", options.client)
    kind = "natural"
    if clients is None and options.client != NONE:
        _, clients = first("source", "")
        kind = "source"
    word, train_groups = first("group", options.group)
    test_groups = values(word, "test") if word and has_test else None
    # The clients of test images, and what is known about validation images, are recognised but not
    # used.
    for each in (*TABLE_WORDS["client"], *TABLE_WORDS["source"]):
        used.update(form.format(word=each, side="test") for form in SIDE_FORMS)
    for each in (*TABLE_WORDS["client"], *TABLE_WORDS["source"], *TABLE_WORDS["group"]):
        used.update(form.format(word=each, side="val") for form in SIDE_FORMS)
    remarks = _remarks(path, arrays, used)
    remarks += alike_groups(path, word, [*(train_groups or []), *(test_groups or [])])
    if kind == "source" and clients is not None:
        remarks.append(f"{path}: --split source makes the sources of the images clients")
    return ArrayRoles(
        clients, kind if clients else "natural", train_groups, test_groups, word, remarks
    )


def _texts(path: Path, name: str, array: Array, names: Array | None) -> list[str]:
    """Return an array's values as texts; numbers may index an array of names."""
    if array.ndim != 1:
        raise CafedclError(f"{path}: {name} has shape {array.shape}; one value per image is needed")
    if array.dtype.kind == "f" and (array == np.trunc(array)).all() and (abs(array) < 2**53).all():
        # The other side may have whole numbers, and 7.0 is the patient 7.
        array = array.astype(np.int64)
    if names is not None and array.dtype.kind in "iu" and names.ndim == 1:
        if len(array) and not 0 <= array.min() <= array.max() < len(names):
            raise CafedclError(f"{path}: {name} counts beyond its {len(names)} names")
        texts = [str(names[i]) for i in array]
    elif array.dtype.kind == "S":
        texts = [value.decode("utf-8", "replace") for value in array.tolist()]
    else:
        texts = [str(value) for value in array.tolist()]
    no_number = "nan" if array.dtype.kind == "f" else ""
    gaps = [row for row, text in enumerate(texts) if text.strip() in ("", no_number)]
    if gaps:
        raise CafedclError(f"{path}: image {gaps[0]} has no {name}; fill it in or remove the image")
    return texts


def _check_length(path: Path, what: str, found: int, images: int) -> None:
    if found != images:
        raise CafedclError(f"{path}: {images} images but {found} {what}")


def _remarks(path: Path, arrays: Mapping[str, Array], used: set[str]) -> list[str]:
    known = {
        "classes",
        *(names_of_side(arrays, "train", UNSPLIT_NAMES) or ()),
        *(names_of_side(arrays, "test") or ()),
        *(names_of_side(arrays, "val") or ()),
    }
    unused = []
    for name in arrays:
        if name in known or name in used:
            continue
        role = role_of_lookalike(name)
        word = name.removesuffix("_train").removesuffix("_test")
        unused.append(
            f"{name} ({ADVICE[role].format(word)})" if role in ("client", "group") else name
        )
    if not unused:
        return []
    plural = "arrays are" if len(unused) > 1 else "array is"
    return [f"{path}: {len(unused)} {plural} not used: {', '.join(unused)}"]
