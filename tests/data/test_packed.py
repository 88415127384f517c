import lzma
import struct

import numpy as np
import pytest
import torch

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import dataset_names, describe, load_dataset
from cafedcl.data.packed import decode


def predicted(plane):
    """What LOCO-I's median predictor expects at every position, one pixel at a time."""
    out = np.zeros_like(plane)
    for i, j in np.ndindex(plane.shape):
        if i and j:
            a, b, c = int(plane[i, j - 1]), int(plane[i - 1, j]), int(plane[i - 1, j - 1])
            out[i, j] = sorted((a, b, a + b - c))[1]
        elif i or j:
            out[i, j] = plane[i - 1, 0] if i else plane[0, j - 1]
    return out


def encode(images, mode=1, k=(20, 9, 17)):
    """Pack uint8 images (N, height, width[, 3]) by the description of the format."""
    n, h, w = images.shape[:3]
    if images.ndim == 3:
        planes, channels = [images.astype(int)], 1
    else:
        r, g, b = (images[..., c].astype(int) for c in range(3))
        channels = 3
        planes = (
            [r, g, b] if mode == 0 else [g, r - (k[0] * g >> 5), b - (k[1] * g + k[2] * r >> 5)]
        )
    if mode == 1:
        planes = [np.stack([one - predicted(one) for one in plane]) for plane in planes]
    body = b"".join((plane & 255).astype(np.uint8).tobytes() for plane in planes)
    return lzma.compress(struct.pack("<IHHHbbbb2x", n, h, w, channels, mode, *k) + body)


def smooth(n, h, w, channels=0, seed=0):
    rng = np.random.default_rng(seed)
    base = np.cumsum(rng.integers(-9, 10, (n, h, w, max(channels, 1))), axis=2) * 3 + rng.integers(
        0, 256
    )
    images = (base & 255).astype(np.uint8)
    return images if channels else images[..., 0]


def write_set(folder, name="some_set", channels=3, classes=("a", "b"), chunks=(3, 2)):
    """Write a packed set; return its training images, its test images and their labels."""
    train = smooth(sum(chunks), 5, 7, channels)
    test = smooth(4, 5, 7, channels, seed=1)
    start = 0
    for number, size in enumerate(chunks):
        (folder / f"{name}.train.{number}.xz").write_bytes(encode(train[start : start + size]))
        start += size
    (folder / f"{name}.test.0.xz").write_bytes(encode(test))
    (folder / f"{name}.val.0.xz").write_bytes(encode(test[:1]))
    y_train, y_test = np.arange(len(train)) % len(classes), np.arange(4) % len(classes)
    np.savez(
        folder / f"{name}.meta.npz",
        y_train=y_train,
        y_test=y_test,
        y_val=[0],
        classes=list(classes),
    )
    return train, test, y_train, y_test


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("channels", [0, 3])
def test_every_pixel_survives(mode, channels, tmp_path):
    rng = np.random.default_rng(3)
    for i, images in enumerate(
        [smooth(4, 6, 5, channels), rng.integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)]
    ):
        images = images if channels else images[..., 0] if images.ndim == 4 else images
        path = tmp_path / f"{i}.xz"
        path.write_bytes(encode(images, mode, (-30, 64, 60)))
        expected = images.transpose(0, 3, 1, 2) if channels else images[:, None]
        np.testing.assert_array_equal(decode(path), expected)


def test_a_packed_set_is_loaded_by_its_name_and_listed(data_dir, load):
    train, test, y_train, y_test = write_set(data_dir, chunks=(1,) * 11)
    assert "some_set" in dataset_names()
    assert describe("some_set")
    data = load("some_set")
    np.testing.assert_array_equal(data.train_x, train.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test_x, test.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.train_y, y_train)
    np.testing.assert_array_equal(data.test_y, y_test)
    assert data.names == ("a", "b")


def test_it_is_one_more_form_of_a_known_set_under_either_spelling(data_dir, load):
    train, *_ = write_set(data_dir, "fashion_mnist", channels=0)
    for name in ("fashion-mnist", "fashion_mnist"):
        np.testing.assert_array_equal(load(name).train_x[:, 0], train)
    assert "fashion_mnist" not in dataset_names()


def test_the_folder_is_an_option(tmp_path):
    write_set(tmp_path)
    assert "some_set" in dataset_names(str(tmp_path))
    assert "some_set" not in dataset_names()
    assert (
        load_dataset(DataOptions(name="some_set", dir=str(tmp_path))).train_y.dtype == torch.int64
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda d: (d / "some_set.train.1.xz").unlink(),
            "5 train labels for the 3 images of 1 chunks; put all of",
        ),
        (lambda d: (d / "some_set.test.0.xz").unlink(), r"no test images; put some_set.test.0.xz"),
        (
            lambda d: (d / "some_set.meta.npz").write_bytes(b"PK"),
            r"some_set.meta.npz: not a whole .npz",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(b"no"),
            r"some_set.test.0.xz: not a whole xz file",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(
                (d / "some_set.test.0.xz").read_bytes()[:-30]
            ),
            "not a whole xz file",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(lzma.compress(b"short")),
            "the header is cut off",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(lzma.compress(b"\1" * 40)),
            "not an image chunk",
        ),
    ],
)
def test_what_is_broken_is_named(change, words, data_dir, load):
    write_set(data_dir)
    change(data_dir)
    with pytest.raises(CafedclError, match=words) as caught:
        load("some_set")
    assert "\n" not in str(caught.value)
