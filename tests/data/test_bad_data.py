"""A corpus of bad data sets: arrays, folders, tables, images and functions that do not fit.

Each is refused in one line that names the file, or read with a warning that names what was skipped.
"""

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cafedcl.core.errors import CafedclError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (12, 6, 6), dtype=np.uint8)
X[0, 0, :2] = (0, 255)
Y = np.arange(12) % 3
Make = Callable[[Path], Path]


def npz(**arrays: Any) -> Make:
    def make(folder: Path) -> Path:
        np.savez(folder / "own.npz", **arrays)
        return folder / "own.npz"

    return make


def npz_with_member(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = npz(x=X, y=Y)(folder)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, content)
        return path

    return make


def file_of(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def npy(images: Any, labels: Any) -> Make:
    def make(folder: Path) -> Path:
        np.save(folder / "images.npy", images)
        np.save(folder / "labels.npy", labels)
        return folder

    return make


def npz_bytes() -> bytes:
    content = io.BytesIO()
    np.savez(content, x=X, y=Y)
    return content.getvalue()


def png(pixels: Any = X[0]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


def header_of_npy(text: str) -> bytes:
    """Return an .npy file without data whose header is ``text``."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def huge_png() -> bytes:
    """Return an image whose header claims 100,000 × 100,000 pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk


ARRAYS: dict[str, Make] = {
    "one pixel far above 1": npz(x=np.where(np.arange(36).reshape(6, 6) == 7, 9.5, X / 255), y=Y),
    "fractions up to 1.7": npz(x=X / 150, y=Y),
    "fractions up to 3": npz(x=X / 85, y=Y),
    "from -1 to 1": npz(x=X / 127.5 - 1, y=Y),
    "standardised": npz(x=(X - X.mean()) / X.std(), y=Y),
    "NaN": npz(x=np.where(X > 99, np.nan, X / 255), y=Y),
    "infinite": npz(x=np.where(X > 99, np.inf, X / 255), y=Y),
    "16 bits": npz(x=X.astype(np.uint16) * 257, y=Y),
    "negative whole numbers": npz(x=X.astype(int) - 128, y=Y),
    "complex": npz(x=X.astype(complex), y=Y),
    "texts as pixels": npz(x=X.astype(str), y=Y),
    "dates as pixels": npz(x=X.astype("datetime64[s]"), y=Y),
    "records as pixels": npz(x=np.zeros((12, 6, 6), [("r", "u1"), ("g", "u1")]), y=Y),
    "bytes and fractions": npz(x_train=X, y_train=Y, x_test=X / 255, y_test=Y),
    "fractions and bytes": npz(x_train=X / 255, y_train=Y, x_test=X.astype(float), y_test=Y),
    "0-d images": npz(x=np.uint8(1), y=Y),
    "0-d labels": npz(x=X, y=np.int64(1)),
    "0-d text label": npz(x=X, y=np.array("a")),
    "0-d classes": npz(x=X, y=Y, classes=np.array("abc")),
    "1-d images": npz(x=X[:, 0, 0], y=Y),
    "flat images": npz(x=X.reshape(12, 36), y=Y),
    "5-d images": npz(x=X[:, None, None], y=Y),
    "2 channels": npz(x=np.stack([X, X], 1), y=Y),
    "grey, channels first, 3 pixels wide": npz(x=X[:, None, :, :3], y=Y),
    "colour, 3 pixels wide": npz(x=np.stack([X[:, :, :3]] * 3, 1), y=Y),
    "colour, 1 pixel high": npz(x=np.stack([X[:, :1]] * 3, 3), y=Y),
    "no images": npz(x=X[:0], y=Y[:0]),
    "no images, texts": npz(x=X[:0], y=np.array([], dtype="U3")),
    "images without pixels": npz(x=X[:, :0], y=Y),
    "fewer labels": npz(x=X, y=Y[:5]),
    "no labels": npz(x=X),
    "labels only": npz(y=Y),
    "test images without labels": npz(x_train=X, y_train=Y, x_test=X),
    "no array at all": npz(),
    "unknown names": npz(pictures=X, kinds=Y),
    "names that differ by case": npz(x=X, X=X, y=Y),
    "one-hot labels": npz(x=X, y=np.eye(3)[Y]),
    "fractions as labels": npz(x=X, y=Y / 2),
    "NaN as label": npz(x=X, y=np.where(Y > 1, np.nan, Y)),
    "infinite label": npz(x=X, y=np.where(Y > 1, np.inf, Y)),
    "huge label": npz(x=X, y=np.where(Y > 1, 2.0**80, Y)),
    "unsigned huge label": npz(x=X, y=np.where(Y > 1, np.uint64(2**64 - 1), Y.astype(np.uint64))),
    "negative label": npz(x=X, y=Y - 1),
    "a class is missing": npz(x=X, y=Y * 2),
    "dates as labels": npz(x=X, y=Y.astype("datetime64[D]")),
    "bytes that are no text": npz(x=X, y=np.array([b"\xff", b"a", b"b"])[Y]),
    "numbers and texts": npz(x_train=X, y_train=Y, x_test=X, y_test=np.array(["0", "1", "2"])[Y]),
    "a class only tested": npz(x_train=X, y_train=Y % 2, x_test=X, y_test=Y),
    "class named twice": npz(x=X, y=Y, classes=["a", "b", "a"]),
    "too few class names": npz(x=X, y=Y, classes=["a", "b"]),
    "too many class names": npz(x=X, y=Y, classes=["a", "b", "c", "d"]),
    "test images of another size": npz(x_train=X, y_train=Y, x_test=X[:, 1:], y_test=Y),
    "test images in colour": npz(x_train=X, y_train=Y, x_test=np.stack([X] * 3, 3), y_test=Y),
    "empty test set": npz(x_train=X, y_train=Y, x_test=X[:0], y_test=Y[:0]),
    "objects": npz(x=np.array([X[0], None], dtype=object), y=Y),
    "objects as labels": npz(x=X, y=Y.astype(object)),
    "a raw pickle": npz_with_member("extra", pickle.dumps({"a": 1})),
    "a raw pickle named .npy": npz_with_member("extra.npy", pickle.dumps({"a": 1})),
    "an empty member": npz_with_member("extra.npy", b""),
    "a header without data": npz_with_member(
        "z.npy", header_of_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (9,)}\n")
    ),
    "a header that claims too much": npz_with_member(
        "z.npy", header_of_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15,)}\n")
    ),
    "a header of terabytes": npz_with_member(
        "z.npy",
        header_of_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999,)}\n"),
    ),
    "a header that is code": npz_with_member("z.npy", header_of_npy("__import__('os')\n")),
    "a header that is broken": npz_with_member("z.npy", header_of_npy("{'descr': (((\n")),
    "an empty file": file_of("own.npz", b""),
    "half an archive": file_of("own.npz", npz_bytes()[:300]),
    "a text": file_of("own.npz", b"hello"),
    "a pickle": file_of("own.npz", pickle.dumps([1, 2])),
    "a pickle that would run code": file_of("own.npz", b"cos\nsystem\n(S'false'\ntR."),
    "npy: an empty file": file_of("x.npy", b""),
    "npy: 0-d images": npy(np.uint8(3), Y),
    "npy: 0-d labels": npy(X, np.int64(3)),
    "npy: objects": npy(np.array([X[0], None], dtype=object), Y),
    "npy: fewer labels": npy(X, Y[:3]),
}


