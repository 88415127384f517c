"""Reading image files."""

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from cafedcl.core.steps import tracked
from cafedcl.data.files import dicom
from cafedcl.data.grey_values import DEEP_MODES, GreyValues, Window, common_window

Opener = Path | Callable[[], BinaryIO]
"""An image file, or a function that opens one."""

ENDINGS = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp",
    *dicom.ENDINGS,
)  # fmt: skip
SYSTEM_NAMES = (
    "__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found", "Thumbs.db",
    "desktop.ini",
)  # fmt: skip
"""Folders and files that macOS, Synology, Windows and Linux add."""
GREY = ("1", "L", "LA")
SIXTEEN_BITS = re.compile(r";16[BLN]")
"""Part of Pillow's name for channels of 16 bits in a file. BGR;16 has 16 bits for all three."""
PHOTOMETRIC = 0x0106
WHITE_IS_ZERO = 0
"""A TIFF tag, and its value where low values are bright."""
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
SIDEWAYS = (5, 6, 7, 8)
"""The values of the tag that exchange width and height."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or made by the system."""
    return name.startswith(".") or name in SYSTEM_NAMES


def is_image_file(path: Path) -> bool:
    """Return whether a file in a folder counts as an image: by its ending, or as DICOM.

    A broken link counts too, so that it is reported instead of overlooked.
    """
    named = path.name.lower().endswith(ENDINGS)
    if not path.is_file():
        return named and path.is_symlink() and not path.exists()
    return named or dicom.begins_as_dicom(path)


def read_images(paths: Sequence[Path], shape: Shape, window: Window | None = None) -> Tensor:
    """Read image files as uint8 (N, channels, height, width), as grey or RGB, resized.

    ``window`` is that of the run for images with more than 8 bits.
    """
    return torch.stack([read_image(path, shape, window or Window())[0] for path in paths])


def read_image(path: Path, shape: Shape, window: Window) -> tuple[Tensor, bool]:
    """Read an image file as `read_images` does; also return whether a window made it bytes."""
    channels, height, width = shape
    try:
        with open_image(path) as opened:
            deep = isinstance(opened, GreyValues)
            image = _as_bytes(opened, window)
            pixels = torch.from_numpy(to_pixels(image, (width, height), grey=channels == 1))
    except UnidentifiedImageError:
        raise CafedclError(f"{path}: not an image that can be read") from None
    except CafedclError:
        # Nothing is wrong with the image: a package is missing.
        raise
    except Exception as error:  # a broken image can raise anything
        raise CafedclError(f"{path}: cannot be read: {_reason(error)}") from None
    return pixels.permute(2, 0, 1), deep


