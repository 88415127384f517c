import gzip
import zipfile

import numpy as np
import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.data.sources.idx import EMNIST, FASHION_HEAD, FILES, MNIST_HEAD

RNG = np.random.default_rng(0)


def made(classes, first=0, test_labels=None):
    """Training and test images with their labels, every class twice."""
    arrays = []
    for labels in (
        np.tile(np.arange(classes), 2),
        np.arange(classes) if test_labels is None else test_labels,
    ):
        arrays += [
            RNG.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8),
            np.asarray(labels) + first,
        ]
    return arrays


def assert_same(data, arrays, *, transposed=False, first=0):
    train_x, train_y, test_x, test_y = arrays
    for x, y, ours_x, ours_y in (
        (train_x, train_y, data.train_x, data.train_y),
        (test_x, test_y, data.test_x, data.test_y),
    ):
        x = x.transpose(0, 2, 1) if transposed else x
        np.testing.assert_array_equal(ours_x[:, 0], x)
        np.testing.assert_array_equal(ours_y, y - first)
    assert data.train_x.dtype == torch.uint8
    assert data.train_y.dtype == torch.int64
    assert data.train_x.shape[1:] == (1, 28, 28)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "fashion_mnist"])
@pytest.mark.parametrize("where", ["", "{own}/", "{tv}/raw/", "{own}/{tv}/raw/"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_is_read_from_any_folder_people_have(name, where, ending, data_dir, load, write_idx):
    places = {"own": name, "tv": "MNIST" if name == "mnist" else "FashionMNIST"}
    arrays = made(10)
    for file, array in zip(FILES, arrays, strict=True):
        write_idx(data_dir / where.format(**places) / f"{file}{ending}", array)
    data = load(name)
    assert_same(data, arrays)
    assert data.names[9] == ("9" if name == "mnist" else "Ankle boot")


def test_the_two_sets_with_the_same_file_names_are_told_apart_by_their_first_labels(
    data_dir, load, write_idx
):
    arrays = made(10, test_labels=list(FASHION_HEAD))
    for file, array in zip(FILES, arrays, strict=True):
        write_idx(data_dir / f"{file}.gz", array)
    assert_same(load("fashion-mnist"), arrays)
    with pytest.raises(CafedclError, match="data set 'mnist': not found"):
        load("mnist")
    write_idx(data_dir / f"{FILES[3]}.gz", np.array(list(MNIST_HEAD)))
    assert load("mnist").names[0] == "0"
    with pytest.raises(CafedclError, match="data set 'fashion-mnist': not found"):
        load("fashion-mnist")


def test_kerass_mnist_is_read(data_dir, load):
    arrays = made(10)
    np.savez(
        data_dir / "mnist.npz",
        **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)),
    )
    assert_same(load("mnist"), arrays)
    np.savez(data_dir / "mnist.npz", x_train=arrays[0])
    with pytest.raises(CafedclError, match=r"mnist.npz: it has no array 'y_train'"):
        load("mnist")


def emnist_names(kind):
    return [f"emnist-{kind}-{file.replace('t10k', 'test')}" for file in FILES]


@pytest.mark.parametrize("kind", EMNIST)
def test_emnists_zip_is_read_upright_and_from_label_0(kind, data_dir, load, write_idx, tmp_path):
    first = 1 if kind == "letters" else 0
    arrays = made(len(EMNIST[kind][0]), first)
    with zipfile.ZipFile(data_dir / "gzip.zip", "w") as archive:
        for file, array in zip(emnist_names(kind), arrays, strict=True):
            archive.writestr(f"gzip/{file}.gz", write_idx(tmp_path / "x.gz", array))
    data = load(f"emnist-{kind}")
    assert_same(data, arrays, transposed=True, first=first)
    sizes = {"balanced": 47, "letters": 26, "digits": 10, "byclass": 62, "bymerge": 47, "mnist": 10}
    assert data.classes == sizes[kind]
    assert data.names[data.classes - 1] == {26: "z", 10: "9", 62: "z", 47: "t"}[data.classes]


@pytest.mark.parametrize("where", ["EMNIST/raw", "emnist", "emnist/gzip", "."])
def test_emnists_loose_files_are_read(where, data_dir, load, write_idx):
    arrays = made(26, 1)
    for file, array in zip(emnist_names("letters"), arrays, strict=True):
        write_idx(data_dir / where / (file + (".gz" if "gzip" in where else "")), array)
    assert_same(load("emnist-letters"), arrays, transposed=True, first=1)


def broken(data_dir, write_idx, change):
    for file, array in zip(FILES, made(10), strict=True):
        write_idx(data_dir / f"{file}.gz", array)
    path = data_dir / f"{FILES[0]}.gz"
    change(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda p: p.write_bytes(p.read_bytes()[:100]),
            r"train-images-idx3-ubyte.gz: not a complete gzip file",
        ),
        (lambda p: p.write_bytes(b""), "not an IDX file"),
        (lambda p: p.write_bytes(b"<html>404</html>"), "not a complete gzip file"),
        (lambda p: p.write_bytes(gzip.compress(b"PK\x03\x04")), "not an IDX file of bytes"),
        (lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x03\0\0")), "the IDX header is cut off"),
        (
            lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc")),
            "3 bytes where the header says 5",
        ),
        (
            lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x03abc")),
            "not images, labels, images, labels",
        ),
    ],
)
def test_a_broken_file_is_named(change, words, data_dir, load, write_idx):
    broken(data_dir, write_idx, change)
    with pytest.raises(CafedclError, match=words) as caught:
        load("mnist")
    assert "\n" not in str(caught.value)


def test_labels_out_of_range_and_an_empty_class_are_refused(data_dir, load, write_idx):
    arrays = made(10)
    for file, array in zip(FILES, arrays, strict=True):
        write_idx(data_dir / file, array)
    write_idx(data_dir / FILES[3], np.full(10, 11))
    with pytest.raises(
        CafedclError,
        match=r"label 11 of test image 0 is out of range; labels of 10 classes are 0 to 9",
    ):
        load("mnist")
    write_idx(data_dir / FILES[3], arrays[3])
    write_idx(data_dir / FILES[1], np.zeros(20))
    with pytest.raises(CafedclError, match="class '1' has no training image"):
        load("mnist")
    write_idx(data_dir / FILES[1], np.zeros(19))
    with pytest.raises(CafedclError, match="20 training images but 19 labels"):
        load("mnist")
