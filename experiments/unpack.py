"""Convert packed image sets to plain ``.npz`` files that ``cafedcl`` reads by name.

    python experiments/unpack.py FOLDER OUT             # every packed set in FOLDER
    python experiments/unpack.py FOLDER OUT cifar10     # only this one

A packed set is ``NAME.meta.npz`` (labels, class names and other arrays) and ``NAME.SPLIT.K.xz``
(losslessly compressed images in chunks; SPLIT is train, val or test). The result, ``OUT/NAME.npz``,
holds ``x_train``, ``x_test`` and so on as uint8 (N×height×width, with a last axis of 3 for colour)
and all arrays of the meta file.

A decompressed chunk is a header of 16 bytes and one plane of n·h·w bytes per channel. Mode 0 stores
plain pixels. Mode 1 stores the residuals of the median predictor of LOCO-I, modulo 256, and
decorrelates colours: the planes are G, R − (k1·G ≫ 5) and B − ((k2·G + k3·R) ≫ 5).
"""

import argparse
import lzma
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

HEADER = struct.Struct("<IHHHbbbb2x")
META = ".meta.npz"
SPLITS = ("train", "val", "test")

Bytes = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.int16]


class PackedSetError(Exception):
    """A packed set is incomplete or damaged."""


def packed_names(folder: Path) -> list[str]:
    """Return the names of the packed sets in a folder."""
    return sorted(path.name.removesuffix(META) for path in folder.glob(f"*{META}"))


def chunk_files(folder: Path, name: str, split: str) -> list[Path]:
    """Return the image files of one split, ordered by chunk number."""
    numbered = {}
    for path in folder.iterdir():
        number = path.name.removeprefix(f"{name}.{split}.").removesuffix(".xz")
        if path.name == f"{name}.{split}.{number}.xz" and number.isdecimal():
            numbered[int(number)] = path
    return [numbered[number] for number in sorted(numbered)]


def read_packed_set(folder: Path, name: str) -> dict[str, npt.NDArray[np.generic]]:
    """Return all arrays of a packed set: those of its meta file, and the images of every split."""
    meta = folder / f"{name}{META}"
    try:
        with np.load(meta, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise PackedSetError(f"{meta}: cannot be read: {error}") from None
    for split in SPLITS:
        files = chunk_files(folder, name, split)
        if not files:
            if split == "val":
                continue
            raise PackedSetError(f"{meta}: no {split} images; put {name}.{split}.0.xz beside it")
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            images = np.concatenate(list(pool.map(decode_chunk, files)))
        labels = len(arrays.get(f"y_{split}", ()))
        if len(images) != labels:
            raise PackedSetError(
                f"{meta}: {labels} {split} labels but {len(images)} images in {len(files)} chunks; "
                f"put all of {name}.{split}.*.xz beside it"
            )
        arrays[f"x_{split}"] = images
    return arrays


def decode_chunk(path: Path) -> Bytes:
    """Return a chunk's images as uint8 (N, height, width), or (N, height, width, 3) for colour."""
    try:
        with lzma.open(path) as file:
            raw = file.read()
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise PackedSetError(f"{path}: not a complete xz file ({error})") from None
    if len(raw) < HEADER.size:
        raise PackedSetError(f"{path}: the header is cut off")
    n, height, width, channels, mode, k1, k2, k3 = HEADER.unpack_from(raw)
    size = n * height * width * channels
    if len(raw) - HEADER.size != size or mode not in (0, 1) or channels not in (1, 3):
        raise PackedSetError(f"{path}: not an image chunk of {size} bytes as its header says")
    planes = np.frombuffer(raw, np.uint8, offset=HEADER.size).reshape(channels, n, height, width)
    if mode == 0:
        images = planes.transpose(1, 2, 3, 0)
        return np.ascontiguousarray(images[..., 0] if channels == 1 else images)
    green = _undo_prediction(planes[0], np.zeros((height, width, 1), np.int16))
    if channels == 1:
        return np.ascontiguousarray(green.transpose(2, 0, 1)).astype(np.uint8)
    from_green = (k1 * green.astype(np.int32) >> 5).astype(np.int16)
    red = _undo_prediction(planes[1], from_green) + from_green
    from_both = (k2 * green.astype(np.int32) + k3 * red.astype(np.int32) >> 5).astype(np.int16)
    blue = _undo_prediction(planes[2], from_both) + from_both
    out = np.empty((n, height, width, 3), np.uint8)
    for channel, plane in enumerate((red, green, blue)):
        out[..., channel] = plane.transpose(2, 0, 1)
    return out


def _undo_prediction(residuals: Bytes, base: Plane) -> Plane:
    """Return the decoded plane (height, width, N); its sum with ``base`` is a pixel, 0 to 255.

    Every pixel depends on those left of it and above it, so the loops run over positions, and each
    step handles this position in all images at once.
    """
    rest = np.ascontiguousarray(residuals.transpose(1, 2, 0)).astype(np.int16)
    height, width, _ = rest.shape
    plane = np.empty_like(rest)
    for i in range(height):
        for j in range(width):
            if i and j:
                left = plane[i, j - 1]
                up = plane[i - 1, j]
                # Clipping a + b − c to [min(a, b), max(a, b)] gives the median of a, b, a + b − c.
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


def main() -> None:
    """Convert the named sets, or all of a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the packed sets")
    parser.add_argument("out", type=Path, help="folder for the .npz files")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to convert; default: all")
    given = parser.parse_args()
    available = packed_names(given.folder)
    for name in given.names:
        if name not in available:
            sys.exit(f"{given.folder}: no packed set '{name}'; it has {', '.join(available)}")
    if not available:
        sys.exit(f"{given.folder}: it holds no packed sets (NAME{META})")
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names or available:
        try:
            arrays = read_packed_set(given.folder, name)
        except PackedSetError as error:
            sys.exit(str(error))
        target = given.out / f"{name}.npz"
        np.savez(target, **arrays)
        print(f"{target}: {len(arrays['x_train'])} training, {len(arrays['x_test'])} test images")


if __name__ == "__main__":
    main()
