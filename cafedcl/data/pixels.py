"""Pixels of arrays as bytes, by one rule for all arrays of a data set."""

import math
from collections.abc import Mapping

import numpy as np

from cafedcl.core.arrays import Array, Bytes
from cafedcl.core.errors import CafedclError
from cafedcl.data.grey_values import to_levels

HALF_LEVEL = 0.5 / 255
"""Half a level of 8 bits: rounding to bytes removes an error of this size."""
LEAST_OF_BYTES = 32.0
"""Below this maximum, fractions do not count as values 0 to 255: too few levels would be left."""
SHARE_OF_BYTES = 0.01
"""The share of the pixels that must exceed 1 in values 0 to 255; a few outliers prove nothing."""
WHAT_TO_DO = (
    "save the images as uint8, or as fractions 0 to 1, or set data.window = LOW,HIGH to say which "
    "values are black and white"
)


def to_bytes(
    parts: Mapping[str, Array], where: object, limits: tuple[float, ...] = ()
) -> dict[str, Bytes]:
    """Return the pixels of all parts of a data set, such as training and test, as uint8.

    Either all parts hold values 0 to 255, which stay as they are, or all hold fractions 0 to 1,
    which are scaled. Values that exceed these limits by a rounding error are clipped. Anything else
    is refused, because a guess would silently destroy the images. With ``limits``, the lowest and
    the highest value are known.
    """
    if limits:
        return {name: _windowed(pixels, name, limits, where) for name, pixels in parts.items()}
    readings = {name: _possible_scales(pixels, name, where) for name, pixels in parts.items()}
    common = set.intersection(*readings.values())
    if not common:
        ranges = " and ".join(
            f"{name} pixels are {x.dtype} from {float(x.min()):g} to {float(x.max()):g}"
            for name, x in parts.items()
        )
        raise CafedclError(
            f"{where}: {ranges}, which cannot be read by one rule; {WHAT_TO_DO}, in every part"
        )
    # Zeros fit both; the result is the same.
    scale = max(common)
    return {name: _scaled(pixels, scale) for name, pixels in parts.items()}


def _possible_scales(x: Array, part: str, where: object) -> set[int]:
    """Return the factors that can turn pixels into bytes: 1, 255 or both."""
    if x.dtype == np.uint8:
        return {1}
    if x.dtype == np.bool_:
        return {255}
    if x.dtype.kind not in "iuf":
        raise CafedclError(
            f"{where}: {part} pixels are of type {x.dtype}; expected numbers, best uint8"
        )
    if not x.size:
        return {1, 255}
    low = float(x.min())
    high = float(x.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CafedclError(
            f"{where}: {part} pixels run from {low:g} to {high:g}; "
            "replace NaN and infinite values, or remove their images"
        )
    problem = f"{where}: {part} pixels run from {low:g} to {high:g}; expected 0 to 255, or "
    if x.dtype.kind in "iu":
        if low < 0 or high > 255:
            raise CafedclError(f"{problem}fractions 0 to 1; {WHAT_TO_DO}")
        return {1}
    if low < -HALF_LEVEL and high < LEAST_OF_BYTES:
        raise CafedclError(
            f"{problem}fractions 0 to 1; if they are normalised, undo that, then {WHAT_TO_DO}"
        )
    if high <= 1 + HALF_LEVEL:
        return {255} if high > 0 else {1, 255}
    if low < -0.5 or high > 255.5:
        raise CafedclError(f"{problem}fractions 0 to 1; {WHAT_TO_DO}")
    # Whole numbers lose nothing, however few levels they use.
    if np.array_equal(x, np.round(x)):
        return {1}
    if high >= LEAST_OF_BYTES and np.count_nonzero(x > 1) >= SHARE_OF_BYTES * x.size:
        return {1}
    raise CafedclError(f"{problem}fractions 0 to 1, and these could be either; {WHAT_TO_DO}")


def _windowed(x: Array, part: str, limits: tuple[float, ...], where: object) -> Bytes:
    if x.dtype.kind not in "iuf" or x.dtype == np.uint8:
        raise CafedclError(
            f"{where}: data.window: {part} pixels are {x.dtype}, which needs no window; "
            "leave it out"
        )
    return to_levels(x, limits)


def _scaled(x: Array, scale: int) -> Bytes:
    if x.dtype == np.uint8:
        return x
    if x.dtype == np.bool_:
        return x.astype(np.uint8) * np.uint8(255)
    # 16-bit floats do not hold 255 times a fraction exactly.
    precise = x.astype(np.float32) if x.dtype == np.float16 else x
    return np.clip(np.round(precise * scale), 0, 255).astype(np.uint8)
