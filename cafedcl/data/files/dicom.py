"""DICOM images: grey values after the file's own rescaling, or colours. Needs pydicom."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from cafedcl.core.imports import optional
from cafedcl.data.grey_values import GreyValues

ENDINGS = (".dcm", ".dicom")
PREAMBLE = 128
MAGIC = b"DICM"
DIRECTORY = "dicomdir"
"""The file that lists the images of a medium; it begins like an image and holds none."""


def is_dicom(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a DICOM file."""
    return head[PREAMBLE : PREAMBLE + len(MAGIC)] == MAGIC


def begins_as_dicom(path: Path) -> bool:
    """Return whether a file is a DICOM file, which often has no ending."""
    if path.name.lower() == DIRECTORY:
        return False
    try:
        with path.open("rb") as file:
            return is_dicom(file.read(PREAMBLE + len(MAGIC)))
    except OSError:
        return False


def read_dicom(file: BinaryIO) -> GreyValues | Image.Image:
    """Return an image's grey values, or a colour image; raise an error if it is neither."""
    pydicom = optional("pydicom", "dicom", "reading DICOM images")
    content = pydicom.dcmread(file)
    if "PixelData" not in content:
        raise ValueError("a DICOM file without an image")
    frames = int(content.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise ValueError(f"a DICOM file of {frames} frames; save each frame as a file of its own")
    pixels = pydicom.pixels.pixel_array(content)
    if content.get("PhotometricInterpretation") == "PALETTE COLOR":
        # The pixels are rows of a table of colours, with 8 or 16 bits each.
        colours = pydicom.pixels.apply_color_lut(pixels, content)[:, :, :3]
        upper = colours if colours.dtype == np.uint8 else colours >> 8
        return Image.fromarray(upper.astype(np.uint8))
    if pixels.ndim == 3:
        # pixel_array turns other colour spaces into RGB.
        if pixels.dtype != np.uint8 or pixels.shape[2] != 3:
            raise ValueError("a DICOM colour image that is not 8-bit RGB")
        return Image.fromarray(pixels)
    values = pydicom.pixels.apply_modality_lut(pixels, content)
    inverted = content.get("PhotometricInterpretation") == "MONOCHROME1"
    return GreyValues(np.asarray(values), _own_window(content), inverted)


def _own_window(content: Any) -> tuple[float, ...]:
    """Return the lowest and the highest value of the file's window; of several, the first."""
    centre = _first(content.get("WindowCenter"))
    width = _first(content.get("WindowWidth"))
    if centre is None or width is None or width < 1 or not math.isfinite(centre + width):
        return ()
    # The standard's linear function (PS3.3, C.11.2.1.2): black at and below the first value, white
    # above the second.
    return centre - 0.5 - (width - 1) / 2, centre - 0.5 + max(width - 1, 1) / 2


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return float(value[0]) if len(value) else None
    # pydicom's MultiValue is a sequence; a single number is not.
    return float(value)
