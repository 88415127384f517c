"""Packed sets: ``NAME.meta.npz`` (labels, class names) and ``NAME.SPLIT.K.xz`` (images without
loss, in chunks).

A chunk, decompressed, is a header of 16 bytes and one plane of n·h·w bytes per channel: plain
pixels (mode 0), or what the median predictor of LOCO-I leaves over, modulo 256 (mode 1). There,
colour is G, then R − (k1·G ≫ 5), then B − ((k2·G + k3·R) ≫ 5).
"""

import lzma
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import checked
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.formats import AGAIN, Bytes, read_npz

HEADER = struct.Struct("<IHHHbbbb2x")
META = ".meta.npz"

Plane = npt.NDArray[np.int16]


def packed_names(root: Path) -> list[str]:
    """Return the names of the packed sets in a folder."""
    return (
        sorted(path.name.removesuffix(META) for path in root.glob(f"*{META}"))
        if root.is_dir()
        else []
    )


def packed_files(root: Path, name: str) -> list[Path]:
    """Return a packed set's files in order, its labels first; empty if there is none."""
    meta = root / f"{name}{META}"
    if not meta.exists():
        return []
    return [meta, *(chunk for split in ("train", "test") for chunk in _chunks(root, name, split))]


def _chunks(root: Path, name: str, split: str) -> list[Path]:
    numbered = {}
    for path in root.iterdir():
        number = path.name.removeprefix(f"{name}.{split}.").removesuffix(".xz")
        if path.name == f"{name}.{split}.{number}.xz" and number.isdecimal():
            numbered[int(number)] = path
    return [numbered[number] for number in sorted(numbered)]


def read_packed(files: Sequence[Path], options: DataOptions) -> Dataset:  # noqa: ARG001
    """Return the training and test images of a packed set; a validation part is left out."""
    meta = read_npz(files[0])
    name = files[0].name.removesuffix(META)
    parts = []
    for split in ("train", "test"):
        chunks = [file for file in files[1:] if file.name.startswith(f"{name}.{split}.")]
        if f"y_{split}" not in meta or not chunks:
            raise CafedclError(
                f"{files[0]}: no {split} images; put {name}.{split}.0.xz and so on beside it"
            )
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            images = np.concatenate(list(pool.map(decode, chunks)))
        labels = meta[f"y_{split}"]
        if len(images) != len(labels):
            raise CafedclError(
                f"{files[0]}: {len(labels)} {split} labels for the {len(images)} images of {len(chunks)} chunks; "
                f"put all of {name}.{split}.*.xz beside it"
            )
        parts.append((images, labels))
    classes = meta["classes"] if "classes" in meta else range(int(parts[0][1].max()) + 1)
    return checked(files[0], parts[0], parts[1], [str(c) for c in classes])


def decode(path: Path) -> Bytes:
    """Return a chunk's images as uint8 (N, channels, height, width)."""
    try:
        with lzma.open(path) as file:
            raw = file.read()
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise CafedclError(f"{path}: not a whole xz file ({error}); {AGAIN}") from None
    if len(raw) < HEADER.size:
        raise CafedclError(f"{path}: the header is cut off; {AGAIN}")
    n, height, width, channels, mode, k1, k2, k3 = HEADER.unpack_from(raw)
    size = n * height * width * channels
    if len(raw) - HEADER.size != size or mode not in (0, 1) or channels not in (1, 3):
        raise CafedclError(
            f"{path}: not an image chunk of {size} bytes as its header says; {AGAIN}"
        )
    planes = np.frombuffer(raw, np.uint8, offset=HEADER.size).reshape(channels, n, height, width)
    if mode == 0:
        return np.ascontiguousarray(planes.transpose(1, 0, 2, 3))
    out = np.empty((n, channels, height, width), np.uint8)
    nothing = np.zeros((height, width, 1), np.int16)
    green = _unpredict(planes[0], nothing)
    if channels == 1:
        out[:, 0] = green.transpose(2, 0, 1)
        return out
    from_green = (k1 * green.astype(np.int32) >> 5).astype(np.int16)
    red = _unpredict(planes[1], from_green) + from_green
    from_both = (k2 * green.astype(np.int32) + k3 * red.astype(np.int32) >> 5).astype(np.int16)
    blue = _unpredict(planes[2], from_both) + from_both
    for channel, plane in enumerate((red, green, blue)):
        out[:, channel] = plane.transpose(2, 0, 1)
    return out


def _unpredict(left_over: Bytes, base: Plane) -> Plane:
    """Return the plane (height, width, N) whose sum with ``base`` is a pixel, one position of all
    images at a time.
    """
    rest = np.ascontiguousarray(left_over.transpose(1, 2, 0)).astype(np.int16)
    height, width, _ = rest.shape
    plane = np.empty_like(rest)
    for i in range(height):
        for j in range(width):
            if i and j:
                left = plane[i, j - 1]
                up = plane[i - 1, j]
                guess = np.clip(
                    left + up - plane[i - 1, j - 1], np.minimum(left, up), np.maximum(left, up)
                )
            elif i:
                guess = plane[i - 1, 0]
            elif j:
                guess = plane[0, j - 1]
            else:
                guess = np.zeros_like(rest[0, 0])
            plane[i, j] = ((guess + rest[i, j] + base[i, j]) & 255) - base[i, j]
    return plane
