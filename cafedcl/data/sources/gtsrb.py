"""GTSRB, German traffic signs: 43 classes of colour images of many sizes, as zips or folders."""

import csv
import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote
from cafedcl.data.files.formats import AGAIN, read_bytes, zip_members, zip_names
from cafedcl.data.images import Opener
from cafedcl.data.sources.base import FileForm, Source
from cafedcl.data.sources.image_files import decode_all, zip_opener

ADDRESS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"
CLASSES = 43
SIZE = 32
TEST_CSV = "GT-final_test.csv"
TEST_FOLDER = "GTSRB/Final_Test/Images/"
TRAINING = ("GTSRB-Training_fixed.zip", "GTSRB_Final_Training_Images.zip")
TEST = ("GTSRB_Final_Test_Images.zip", "GTSRB_Final_Test_GT.zip")

_SIGN = re.compile(r"GTSRB/(?:Training|Final_Training/Images)/(\d{5})/[^/]+\.ppm")


def _test_labels(text: bytes, where: object) -> dict[str, int]:
    try:
        rows = csv.DictReader(
            io.StringIO(text.decode("utf-8-sig")), delimiter=";", skipinitialspace=True
        )
        return {row["Filename"]: int(row["ClassId"]) for row in rows}
    except (ValueError, KeyError, TypeError):
        raise CafedclError(
            f"{where}: not GTSRB's table with Filename and ClassId; {AGAIN}"
        ) from None


def _decode_signs(
    where: object,
    signs: dict[str, tuple[int, Opener]],
    labels: dict[str, int],
    tests: dict[str, Opener],
    size: int,
) -> Dataset:
    """Decode training images (``signs``: label and file) and test images in the order of names."""
    if not signs:
        raise CafedclError(f"{where}: it holds no training images of GTSRB; {AGAIN}")
    missing = [name for name in labels if name not in tests]
    if missing:
        raise CafedclError(
            f"{where}: {len(missing)} test images are missing, first {missing[0]}; {AGAIN}"
        )
    train_names = sorted(signs)
    test_names = sorted(labels)
    train = decode_all(
        where, train_names, [signs[name][1] for name in train_names], size, crop=False
    )
    test = decode_all(where, test_names, [tests[name] for name in test_names], size, crop=False)
    train_y = np.array([signs[name][0] for name in train_names], dtype=np.int64)
    test_y = np.array([labels[name] for name in test_names], dtype=np.int64)
    names = [str(c) for c in range(CLASSES)]
    return checked_dataset(where, (train, train_y), (test, test_y), names)


def _read_zips(files: Sequence[Path], options: DataOptions) -> Dataset:
    training, images, table = files
    labels = _test_labels(zip_members(table, [TEST_CSV])[TEST_CSV], table)
    matches = [_SIGN.fullmatch(name) for name in zip_names(training)]
    test_names = [
        name for name in zip_names(images) if name.startswith(TEST_FOLDER) and name.endswith(".ppm")
    ]
    with zipfile.ZipFile(training) as signs_zip, zipfile.ZipFile(images) as tests_zip:
        signs: dict[str, tuple[int, Opener]] = {
            match[0]: (int(match[1]), zip_opener(signs_zip, match[0]))
            for match in matches
            if match is not None
        }
        tests: dict[str, Opener] = {
            name.removeprefix(TEST_FOLDER): zip_opener(tests_zip, name) for name in test_names
        }
        return _decode_signs(training, signs, labels, tests, options.size or SIZE)


def _read_folders(files: Sequence[Path], options: DataOptions) -> Dataset:
    training, images, table = files[:3]
    signs: dict[str, tuple[int, Opener]] = {
        f"{folder.name}/{path.name}": (int(folder.name), path)
        for folder in training.iterdir()
        if re.fullmatch(r"\d{5}", folder.name) and folder.is_dir()
        for path in folder.glob("*.ppm")
    }
    tests: dict[str, Opener] = {path.name: path for path in images.glob("*.ppm")}
    labels = _test_labels(read_bytes(table), table)
    return _decode_signs(training, signs, labels, tests, options.size or SIZE)


def _folder_form(training: str, images: str, table: str) -> FileForm:
    # The class folders are among the paths so that the cache notices a file added to one of them.
    folders = [f"{training}/{c:05d}" for c in range(CLASSES)]
    return FileForm((training, images, table, *folders), _read_folders, resizes=True)


SOURCES = (
    Source(
        "gtsrb",
        f"traffic signs, colour, resized to {SIZE}×{SIZE}, {CLASSES} classes, "
        "26,640 or 39,209 + 12,630",
        (
            *(FileForm((training, *TEST), _read_zips, resizes=True) for training in TRAINING),
            *(
                _folder_form(
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
    ),
)
