"""Augmentation of training batches, on the device, from the client's own stream of random numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config import TrainOptions


def augment(x: Tensor, options: TrainOptions) -> Tensor:
    """Return a batch of normalised images, each flipped left to right by chance and cropped from a padded copy.

    Padding is zero, which is the mean of normalised images. Draws are made on the CPU, so that every device sees the
    same ones.
    """
    if options.flip:
        chosen = (torch.rand(len(x)) < 0.5).to(x.device)
        x = torch.where(chosen[:, None, None, None], x.flip(3), x)
    if options.crop:
        height, width = x.shape[2:]
        padded = F.pad(x, [options.crop] * 4)
        down, right = torch.randint(0, 2 * options.crop + 1, (2, len(x), 1)).to(x.device)
        rows = (down + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (right + torch.arange(width, device=x.device))[:, None, None, :]
        image = torch.arange(len(x), device=x.device)[:, None, None, None]
        channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        x = padded[image, channel, rows, columns]
    return x