def folder_of(files: dict[str, bytes]) -> Make:
    def make(folder: Path) -> Path:
        for name, content in files.items():
            path = folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (folder / "photos").mkdir(exist_ok=True)
        return folder / "photos"

    return make


GOOD = {
    f"{label}/{i}.png": png(X[3 * c + i])
    for c, label in enumerate(("cat", "owl"))
    for i in range(3)
}
FOLDERS: dict[str, Make] = {
    "an empty folder": folder_of({}),
    "images without classes": folder_of({f"{i}.png": png() for i in range(3)}),
    "different depths": folder_of({**GOOD, "cat/deep/1.png": png()}),
    "too deep": folder_of({f"a/b/c/{i}.png": png() for i in range(3)}),
    "an empty class": folder_of({**GOOD, "dog/note.txt": b"no image"}),
    "a class of one image": folder_of({"cat/1.png": png()}),
    "only a test set": folder_of({f"test/{name}": content for name, content in GOOD.items()}),
    "a folder beside train": folder_of(
        {**{f"train/{name}": content for name, content in GOOD.items()}, "more/cat/1.png": png()}
    ),
    "a class only tested": folder_of(
        {**{f"train/{name}": content for name, content in GOOD.items()}, "test/dog/1.png": png()}
    ),
    "class names that differ by blanks": folder_of({**GOOD, "cat /1.png": png()}),
    "client names that differ by case": folder_of(
        {f"{client}/{name}": content for client in ("A", "a") for name, content in GOOD.items()}
    ),
    "all images are damaged": folder_of(dict.fromkeys(GOOD, b"no image")),
    "another format": file_of("photos.tar", b"x"),
    "a missing file": lambda folder: folder / "nowhere.npz",
}


