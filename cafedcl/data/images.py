"""Reading image files."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose
from torch import Tensor

from cafedcl.core.arrays import Bytes, Ints
from cafedcl.core.contract import Shape
from cafedcl.core.environment import total_memory
from cafedcl.core.errors import CafedclError

Opener = Path | Callable[[], BinaryIO]
"""An image file, or a function that opens one."""

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
GREY = ("1", "L", "LA", "I;16", "I;16L", "I;16B", "I;16N")
ORIENTATION = 0x0112
"""The EXIF tag of how the camera was held."""
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


def read_images(paths: Sequence[Path], shape: Shape) -> Tensor:
    """Read image files as uint8 (N, channels, height, width), as grey or RGB, resized."""
    channels, height, width = shape
    images = []
    for path in paths:
        try:
            with Image.open(path) as file:
                pixels = torch.from_numpy(to_pixels(file, (width, height), grey=channels == 1))
        except UnidentifiedImageError:
            raise CafedclError(f"{path}: not an image that can be read") from None
        except OSError as error:
            raise CafedclError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise CafedclError(f"{path}: cannot be read: {error}") from None
        images.append(pixels.permute(2, 0, 1))
    return torch.stack(images)


def to_pixels(
    image: Image.Image, size: tuple[int, int], *, grey: bool, crop: bool = False
) -> Bytes:
    """Return an image upright as uint8 (height, width, channels), resized to (width, height).

    With ``crop``, it is cropped to the middle square first.
    """
    turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels; save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):
        # Pillow's own conversion has clipped in some versions and shifted in others.
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    image = image.convert("L" if grey else "RGB")
    if turn is not None:
        image = image.transpose(turn)
    if crop:
        side = min(image.size)
        width, height = image.size
        left = (width - side) // 2
        top = (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if image.size != size:
        image = image.resize(size, Resampling.LANCZOS)
    pixels = np.array(image, dtype=np.uint8)
    return pixels[:, :, None] if grey else pixels


@dataclass(frozen=True)
class DecodedImages:
    """Images as uint8 (N, height, width, channels), and why others could not be decoded."""

    pixels: Bytes
    kept: Ints
    """Indices of the decoded images."""
    bad: dict[int, str]
    """Reasons by index."""


def decode_images(openers: Sequence[Opener], size: int = 0, *, crop: bool = False) -> DecodedImages:
    """Decode images to one size: ``size`` squared, or the most common one if 0.

    They are grey if all files are, else RGB.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, warnings.catch_warnings():
        # Pillow warns of very large images, which are resized like any other. It raises an error
        # for those beyond its limit.
        warnings.simplefilter("ignore")
        heads = list(pool.map(_size_and_grey, openers))
        bad = {i: head for i, head in enumerate(heads) if isinstance(head, str)}
        good = [(i, head) for i, head in enumerate(heads) if not isinstance(head, str)]
        if not good:
            no_pixels = np.zeros((0, size, size, 1), np.uint8)
            return DecodedImages(no_pixels, np.zeros(0, np.int64), bad)
        if size:
            width = size
            height = size
        else:
            sizes = Counter(head[0] for _, head in good)
            # The most common size; the smaller one of two that are equally common.
            width, height = min(sizes, key=lambda wh: (-sizes[wh], wh))
        grey = all(head[1] for _, head in good)
        pixels = _room_for((len(openers), height, width, 1 if grey else 3))

        def fill(i: int) -> str | None:
            try:
                with _open(openers[i]) as image:
                    pixels[i] = to_pixels(image, (width, height), grey=grey, crop=crop)
            except Exception as error:  # a broken image can raise anything
                return _reason(error)
            return None

        for (i, _), problem in zip(good, pool.map(fill, [i for i, _ in good]), strict=True):
            if problem is not None:
                bad[i] = problem
    kept = np.array([i for i in range(len(openers)) if i not in bad], dtype=np.int64)
    # Indexing copies, which is not needed when all images are good.
    return DecodedImages(pixels[kept] if bad else pixels, kept, dict(sorted(bad.items())))


def _open(opener: Opener) -> Image.Image:
    return Image.open(opener if isinstance(opener, Path) else opener())


def _size_and_grey(opener: Opener) -> tuple[tuple[int, int], bool] | str:
    """Return an image's upright size and whether it is grey, or what is wrong with it."""
    try:
        with _open(opener) as image:
            turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            width, height = image.size
            size = (height, width) if turned else (width, height)
            return size, image.mode in GREY
    except Exception as error:  # a broken image can raise anything
        return _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    # One line, whatever line breaks the error has.
    return " ".join(text.split())


def _room_for(shape: tuple[int, ...]) -> Bytes:
    """Return an array for images; raise MemoryError if it is larger than the memory.

    NumPy alone would not: memory is only taken when pixels are written, and Linux then ends the
    process.
    """
    if math.prod(shape) > total_memory():
        raise MemoryError
    return np.empty(shape, np.uint8)


def resize_images(pixels: Bytes, size: int) -> Bytes:
    """Return images (N, channels, height, width) resized to ``size`` squared."""
    n, channels = pixels.shape[:2]
    out = _room_for((n, channels, size, size))
    for i in range(n):
        for c in range(channels):
            out[i, c] = np.asarray(
                Image.fromarray(pixels[i, c]).resize((size, size), Resampling.LANCZOS)
            )
    return out
