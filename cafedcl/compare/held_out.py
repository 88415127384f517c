"""Held-out images, by which options are chosen so that the test set is not used."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cafedcl.compare.plan import Tables
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, write_atomically
from cafedcl.task.resolve import resolve

HELD_OUT = "held-out.npz"


def write_held_out(out: Path, tables: Tables, share: float, swept: Iterable[str] = ()) -> str:
    """Write a data set whose test images are held out of the training images of each class.

    Where images have clients of their own, they are held out of every client's images. The same
    images are held out for every seed and every search. Returns a description of them. ``swept``
    are the options that differ between the points of a sweep.
    """
    from cafedcl.core.rng import draw_by_class, stream
    from cafedcl.data import load_dataset
    from cafedcl.data.checked import part_of
    from cafedcl.data.shards import choose_held_out

    for name in swept:
        if name.startswith("data."):
            raise CafedclError(
                f"{name}: it cannot be swept on held-out images, which are the same for all "
                "points; score on the test set with --on test"
            )
    path = out / HELD_OUT
    config = resolve(tables)
    if not path.is_file():
        data = load_dataset(config.data)
        if config.split.kind == "file":
            raise CafedclError(
                "split.kind = file: the file names images of the whole training set, so it cannot "
                "be combined with --hold-out; choose another --split, or score on the test set "
                "with --on test"
            )
        labels = data.train_y.numpy()
        # A fixed stream, not the seed of the sweep: all searches choose by the same images.
        rng = stream(0, "held out for tuning")
        held = np.zeros(len(labels), dtype=np.bool_)
        groups = data.groups.numpy()
        owners = data.owners.numpy()
        if len(groups) or len(owners):
            among = owners if len(owners) else np.zeros_like(labels)
            held = choose_held_out(labels, among, share, rng, groups)
        else:
            held[draw_by_class(labels, part_of(np.bincount(labels), share), rng)] = True
        if not held.any():
            raise CafedclError(
                f"{config.data.name}: there are too few training images to hold some out; raise "
                "--hold-out, or score on the test set with --on test"
            )
        images = data.train_x.numpy()
        content = io.BytesIO()
        arrays: dict[str, Any] = {
            "x_train": images[~held],
            "y_train": labels[~held],
            "x_test": images[held],
            "y_test": labels[held],
            "classes": np.array(data.names),
        }
        if len(groups):
            arrays |= {"group_train": groups[~held], "group_test": groups[held]}
        if len(owners):
            word = "client" if data.owner_kind == "natural" else data.owner_kind
            arrays |= {f"{word}_train": owners[~held], f"{word}s": np.array(data.owner_names)}
        np.savez(content, **arrays)
        with explained(out):
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getvalue())
    with np.load(path) as stored:
        number = len(stored["y_test"])
    return (
        f"{number} images held out of the training set of {config.data.name}; "
        "the test set was not used"
    )
