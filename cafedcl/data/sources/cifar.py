"""CIFAR-10 and CIFAR-100: pickled batches of 32×32 colour images, as an archive or unpacked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cafedcl.config.data_options import DataOptions
from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote
from cafedcl.data.files.formats import AGAIN, read_bytes, tar_members
from cafedcl.data.files.pickles import unpickle
from cafedcl.data.sources.base import FileForm, Reader, Source

ADDRESS = "https://www.cs.toronto.edu/~kriz"


def _source(
    name: str,
    classes: int,
    md5: str,
    folder: str,
    files: dict[str, list[str]],
    keys: tuple[str, str],
) -> Source:
    """Return one of the two sets; ``keys`` are the pickles' keys of labels and class names."""
    archive = f"{name.replace('cifar', 'cifar-')}-python.tar.gz"
    members = [*files["train"], *files["test"], *files["meta"]]

    def parse(where: object, contents: list[bytes]) -> Dataset:
        batches = [
            unpickle(data, f"{where}, {member}")
            for data, member in zip(contents, members, strict=True)
        ]
        split = len(files["train"])
        train = _join(f"{where}", batches[:split], keys[0])
        test = _join(f"{where}", batches[split:-1], keys[0])
        names = batches[-1].get(keys[1])
        if not isinstance(names, list) or len(names) != classes:
            raise CafedclError(f"{where}: {members[-1]} does not name {classes} classes; {AGAIN}")
        return checked_dataset(where, train, test, [str(name) for name in names])

    def read_archive(paths: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        inside = [f"{folder}/{member}" for member in members]
        found = tar_members(paths[0], inside)
        return parse(paths[0], [found.pop(name) for name in inside])

    def read_folder(paths: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        return parse(paths[0].parent, [read_bytes(path) for path in paths])

    # Keras 3 unpacks into a folder named -target.
    folders = (folder, f"{folder}-target/{folder}")
    return Source(
        name,
        f"32×32 colour photographs, {classes} classes, 50,000 + 10,000",
        (
            FileForm((archive,), read_archive),
            *_folder_forms(folders, members, read_folder),
        ),
        (Remote(f"{ADDRESS}/{archive}", md5),),
    )


def _folder_forms(folders: Sequence[str], members: Sequence[str], read: Reader) -> list[FileForm]:
    return [FileForm(tuple(f"{folder}/{member}" for member in members), read) for folder in folders]


def _join(where: str, batches: list[dict[str, Any]], key: str) -> tuple[Array, Array]:
    """Return the images and labels of several batches."""
    images = []
    labels = []
    for batch in batches:
        data = batch.get("data")
        label = batch.get(key)
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
            raise CafedclError(f"{where}: a batch holds no rows of 3,072 bytes; {AGAIN}")
        if not isinstance(label, list) or not all(isinstance(item, int) for item in label):
            raise CafedclError(f"{where}: a batch holds no list of {key}; {AGAIN}")
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(np.array(label, dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels)


SOURCES = (
    _source(
        "cifar10",
        10,
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        {
            "train": [f"data_batch_{i}" for i in range(1, 6)],
            "test": ["test_batch"],
            "meta": ["batches.meta"],
        },
        ("labels", "label_names"),
    ),
    _source(
        "cifar100",
        100,
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        {"train": ["train"], "test": ["test"], "meta": ["meta"]},
        ("fine_labels", "fine_label_names"),
    ),
)
