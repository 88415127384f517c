"""Conditional generator and discriminator, of DCGAN's size for images of 28 to 32 pixels."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

NOISE = 64
"""Dimension of the generator's noise."""
SMALLEST = 4
"""Pixels of the smallest feature maps."""
WIDEST = 128
"""Channels of the widest feature maps."""


def doublings(shape: tuple[int, int, int]) -> int:
    """Return how often feature maps double from at least 4 pixels to the image's size."""
    return max(1, math.floor(math.log2(max(shape[1:]) / SMALLEST)))


class Generator(nn.Module):
    """Makes an image in [−1, 1] from noise and a class."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        levels = doublings(shape)
        channels = [min(WIDEST, width * 2 ** (levels - level)) for level in range(levels + 1)]
        self.shape = shape
        self.first = channels[0]
        self.small = tuple(-(-pixels // 2**levels) for pixels in shape[1:])
        self.label = nn.Embedding(classes, NOISE)
        self.full = nn.Linear(2 * NOISE, self.first * self.small[0] * self.small[1])
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(channels))
        self.norms = nn.ModuleList(nn.GroupNorm(math.gcd(8, size), size) for size in channels[1:])
        self.last = nn.Conv2d(channels[-1], shape[0], 3, padding=1)

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        """Return images."""
        x = self.full(torch.cat([noise, self.label(y)], 1)).view(-1, self.first, *self.small)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))))
        # Cropped, because doubled maps can be larger than an image of, say, 28 pixels.
        return torch.tanh(self.last(x))[:, :, : self.shape[1], : self.shape[2]]


class Discriminator(nn.Module):
    """Gives an image and its claimed class a logit, which is positive for real images.

    It has spectral normalisation and a label projection.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        levels = doublings(shape)
        channels = [shape[0], *(min(WIDEST, width * 2**level) for level in range(levels + 1))]
        strides = [1, *[2] * levels]
        self.convs = nn.ModuleList(
            spectral_norm(nn.Conv2d(a, b, 2 + stride, stride, padding=1))
            for a, b, stride in zip(channels, channels[1:], strides, strict=False)
        )
        with torch.no_grad():
            size = self.maps(torch.zeros(1, *shape)).shape[1]
        self.full = spectral_norm(nn.Linear(size, WIDEST))
        self.logit = spectral_norm(nn.Linear(WIDEST, 1))
        self.label = spectral_norm(nn.Embedding(classes, WIDEST))

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature maps, flattened."""
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.2)
        return x.flatten(1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return logits."""
        features = F.leaky_relu(self.full(self.maps(x)), 0.2)
        logits: Tensor = self.logit(features)[:, 0] + (self.label(y) * features).sum(1)
        return logits


def jitter(x: Tensor, draws: Tensor) -> Tensor:
    """Augment images differentiably: contrast, brightness, translation and cutout.

    ``draws`` is six numbers in [0, 1) per image. Real and generated images are both augmented, so
    that a discriminator with few images cannot memorise them (Zhao et al., Differentiable
    augmentation for data-efficient GAN training).
    """
    scale = draws[:, 0, None, None, None] + 0.5
    x = x + 0.5 * (draws[:, 1, None, None, None] - 0.5)
    middle = x.mean((1, 2, 3), keepdim=True)
    x = (x - middle) * scale + middle
    moves = []
    holes = []
    for axis, pixels in enumerate(x.shape[2:]):
        reach = pixels // 8
        line = torch.arange(pixels, device=x.device)
        by = (draws[:, 2 + axis, None] * (2 * reach + 1)).floor() - reach
        # A translation as a matrix product, which is differentiable and has a fixed shape.
        moves.append(((line + by)[:, :, None] == line).to(x.dtype))
        at = (draws[:, 4 + axis, None] * pixels).floor()
        holes.append((line >= at) & (line < at + pixels // 4))
    x = moves[0][:, None] @ x @ moves[1][:, None].transpose(2, 3)
    return x * ~(holes[0][:, :, None] & holes[1][:, None])[:, None]
