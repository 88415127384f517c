"""Image files as tensors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from cafedcl.errors import CafedclError
from cafedcl.models.base import Shape


def read_images(paths: Sequence[Path], shape: Shape) -> Tensor:
    """Read image files as uint8 (N, channels, height, width), converted to grey or RGB and resized."""
    channels, height, width = shape
    images = []
    for path in paths:
        try:
            with Image.open(path) as file:
                image = file.convert("L" if channels == 1 else "RGB")
        except UnidentifiedImageError:
            raise CafedclError(f"{path}: not an image that can be read") from None
        except OSError as error:
            raise CafedclError(f"{path}: cannot be read: {error.strerror or error}") from None
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
        images.append(pixels[None] if channels == 1 else pixels.permute(2, 0, 1))
    return torch.stack(images)
