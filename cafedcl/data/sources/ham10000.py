"""HAM10000, dermatoscopic images of skin lesions: official table and images, split by lesion."""

import csv
import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import numpy as np

from cafedcl.config.sections import DataOptions
from cafedcl.core.arrays import Ints, Mask
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset, choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.formats import AGAIN, read_bytes, zip_names
from cafedcl.data.images import Opener
from cafedcl.data.sources.base import FileForm, Source
from cafedcl.data.sources.image_files import decode_all, zip_opener

SIZE = 32
TABLE = "HAM10000_metadata.csv"
PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")


def _read_lesions(files: Sequence[Path], options: DataOptions) -> Dataset:
    table = files[0]
    parts = files[1:]
    rows = _table_rows(table)
    names = sorted({row["dx"] for row in rows})
    labels = np.array([names.index(row["dx"]) for row in rows], dtype=np.int64)
    held = _choose_test_lesions(table, rows, labels)
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
    return checked_dataset(table, train, test, names)


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


def _choose_test_lesions(table: Path, rows: Sequence[dict[str, str]], labels: Ints) -> Mask:
    """Choose a fifth of the lesions for testing, stratified by diagnosis.

    All images of a lesion are on the same side, so that no test image has a twin in training.
    """
    lesions = sorted({row["lesion_id"] for row in rows})
    number = {lesion: i for i, lesion in enumerate(lesions)}
    lesion = np.array([number[row["lesion_id"]] for row in rows])
    diagnosis = np.zeros(len(lesions), dtype=np.int64)
    diagnosis[lesion] = labels
    if not np.array_equal(diagnosis[lesion], labels):
        raise CafedclError(f"{table}: a lesion has two diagnoses; {AGAIN}")
    held: Mask = choose_test(diagnosis)[lesion]
    return held


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
        "10,015 split 80/20 by lesion",
        tuple(
            FileForm((TABLE, *(part + ending for part in PARTS)), _read_lesions, resizes=True)
            for ending in ("", ".zip")
        ),
        origin="https://doi.org/10.7910/DVN/DBW86T",
    ),
)
