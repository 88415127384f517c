"""Small pictures of images, for people to look at."""

import torch.nn.functional as F
from torch import Tensor

LARGEST = 64
"""Height and width of a thumbnail, at most."""


def thumbnails(x: Tensor) -> Tensor:
    """Return uint8 images (N, channels, height, width), made smaller if they are large."""
    height, width = x.shape[2:]
    factor = LARGEST / max(height, width)
    if factor >= 1 or not len(x):
        return x
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    small: Tensor = F.interpolate(x.float(), size=size, mode="area")
    return small.round().clamp(0, 255).to(x.dtype)
