"""HAM10000, dermatoscopic images of skin lesions: official table and images, split by lesion."""

import csv
import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import numpy as np

from cafedcl.config.data_options import DataOptions
from cafedcl.core.arrays import Ints
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset, choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.formats import AGAIN, read_bytes, zip_names
from cafedcl.data.images import Opener
from cafedcl.data.sources.base import FileForm, Source
from cafedcl.data.sources.image_files import decode_all, zip_opener

SIZE = 32
TABLE = "HAM10000_metadata.csv"
SOURCE = "dataset"
"""The table's column of the places that images come from."""
PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")


def _read_lesions(files: Sequence[Path], options: DataOptions) -> Dataset:
    table = files[0]
    parts = files[1:]
    rows = _table_rows(table)
    names = sorted({row["dx"] for row in rows})
    labels = np.array([names.index(row["dx"]) for row in rows], dtype=np.int64)
    lesion = _lesions(table, rows, labels)
    held = choose_test(labels, groups=lesion)
    owners, sources = _sources(rows, lesion)
    # The zip archives stay open until all images are decoded.
    with ExitStack() as stack:
        openers = _image_openers(parts, stack)
        ids = [row["image_id"] for row in rows]
        missing = [name for name in ids if name not in openers]
        if missing:
            raise CafedclError(
                f"{table}: {len(missing)} images are missing in {parts[0].name} and "
                f"{parts[1].name}, first {missing[0]}.jpg; get both again"
            )
        pixels = decode_all(
            table.parent, ids, [openers[name] for name in ids], options.size or SIZE, crop=True
        )
    train = (pixels[~held], labels[~held])
    test = (pixels[held], labels[held])
    return checked_dataset(
        table,
        train,
        test,
        names,
        None if owners is None else owners[~held],
        sources,
        (lesion[~held], lesion[held]),
        owner_kind="source",
        group_kind="lesion",
    )


def _table_rows(table: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(read_bytes(table).decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error):
        rows = []
    if not rows or any(not row.get(key) for row in rows for key in ("image_id", "lesion_id", "dx")):
        raise CafedclError(
            f"{table}: not HAM10000's table with image_id, lesion_id and dx; {AGAIN}"
        )
    return rows


def _lesions(table: Path, rows: Sequence[dict[str, str]], labels: Ints) -> Ints:
    """Return the lesion of every image by number.

    All images of a lesion are on one side of every split, so that no test image has a twin in
    training.
    """
    _, lesion = np.unique([row["lesion_id"] for row in rows], return_inverse=True)
    diagnosis = np.zeros(lesion.max() + 1, dtype=np.int64)
    diagnosis[lesion] = labels
    if not np.array_equal(diagnosis[lesion], labels):
        raise CafedclError(f"{table}: a lesion has two diagnoses; {AGAIN}")
    return lesion


def _sources(rows: Sequence[dict[str, str]], lesion: Ints) -> tuple[Ints | None, list[str]]:
    """Return the place that every image comes from, and the places; none in an old table.

    A few lesions have images from two places: the more frequent one is used for all of them.
    """
    if not all(row.get(SOURCE) for row in rows):
        return None, []
    names = sorted({row[SOURCE] for row in rows})
    place = np.array([names.index(row[SOURCE]) for row in rows])
    # One bincount over (lesion, place) pairs, numbered row by row.
    pairs = np.bincount(lesion * len(names) + place, minlength=(lesion.max() + 1) * len(names))
    return pairs.reshape(-1, len(names)).argmax(1)[lesion], names


def _image_openers(parts: Sequence[Path], stack: ExitStack) -> dict[str, Opener]:
    """Return how to open every image, by its id."""
    openers: dict[str, Opener] = {}
    for part in parts:
        if part.is_dir():
            openers |= {path.stem: path for path in part.glob("*.jpg")}
        else:
            names = zip_names(part)
            archive = stack.enter_context(zipfile.ZipFile(part))
            openers |= {
                PurePosixPath(name).stem: zip_opener(archive, name)
                for name in names
                if name.endswith(".jpg")
            }
    return openers


SOURCES = (
    Source(
        "ham10000",
        f"skin lesions, colour, middle square resized to {SIZE}×{SIZE}, 7 classes, "
        "10,015 split 80/20 by lesion; from four places (--split source)",
        tuple(
            FileForm((TABLE, *(part + ending for part in PARTS)), _read_lesions, resizes=True)
            for ending in ("", ".zip")
        ),
        origin="https://doi.org/10.7910/DVN/DBW86T",
    ),
)
