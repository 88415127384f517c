"""Convolutions of few channels as matrix products, for compiled steps on tensor cores."""

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.engine.kernels import is_plain

MULTIPLE = 8
"""Tensor cores take numbers of 16 bits in multiples of so many."""


class Patches(nn.Conv2d):
    """A convolution as one product of its filters with all patches of the images.

    Libraries have no fast kernels for one channel or three, which makes the first layer the slowest of a small network.
    Where a gradient is wanted of its input, which is then no image, it is the library's convolution.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        if x.requires_grad:
            return super().forward(x)
        assert not isinstance(self.padding, str)
        (high, wide), (down, right), (tall, broad) = self.padding, self.stride, self.kernel_size
        pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, wide, wide, high, high)).contiguous()
        images, rows, columns, channels = pixels.shape
        row = columns * channels
        patches = pixels.as_strided(
            (images, (rows - tall) // down + 1, (columns - broad) // right + 1, tall, broad * channels),
            (rows * row, down * row, right * channels, row, 1),
        )
        filters = self.weight.permute(0, 2, 3, 1).flatten(1)
        more = (0, -filters.shape[1] % MULTIPLE)
        return F.linear(F.pad(patches.flatten(3), more), F.pad(filters, more), self.bias).permute(0, 3, 1, 2)


def adapt(network: nn.Module) -> None:
    """Let a network's convolutions of few channels run as products."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.in_channels < MULTIPLE and is_plain(module):
            module.__class__ = Patches
