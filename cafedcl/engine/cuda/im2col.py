"""Convolutions of few channels as matrix products, for compiled steps on tensor cores."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.engine.cpu.grouped_conv import is_plain

MULTIPLE = 8
"""Tensor cores take numbers of 16 bits in multiples of so many."""


class Im2ColConv(nn.Conv2d):
    """A convolution as one product of its filters with all patches of the images.

    Libraries have no fast kernels for one channel or three, which makes the first layer the slowest
    of a small network. Where a gradient is wanted of its input, which is then no image, it is the
    library's convolution.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        if x.requires_grad:
            return super().forward(x)
        filters = self.weight.permute(0, 2, 3, 1).flatten(2)
        filters = F.pad(filters, (0, -filters.shape[2] % MULTIPLE)).flatten(1)
        return F.linear(self.patches(self.strips(x)), filters, self.bias).permute(0, 3, 1, 2)

    def strips(self, x: Tensor) -> Tensor:
        """Return what lies under a row of the filter: (images, rows, columns, w·C), padded to a
        multiple.
        """
        assert not isinstance(self.padding, str)
        (high, wide) = self.padding
        right = self.stride[1]
        broad = self.kernel_size[1]
        pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, wide, wide, high, high)).contiguous()
        images, rows, columns, channels = pixels.shape
        row = columns * channels
        reach = broad * channels
        strips = pixels.as_strided(
            (images, rows, (columns - broad) // right + 1, reach),
            (rows * row, row, right * channels, 1),
        )
        return F.pad(strips, (0, -reach % MULTIPLE)).contiguous()

    def patches(self, strips: Tensor) -> Tensor:
        """Return the strips under a filter, one after another: (images, rows, columns, h·strip).

        They are copied eight bytes at a time, because what the copy costs is finding where each
        piece lies.
        """
        pieces = strips.view(torch.int64)
        tall = self.kernel_size[0]
        down = self.stride[0]
        images, rows, columns, strip = pieces.shape
        row = columns * strip
        patches = pieces.as_strided(
            (images, (rows - tall) // down + 1, columns, tall, strip),
            (rows * row, down * row, strip, row, 1),
        )
        return patches.flatten(3).view(strips.dtype)


def use_im2col(network: nn.Module) -> None:
    """Let a network's convolutions of few channels run as products."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.in_channels < MULTIPLE and is_plain(module):
            module.__class__ = Im2ColConv
