"""Packed sets are converted to .npz files without a changed pixel."""

import lzma
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cafedcl.config.sections import DataOptions
from cafedcl.data import load_dataset

SCRIPT = Path(__file__).parents[2] / "experiments" / "unpack.py"


@pytest.fixture(scope="module")
def unpack():
    return runpy.run_path(str(SCRIPT))


def convert(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def predicted(plane):
    """What LOCO-I's median predictor expects at every position, one pixel at a time."""
    out = np.zeros_like(plane)
    for i, j in np.ndindex(plane.shape):
        if i and j:
            a = int(plane[i, j - 1])
            b = int(plane[i - 1, j])
            c = int(plane[i - 1, j - 1])
            out[i, j] = sorted((a, b, a + b - c))[1]
        elif i:
            out[i, j] = plane[i - 1, 0]
        elif j:
            out[i, j] = plane[0, j - 1]
    return out


def encode(images, mode=1, k=(20, 9, 17)):
    """Pack uint8 images (N, height, width[, 3]) by the description of the format."""
    n, h, w = images.shape[:3]
    if images.ndim == 3:
        planes = [images.astype(int)]
        channels = 1
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
    y_train = np.arange(len(train)) % len(classes)
    y_test = np.arange(4) % len(classes)
    np.savez(
        folder / f"{name}.meta.npz",
        y_train=y_train,
        y_test=y_test,
        y_val=[0],
        classes=list(classes),
        source_train=np.arange(len(train)),
    )
    return train, test, y_train, y_test


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("channels", [0, 3])
def test_every_pixel_survives(mode, channels, tmp_path, unpack):
    noise = np.random.default_rng(3).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    examples = [smooth(4, 6, 5, channels), noise if channels else noise[..., 0]]
    for number, images in enumerate(examples):
        path = tmp_path / f"{number}.xz"
        path.write_bytes(encode(images, mode, (-30, 64, 60)))
        np.testing.assert_array_equal(unpack["decode_chunk"](path), images)


def test_a_converted_set_is_loaded_by_its_name(tmp_path):
    train, test, y_train, y_test = write_set(tmp_path, chunks=(1,) * 11)
    out = tmp_path / "npz"
    done = convert(tmp_path, out)
    assert done.returncode == 0, done.stderr
    assert "some_set.npz: 11 training, 4 test images" in done.stdout
    data = load_dataset(DataOptions(name="some_set", dir=str(out)))
    np.testing.assert_array_equal(data.train_x, train.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test_x, test.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.train_y, y_train)
    np.testing.assert_array_equal(data.test_y, y_test)
    assert data.names == ("a", "b")


def test_all_other_arrays_are_kept(tmp_path):
    train, *_ = write_set(tmp_path, channels=0)
    assert convert(tmp_path, tmp_path / "npz", "some_set").returncode == 0
    with np.load(tmp_path / "npz" / "some_set.npz") as arrays:
        np.testing.assert_array_equal(arrays["x_train"], train)
        np.testing.assert_array_equal(arrays["source_train"], np.arange(len(train)))
        assert len(arrays["x_val"]) == len(arrays["y_val"]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda d: (d / "some_set.train.1.xz").unlink(),
            "5 train labels but 3 images in 1 chunks; put all of",
        ),
        (lambda d: (d / "some_set.test.0.xz").unlink(), "no test images; put some_set.test.0.xz"),
        (
            lambda d: (d / "some_set.meta.npz").write_bytes(b"PK"),
            "some_set.meta.npz: cannot be read",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(b"no"),
            "some_set.test.0.xz: not a complete xz file",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(
                (d / "some_set.test.0.xz").read_bytes()[:-30]
            ),
            "not a complete xz file",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(lzma.compress(b"short")),
            "the header is cut off",
        ),
        (
            lambda d: (d / "some_set.test.0.xz").write_bytes(lzma.compress(b"\1" * 40)),
            "not an image chunk",
        ),
        (lambda d: (d / "some_set.meta.npz").unlink(), "it holds no packed sets"),
    ],
)
def test_what_is_broken_is_named(change, words, tmp_path):
    write_set(tmp_path)
    change(tmp_path)
    done = convert(tmp_path, tmp_path / "npz")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_name_lists_those_that_are_there(tmp_path):
    write_set(tmp_path)
    done = convert(tmp_path, tmp_path / "npz", "other")
    assert "no packed set 'other'; it has some_set" in done.stderr