def table_of(rows: list[tuple[str, ...]], head: str = "path,label", name: str = "t.csv") -> Make:
    def make(folder: Path) -> Path:
        for i in range(8):
            (folder / f"{i}.png").write_bytes(png(X[i]))
        lines = [head, *(",".join(row) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n")
        return folder / name

    return make


ROWS: list[tuple[str, ...]] = [(f"{i}.png", "ab"[i % 2]) for i in range(8)]
SPLIT = [(*row, "test" if i > 5 else "train") for i, row in enumerate(ROWS)]
TABLES: dict[str, Make] = {
    "no rows": table_of([]),
    "no label": table_of([("0.png",)], "path"),
    "no path": table_of([("a",)], "label"),
    "a row twice": table_of([*ROWS, ROWS[0]]),
    "two labels": table_of([*ROWS, ("0.png", "b")]),
    "another spelling": table_of([*ROWS, ("./0.png", "a")]),
    "in train and in test": table_of([*SPLIT, ("0.png", "a", "test")], "path,label,split"),
    "an unknown split": table_of([*SPLIT[:7], ("7.png", "b", "maybe")], "path,label,split"),
    "only a test set": table_of([(*row, "test") for row in ROWS], "path,label,split"),
    "a missing image": table_of([*ROWS, ("9.png", "a")]),
    "an absolute path": table_of([*ROWS, ("/nowhere/9.png", "a")]),
    "a folder as image": table_of([*ROWS, (".", "a")]),
    "a null byte in a path": table_of([*ROWS, ("a\0b.png", "a")]),
    "a very long path": table_of([*ROWS, ("x" * 5000, "a")]),
    "no label in a row": table_of([*ROWS[:7], ("7.png", "")]),
    "some clients": table_of(
        [*((*row, "k") for row in ROWS[:7]), ("7.png", "b", "")], "path,label,client"
    ),
    "too many cells": table_of([*ROWS, ("7.png", "a", "b", "c")]),
    "an open quote": table_of([*ROWS, ('"7.png', "a")]),
    "no text": file_of("t.csv", b"\xff\xfe\x00\x01"),
    "UTF-16": file_of("t.csv", "path,label\n0.png,a\n".encode("utf-16")),
    "an empty file": file_of("t.csv", b""),
    "no Parquet": file_of("t.parquet", b"PAR1 is not enough"),
}
BAD = {
    f"{kind}: {name}": make
    for kind, cases in (("arrays", ARRAYS), ("folder", FOLDERS), ("table", TABLES))
    for name, make in cases.items()
}

DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "a text": b"this is no image",
    "half a PNG": png()[: len(png()) // 2],
    "a PNG with a wrong checksum": png()[:45] + b"\x00\x00\x00" + png()[48:],
    "the beginning of a PNG": b"\x89PNG\r\n\x1a\n",
    "a header of 10 gigapixels": huge_png(),
    "the beginning of a JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "the beginning of a GIF": b"GIF89a\x01\x00\x01\x00",
    "the beginning of a BMP": b"BM\x00\x00",
    "the beginning of a TIFF": b"II*\x00\xff\xff\xff\xff",
    "the beginning of a WebP": b"RIFF\x00\x00\x00\x00WEBP",
    "a PPM without pixels": b"P6 10 10 255\n",
    "a page of JSON": json.dumps({"a": 1}).encode(),
    "a pickle": pickle.dumps(X),
    "a TIFF of two pages": b"",
    "a GIF of two pages": b"",
}


def test_the_corpus_is_large() -> None:
    assert len(BAD) + len(DAMAGED) >= 100


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("error")
def test_bad_data_are_refused_in_one_line_that_names_the_file(name, tmp_path, load) -> None:
    path = BAD[name](tmp_path)
    with pytest.raises(CafedclError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_image_is_skipped_and_named_or_refused(name, tmp_path, load, capsys) -> None:
    folder = folder_of({**GOOD, "cat/bad.png": DAMAGED[name]})(tmp_path)
    if "pages" in name:
        kind = "gif" if "GIF" in name else "tiff"
        pages = [Image.new("L", (6, 6), grey) for grey in (0, 255)]
        pages[0].save(folder / "cat" / "bad.png", kind, save_all=True, append_images=pages[1:])
    data = load(folder)
    assert len(data.train_y) + len(data.test_y) == len(GOOD)
    warning = capsys.readouterr().err
    assert "cat/bad.png (" in warning
    assert warning.count("\n") == 1
    with pytest.raises(CafedclError, match="1 of 7 images cannot be read"):
        load(folder, strict=True)


def test_parquet_with_an_image_twice_names_the_rows(tmp_path, load) -> None:
    pytest.importorskip("pyarrow")
    table_of([])(tmp_path)
    rows = [*ROWS, ROWS[2]]
    pd.DataFrame(rows, columns=["path", "label"]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(CafedclError, match=r"2.png is listed twice, in rows 3 and 9"):
        load(tmp_path / "t.parquet")
