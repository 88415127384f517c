"""HAM10000, dermatoscopic images of skin lesions: the official table and image folders, split by
lesion.
"""

import csv
import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import Ints, checked, choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.formats import AGAIN, read_bytes, zip_names
from cafedcl.data.images import Opener
from cafedcl.data.sources.base import Form, Source
from cafedcl.data.sources.gtsrb import decode_whole, member

SIZE = 32
TABLE = "HAM10000_metadata.csv"
PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")


def _read(files: Sequence[Path], options: DataOptions) -> Dataset:
    table = files[0]
    parts = files[1:]
    rows = _rows(table)
    names = sorted({row["dx"] for row in rows})
    labels = np.array([names.index(row["dx"]) for row in rows], dtype=np.int64)
    held = _held_out(table, rows, labels)
    with ExitStack() as stack:
        images = _images(parts, stack)
        ids = [row["image_id"] for row in rows]
        missing = [name for name in ids if name not in images]
        if missing:
            raise CafedclError(
                f"{table}: {missing[0]}.jpg and {len(missing) - 1} more are not in {parts[0].name} or {parts[1].name}"
            )
        pixels = decode_whole(
            table.parent, ids, [images[name] for name in ids], options.size or SIZE, crop=True
        )
    return checked(table, (pixels[~held], labels[~held]), (pixels[held], labels[held]), names)


def _rows(table: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(read_bytes(table).decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error):
        rows = []
    if not rows or any(not row.get(key) for row in rows for key in ("image_id", "lesion_id", "dx")):
        raise CafedclError(
            f"{table}: not HAM10000's table with image_id, lesion_id and dx; {AGAIN}"
        )
    return rows


def _held_out(table: Path, rows: Sequence[dict[str, str]], labels: Ints) -> npt.NDArray[np.bool_]:
    """Choose a fifth of the lesions for testing, stratified by diagnosis: no lesion has images on
    both sides.
    """
    lesions = sorted({row["lesion_id"] for row in rows})
    number = {lesion: i for i, lesion in enumerate(lesions)}
    lesion = np.array([number[row["lesion_id"]] for row in rows])
    diagnosis = np.zeros(len(lesions), dtype=np.int64)
    diagnosis[lesion] = labels
    if not np.array_equal(diagnosis[lesion], labels):
        raise CafedclError(f"{table}: a lesion has two diagnoses; {AGAIN}")
    held: npt.NDArray[np.bool_] = choose_test(diagnosis)[lesion]
    return held


def _images(parts: Sequence[Path], stack: ExitStack) -> dict[str, Opener]:
    images: dict[str, Opener] = {}
    for part in parts:
        if part.is_dir():
            images |= {path.stem: path for path in part.glob("*.jpg")}
        else:
            names = zip_names(part)
            archive = stack.enter_context(zipfile.ZipFile(part))
            images |= {
                PurePosixPath(name).stem: member(archive, name)
                for name in names
                if name.endswith(".jpg")
            }
    return images


SOURCES = (
    Source(
        "ham10000",
        f"skin lesions, colour, middle square resized to {SIZE}×{SIZE}, 7 classes, 10,015 split 80/20 by lesion",
        tuple(Form((TABLE, *(part + ending for part in PARTS)), _read) for ending in ("", ".zip")),
        resized=True,
        origin="https://doi.org/10.7910/DVN/DBW86T",
    ),
)
