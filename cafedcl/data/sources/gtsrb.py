"""GTSRB, German traffic signs: 43 classes of colour images of many sizes, in the official zips or
unpacked.
"""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote
from cafedcl.data.files.formats import AGAIN, Array, read_bytes, zip_members, zip_names
from cafedcl.data.images import Opener, decode
from cafedcl.data.sources.base import Form, Source

ADDRESS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"
CLASSES = 43
SIZE = 32
TEST_CSV = "GT-final_test.csv"
TEST_FOLDER = "GTSRB/Final_Test/Images/"
TRAINING = ("GTSRB-Training_fixed.zip", "GTSRB_Final_Training_Images.zip")
TEST = ("GTSRB_Final_Test_Images.zip", "GTSRB_Final_Test_GT.zip")

_SIGN = re.compile(r"GTSRB/(?:Training|Final_Training/Images)/(\d{5})/[^/]+\.ppm")


def decode_whole(
    where: object, names: Sequence[str], openers: Sequence[Opener], size: int, *, crop: bool
) -> Array:
    """Return all images of an official set (N, height, width, channels), or say which one is
    broken.
    """
    batch = decode(openers, size, crop=crop)
    if batch.bad:
        index, reason = next(iter(batch.bad.items()))
        raise CafedclError(
            f"{where}: {names[index]} cannot be read ({reason}; {len(batch.bad)} in all); {AGAIN}"
        )
    return batch.pixels


def member(archive: zipfile.ZipFile, name: str) -> Callable[[], BinaryIO]:
    """Return a function that opens a member of an archive in memory."""
    return lambda: io.BytesIO(archive.read(name))


def _labels(text: bytes, where: object) -> dict[str, int]:
    try:
        rows = csv.DictReader(
            io.StringIO(text.decode("utf-8-sig")), delimiter=";", skipinitialspace=True
        )
        return {row["Filename"]: int(row["ClassId"]) for row in rows}
    except (ValueError, KeyError, TypeError):
        raise CafedclError(
            f"{where}: not GTSRB's table with Filename and ClassId; {AGAIN}"
        ) from None


def _finish(
    where: object,
    signs: dict[str, tuple[int, Opener]],
    labels: dict[str, int],
    tests: dict[str, Opener],
    size: int,
) -> Dataset:
    if not signs:
        raise CafedclError(f"{where}: there are no training images of GTSRB in it; {AGAIN}")
    missing = [name for name in labels if name not in tests]
    if missing:
        raise CafedclError(
            f"{where}: {missing[0]} and {len(missing) - 1} more test images are not there; {AGAIN}"
        )
    train_names = sorted(signs)
    test_names = sorted(labels)
    train = decode_whole(
        where, train_names, [signs[name][1] for name in train_names], size, crop=False
    )
    test = decode_whole(where, test_names, [tests[name] for name in test_names], size, crop=False)
    train_y = np.array([signs[name][0] for name in train_names], dtype=np.int64)
    test_y = np.array([labels[name] for name in test_names], dtype=np.int64)
    return checked(where, (train, train_y), (test, test_y), [str(c) for c in range(CLASSES)])


def _read_zips(files: Sequence[Path], options: DataOptions) -> Dataset:
    training, images, table = files
    labels = _labels(zip_members(table, [TEST_CSV])[TEST_CSV], table)
    matches = [match for name in zip_names(training) if (match := _SIGN.fullmatch(name))]
    test_names = [
        name for name in zip_names(images) if name.startswith(TEST_FOLDER) and name.endswith(".ppm")
    ]
    with zipfile.ZipFile(training) as signs_zip, zipfile.ZipFile(images) as tests_zip:
        signs: dict[str, tuple[int, Opener]] = {
            m[0]: (int(m[1]), member(signs_zip, m[0])) for m in matches
        }
        tests: dict[str, Opener] = {
            name.removeprefix(TEST_FOLDER): member(tests_zip, name) for name in test_names
        }
        return _finish(training, signs, labels, tests, options.size or SIZE)


def _read_folders(files: Sequence[Path], options: DataOptions) -> Dataset:
    training, images, table = files[:3]
    signs: dict[str, tuple[int, Opener]] = {
        f"{folder.name}/{path.name}": (int(folder.name), path)
        for folder in training.iterdir()
        if re.fullmatch(r"\d{5}", folder.name) and folder.is_dir()
        for path in folder.glob("*.ppm")
    }
    tests: dict[str, Opener] = {path.name: path for path in images.glob("*.ppm")}
    return _finish(training, signs, _labels(read_bytes(table), table), tests, options.size or SIZE)


def _folders(training: str, images: str, table: str) -> Form:
    # The class folders are part of the form, so that a file added to one of them is noticed.
    return Form(
        (training, images, table, *(f"{training}/{c:05d}" for c in range(CLASSES))), _read_folders
    )


SOURCES = (
    Source(
        "gtsrb",
        f"traffic signs, colour, resized to {SIZE}×{SIZE}, {CLASSES} classes, 26,640 or 39,209 + 12,630",
        (
            *(Form((training, *TEST), _read_zips) for training in TRAINING),
            *(
                _folders(
                    f"{folder}GTSRB/{training}",
                    f"{folder}GTSRB/Final_Test/Images",
                    f"{folder}{where}{TEST_CSV}",
                )
                for folder in ("gtsrb/", "")
                for training in ("Training", "Final_Training/Images")
                for where in ("", "GTSRB/", "GTSRB/Final_Test/Images/")
            ),
        ),
        (
            Remote(f"{ADDRESS}/{TRAINING[0]}", "513f3c79a4c5141765e10e952eaa2478"),
            Remote(f"{ADDRESS}/{TEST[0]}", "c7e4e6327067d32654124b0fe9e82185"),
            Remote(f"{ADDRESS}/{TEST[1]}", "fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
        ),
        resized=True,
    ),
)
