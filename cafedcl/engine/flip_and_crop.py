"""Random flips and crops of training batches: what is drawn, and what the draws do to images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.sections import TrainOptions
from cafedcl.core.tensors import Tensors


def draw_augmentation(images: int, options: TrainOptions) -> Tensors:
    """Draw the flips and crops of a batch.

    They come from PyTorch's CPU generator, so that every device and engine gets the same ones.
    """
    draws: Tensors = {}
    if options.flip:
        draws["flip"] = torch.rand(images) < 0.5
    if options.crop:
        draws["crop"] = torch.randint(0, 2 * options.crop + 1, (2, images)).T
    return draws


def flip_and_crop(x: Tensor, draws: Tensors, options: TrainOptions) -> Tensor:
    """Return normalised images, each flipped and cropped from a padded copy as was drawn.

    Padding is zero, which is the mean of normalised images.
    """
    if "flip" in draws:
        x = torch.where(draws["flip"][:, None, None, None], x.flip(3), x)
    if "crop" in draws:
        height, width = x.shape[2:]
        padded = F.pad(x, [options.crop] * 4)
        down = draws["crop"][:, :1]
        right = draws["crop"][:, 1:]
        # One gather crops every image at its own place.
        rows = (down + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (right + torch.arange(width, device=x.device))[:, None, None, :]
        image = torch.arange(len(x), device=x.device)[:, None, None, None]
        channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        x = padded[image, channel, rows, columns]
    return x
