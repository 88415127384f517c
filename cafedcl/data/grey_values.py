"""Images whose grey values have more than 8 bits, and the window that turns them into bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from cafedcl.core.arrays import Array, Bytes

DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's names of grey images with 16 or 32 bits."""
OUTLIERS = 0.1
"""Percentage of an image's pixels at each end of its values that do not widen the window.
Otherwise a few pixels, such as a burnt-in mark, would leave hardly any grey levels for the rest.
"""


@dataclass(frozen=True)
class GreyValues:
    """An image's grey values as they were measured."""

    values: Array
    """(height, width)."""
    own_window: tuple[float, ...] = ()
    """The lowest and the highest value to show according to the file; empty if it has none."""
    inverted: bool = False
    """Whether low values are bright."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self.values.shape
        return width, height

    def range(self) -> tuple[float, float]:
        """Return the range of the values without outliers."""
        finite = self.values[np.isfinite(self.values)]
        if not finite.size:
            raise ValueError("no pixel is a finite number")
        low, high = np.percentile(finite, (OUTLIERS, 100 - OUTLIERS))
        return float(low), float(high)


@dataclass(frozen=True)
class Window:
    """Which grey values become black and white; those between get the 256 levels of a byte."""

    limits: tuple[float, ...] = ()
    """The lowest and the highest value; empty if no image needs them."""
    prefers_own: bool = True
    """Whether a file's own window takes precedence."""

    @classmethod
    def of(cls, limits: Sequence[float], option: str) -> "Window":
        """Return the window of a run: its limits, and the option data.window that it was given."""
        return cls(tuple(limits), prefers_own=option.startswith("auto"))

    @property
    def option(self) -> str:
        """The option data.window that reads images in the same way."""
        limits = ",".join(map(repr, map(float, self.limits)))
        return ":".join(filter(None, ("auto" if self.prefers_own else "", limits)))

    @property
    def is_chosen(self) -> bool:
        """Whether the run has limits of its own: images had more than 8 bits, or may have."""
        return bool(self.limits) and self != WHOLE_16_BITS

    def needs_range(self, grey: GreyValues) -> bool:
        """Return whether an image's values have to be looked at to find the limits."""
        return not self.limits and not (self.prefers_own and grey.own_window)

    def image(self, grey: GreyValues) -> Image.Image:
        """Return an image of 8 bits; raise ValueError where no limits are known."""
        limits = self.limits
        if self.prefers_own and grey.own_window:
            limits = grey.own_window
        if not limits:
            raise ValueError(
                "more than 8 bits per pixel, and no window says which values are black and white: "
                "the other images have 8 bits, or windows in their files; save this one like them, "
                "or train with data.window = LOW,HIGH"
            )
        pixels = to_levels(grey.values, limits)
        return Image.fromarray(255 - pixels if grey.inverted else pixels)


WHOLE_16_BITS = Window((0.0, 65535.0))
"""The window of cafedcl 0.2, which used the upper 8 of 16 bits."""


def to_levels(values: Array, limits: tuple[float, ...]) -> Bytes:
    """Return values as bytes: the first limit and below is 0, the second and above is 255."""
    low, high = limits
    scaled = (values.astype(np.float32) - low) * (255 / max(high - low, 1e-12))
    # NaN is not a grey value; it is shown as black.
    levels: Bytes = np.clip(np.round(np.nan_to_num(scaled, nan=0.0)), 0, 255).astype(np.uint8)
    return levels


def common_window(ranges: list[tuple[float, float]]) -> tuple[float, ...]:
    """Return the window that shows the values of all images; empty without any image."""
    if not ranges:
        return ()
    low = min(low for low, _ in ranges)
    high = max(high for _, high in ranges)
    # A window needs two different ends, even where all images are of one grey.
    return low, high if high > low else low + 1.0