def to_pixels(
    image: Image.Image, size: tuple[int, int], *, grey: bool, crop: bool = False
) -> Bytes:
    """Return an image upright as uint8 (height, width, channels), resized to (width, height).

    With ``crop``, it is cropped to the middle square first.
    """
    # A run has grey images of colour files only by data.colours, which comes after resizing.
    image = _upright(image)
    image = image.convert("L" if grey and image.mode in GREY else "RGB")
    if crop:
        side = min(image.size)
        width, height = image.size
        left = (width - side) // 2
        top = (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if image.size != size:
        image = image.resize(size, Resampling.LANCZOS)
    if grey:
        image = image.convert("L")
    pixels = np.array(image, dtype=np.uint8)
    return pixels[:, :, None] if grey else pixels


def _upright(image: Image.Image) -> Image.Image:
    """Return an image as its EXIF tag says that the camera was held."""
    # Pillow turns TIFF images itself when it loads them, and removes the tag.
    image.load()
    turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


@dataclass(frozen=True)
class DecodedImages:
    """Images as uint8 (N, height, width, channels), and why others could not be decoded."""

    pixels: Bytes
    kept: Ints
    """Indices of the decoded images."""
    bad: dict[int, str]
    """Reasons by index."""
    window: tuple[float, ...] = ()
    """The grey values that became black and white where files have more than 8 bits and no window
    of their own.
    """
    deep: int = 0
    """How many images had more than 8 bits per pixel."""
    own_window: int = 0
    """How many of these have a window of their own, which was used."""
    reduced: int = 0
    """How many colour images lost their lower 8 of 16 bits."""


@dataclass(frozen=True)
class Head:
    """What must be known about every image before the first one is decoded."""

    size: tuple[int, int]
    """Its upright width and height."""
    grey: bool
    deep: bool = False
    """Whether it has grey values of more than 8 bits."""
    range: tuple[float, float] | None = None
    """The range of these values, where it is needed."""
    own_window: bool = False
    """Whether the file's own window of these values is used."""
    reduced: bool = False
    """Whether it is a colour image of 16 bits, of which Pillow reads the upper 8."""


def decode_images(
    openers: Sequence[Opener],
    size: int = 0,
    *,
    crop: bool = False,
    window: Window | None = None,
) -> DecodedImages:
    """Decode images to one size: ``size`` squared, or the most common one if 0.

    They are grey if all files are, else RGB. Without limits in ``window``, those of images with
    more than 8 bits are the range of all of them.
    """
    given = window or Window()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, warnings.catch_warnings():
        # Pillow warns about very large images, which are resized like any other. It raises an error
        # for those beyond its limit.
        warnings.simplefilter("ignore")
        looked_at = pool.map(lambda opener: _head(opener, given), openers)
        heads = list(tracked(looked_at, "looking at the images", len(openers), "images"))
        bad = {i: head for i, head in enumerate(heads) if isinstance(head, str)}
        good = [(i, head) for i, head in enumerate(heads) if not isinstance(head, str)]
        if not good:
            no_pixels = np.zeros((0, size, size, 1), np.uint8)
            return DecodedImages(no_pixels, np.zeros(0, np.int64), bad)
        if size:
            width = size
            height = size
        else:
            sizes = Counter(head.size for _, head in good)
            # The most common size; the smaller one of two that are equally common.
            width, height = min(sizes, key=lambda wh: (-sizes[wh], wh))
        grey = all(head.grey for _, head in good)
        ranges = [head.range for _, head in good if head.range is not None]
        chosen = replace(given, limits=given.limits or common_window(ranges))
        pixels = _room_for((len(openers), height, width, 1 if grey else 3))

        def fill(i: int) -> str | None:
            try:
                with open_image(openers[i]) as opened:
                    image = _as_bytes(opened, chosen)
                    pixels[i] = to_pixels(image, (width, height), grey=grey, crop=crop)
            except Exception as error:  # a broken image can raise anything
                return _reason(error)
            return None

        problems = pool.map(fill, [i for i, _ in good])
        decoded = tracked(problems, f"decoding to {width}×{height}", len(good), "images")
        for (i, _), problem in zip(good, decoded, strict=True):
            if problem is not None:
                bad[i] = problem
    kept = np.array([i for i in range(len(openers)) if i not in bad], dtype=np.int64)
    # Indexing copies, which is not needed when all images are good.
    return DecodedImages(
        pixels[kept] if bad else pixels,
        kept,
        dict(sorted(bad.items())),
        chosen.limits,
        sum(head.deep for _, head in good),
        sum(head.own_window for _, head in good),
        sum(head.reduced for _, head in good),
    )


@contextmanager
def open_image(opener: Opener) -> Iterator[Image.Image | GreyValues]:
    """Open an image of any format; one of more than 8 bits is returned as its grey values."""
    with opener.open("rb") if isinstance(opener, Path) else opener() as file:
        is_dicom = dicom.is_dicom(file.read(dicom.PREAMBLE + len(dicom.MAGIC)))
        file.seek(0)
        if is_dicom:
            yield dicom.read_dicom(file)
            return
        with Image.open(file) as image:
            frames = getattr(image, "n_frames", 1)
            # The JPEG of a phone may also hold a preview; its first frame is the image.
            if frames > 1 and image.format in ("TIFF", "GIF", "PNG", "WEBP"):
                raise ValueError(
                    f"a {image.format} of {frames} pages or frames; save each as a file of its own"
                )
            if image.mode in DEEP_MODES:
                yield _grey_values(image)
            else:
                yield image


def _grey_values(image: Image.Image) -> GreyValues:
    """Return the values of a grey image of more than 8 bits as they are in the file."""
    # Pillow inverts TIFF images of 8 bits in which 0 is white, but not deeper ones.
    inverted = image.format == "TIFF" and image.getexif().get(PHOTOMETRIC) == WHITE_IS_ZERO
    maximum = _pnm_maximum(image)
    values = np.asarray(_upright(image))
    if maximum:
        # Pillow stretches them to 16 bits.
        values = np.round(values * (maximum / 65535)).astype(np.int32)
    return GreyValues(values, inverted=inverted)


def _pnm_maximum(image: Image.Image) -> int:
    """Return the largest value that a PGM or PPM file may have; 0 if Pillow reads it as it is."""
    if image.format != "PPM":
        return 0
    numbers = [it for it in _decoder_arguments(image) if isinstance(it, int) and it > 0]
    return numbers[-1] if numbers else 0


def _decoder_arguments(image: Image.Image) -> list[object]:
    """Return what Pillow's decoders are given: the names of the file's pixel types, and numbers."""
    given = [tile[3] for tile in getattr(image, "tile", ())]
    return [one for each in given for one in (each if isinstance(each, tuple) else (each,))]


def _as_bytes(opened: Image.Image | GreyValues, window: Window) -> Image.Image:
    return window.image(opened) if isinstance(opened, GreyValues) else opened


def _head(opener: Opener, window: Window) -> Head | str:
    """Return what must be known about an image, or what is wrong with it."""
    try:
        with open_image(opener) as image:
            if isinstance(image, GreyValues):
                found = image.range() if window.needs_range(image) else None
                own = window.prefers_own and bool(image.own_window)
                return Head(image.size, grey=True, deep=True, range=found, own_window=own)
            # The EXIF tags of a PNG may come last: reading them decodes the image.
            reduced = _has_16_bits(image)
            is_grey = image.mode in GREY
            if image.getexif().get(ORIENTATION, 1) in SIDEWAYS:
                image = _upright(image)
            return Head(image.size, is_grey, reduced=reduced)
    except CafedclError:
        # Nothing is wrong with the image: a package is missing.
        raise
    except Exception as error:  # a broken image can raise anything
        return _reason(error)


def _has_16_bits(image: Image.Image) -> bool:
    """Return whether a colour image has 16 bits per channel, which Pillow reads as 8."""
    modes = [it for it in _decoder_arguments(image) if isinstance(it, str)]
    return any(map(SIXTEEN_BITS.search, modes)) or _pnm_maximum(image) > 255


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    # One line, whatever line breaks the error has.
    return " ".join(text.split())


def _room_for(shape: tuple[int, ...]) -> Bytes:
    """Return an array for images; raise MemoryError if it is larger than the memory.

    NumPy alone would not: memory is only allocated when pixels are written, and Linux then kills
    the process.
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
