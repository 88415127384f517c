"""MNIST, Fashion-MNIST and EMNIST: 28×28 grey images in IDX files, gzipped or not."""

import string
from collections.abc import Callable, Sequence
from pathlib import Path

from cafedcl.config.data_options import DataOptions
from cafedcl.core.arrays import Bytes
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote
from cafedcl.data.files.formats import (
    AGAIN,
    gunzip,
    parse_idx,
    read_bytes,
    read_npz,
    zip_members,
)
from cafedcl.data.sources.base import FileForm, Reader, Source

FILES = tuple(
    f"{part}-{what}"
    for part in ("train", "t10k")
    for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
# MNIST's and Fashion-MNIST's files have the same names; the first test labels tell them apart.
MNIST_HEAD = bytes([7, 2, 1, 0, 4, 1, 4, 9])
FASHION_HEAD = bytes([9, 2, 1, 1, 6, 1, 4, 6])
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
EMNIST = {
    "balanced": (MERGED, "112,800 + 18,800"),
    "letters": (string.ascii_lowercase, "124,800 + 20,800"),
    "digits": (string.digits, "240,000 + 40,000"),
    "byclass": (
        string.digits + string.ascii_uppercase + string.ascii_lowercase,
        "697,932 + 116,323",
    ),
    "bymerge": (MERGED, "697,932 + 116,323"),
    "mnist": (string.digits, "60,000 + 10,000"),
}
EMNIST_REMOTE = Remote(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
)


def _parse_four(where: object, contents: Sequence[bytes], files: Sequence[object]) -> list[Bytes]:
    arrays = [parse_idx(data, str(file)) for data, file in zip(contents, files, strict=True)]
    if [array.ndim for array in arrays] != [3, 1, 3, 1]:
        raise CafedclError(
            f"{where}: its IDX files are not images, labels, images, labels; {AGAIN}"
        )
    return arrays


def _idx_reader(names: Sequence[str]) -> Reader:
    def read(files: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        where = files[0].parent
        train_x, train_y, test_x, test_y = _parse_four(
            where, [read_bytes(file) for file in files], files
        )
        return checked_dataset(where, (train_x, train_y), (test_x, test_y), names)

    return read


def _is_not(other_head: bytes) -> Callable[[Sequence[Path]], bool]:
    """Return a check that files are not those of the set whose test labels start so."""

    def fits(files: Sequence[Path]) -> bool:
        try:
            return read_bytes(files[3])[8:16] != other_head
        except CafedclError:
            # The file is broken. The reader will report it.
            return True

    return fits


def _mnist_like(
    name: str,
    about: str,
    names: Sequence[str],
    folders: Sequence[str],
    other: bytes,
    address: str,
    md5s: Sequence[str],
) -> Source:
    spellings = [tuple(f"{file}{ending}" for file in FILES) for ending in (".gz", "")]
    spellings.append(tuple(file.replace("-idx", ".idx") for file in FILES))
    forms = [
        FileForm(tuple(folder + file for file in files), _idx_reader(names), _is_not(other))
        for folder in ("", *folders)
        for files in spellings
    ]
    if name == "mnist":
        forms.append(FileForm(("mnist.npz",), _read_keras))
    remote = tuple(
        Remote(address + file, md5) for file, md5 in zip(spellings[0], md5s, strict=True)
    )
    return Source(name, about, tuple(forms), remote, aliases=(name.replace("-", "_"),))


def _read_keras(files: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
    arrays = read_npz(files[0])
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise CafedclError(f"{files[0]}: it has no array '{missing[0]}'; {AGAIN}")
    train = (arrays["x_train"], arrays["y_train"])
    test = (arrays["x_test"], arrays["y_test"])
    return checked_dataset(files[0], train, test, string.digits)


def _emnist(kind: str) -> Source:
    names, count = EMNIST[kind]
    files = [f"emnist-{kind}-{file.replace('t10k', 'test')}" for file in FILES]

    def finish(where: object, contents: Sequence[bytes], places: Sequence[object]) -> Dataset:
        train_x, train_y, test_x, test_y = _parse_four(where, contents, places)
        # In the files, rows and columns of every image are exchanged, and letters count from 1.
        shift = 1 if kind == "letters" else 0
        train = (train_x.transpose(0, 2, 1), train_y.astype("int64") - shift)
        test = (test_x.transpose(0, 2, 1), test_y.astype("int64") - shift)
        return checked_dataset(where, train, test, names)

    def read_zip(paths: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        members = [f"gzip/{file}.gz" for file in files]
        found = zip_members(paths[0], members)
        places = [f"{paths[0]}, {member}" for member in members]
        return finish(
            paths[0],
            [gunzip(found.pop(m), place) for m, place in zip(members, places, strict=True)],
            places,
        )

    def read_files(paths: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
        return finish(paths[0].parent, [read_bytes(path) for path in paths], paths)

    loose = [
        FileForm(tuple(f"{folder}{file}{ending}" for file in files), read_files)
        for folder in ("", "EMNIST/raw/", "raw/", "gzip/")
        for ending in ("", ".gz")
    ]
    zips = [
        FileForm((file,), read_zip)
        for file in ("gzip.zip", "emnist.zip", "EMNIST/raw/gzip.zip", "raw/gzip.zip")
    ]
    about = f"handwritten characters, 28×28 grey, {len(names)} classes, {count}"
    return Source(
        f"emnist-{kind}", about, (*zips[:1], *loose, *zips[1:]), (EMNIST_REMOTE,), folder="emnist"
    )


SOURCES = (
    _mnist_like(
        "mnist",
        "handwritten digits, 28×28 grey, 10 classes, 60,000 + 10,000",
        string.digits,
        ("MNIST/raw/", "raw/"),
        FASHION_HEAD,
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        MNIST_MD5,
    ),
    _mnist_like(
        "fashion-mnist",
        "clothes, 28×28 grey, 10 classes, 60,000 + 10,000",
        FASHION,
        ("FashionMNIST/raw/", "raw/"),
        MNIST_HEAD,
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        FASHION_MD5,
    ),
    *(_emnist(kind) for kind in EMNIST),
)
