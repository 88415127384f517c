"""Convolutions of few channels as matrix products (im2col), for compiled steps on tensor cores."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.engine.cpu.grouped_conv import is_plain

MULTIPLE = 8
"""Tensor cores take 16-bit numbers in multiples of this many."""


class Im2ColConv(nn.Conv2d):
    """A convolution as one product of its filters with all patches of the images.

    Libraries have no fast kernels for one or three channels, which makes the first layer the
    slowest of a small network. If the gradient of the input is needed, the input is not an image,
    and the library's convolution is used.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        if x.requires_grad:
            return super().forward(x)
        filters = self.weight.permute(0, 2, 3, 1).flatten(2)
        filters = F.pad(filters, (0, -filters.shape[2] % MULTIPLE)).flatten(1)
        product = F.linear(self.patches(self.strips(x)), filters, self.bias)
        return product.permute(0, 3, 1, 2)

    def strips(self, x: Tensor) -> Tensor:
        """Return the pixels under one row of the filter, (images, rows, columns, width·channels).

        The last axis is padded to a multiple.
        """
        assert not isinstance(self.padding, str)
        vertical, horizontal = self.padding
        stride = self.stride[1]
        width = self.kernel_size[1]
        padding = (0, 0, horizontal, horizontal, vertical, vertical)
        pixels = F.pad(x.permute(0, 2, 3, 1), padding).contiguous()
        images, rows, columns, channels = pixels.shape
        row = columns * channels
        strip = width * channels
        shape = (images, rows, (columns - width) // stride + 1, strip)
        # Neighbouring strips overlap: a view with these strides gives them without a copy.
        strips = pixels.as_strided(shape, (rows * row, row, stride * channels, 1))
        return F.pad(strips, (0, -strip % MULTIPLE)).contiguous()

    def patches(self, strips: Tensor) -> Tensor:
        """Return the strips under a filter, one after another, (images, rows, columns, h·strip)."""
        # Eight bytes at a time: the copy costs mostly the computation of addresses.
        pieces = strips.view(torch.int64)
        height = self.kernel_size[0]
        stride = self.stride[0]
        images, rows, columns, strip = pieces.shape
        row = columns * strip
        shape = (images, (rows - height) // stride + 1, columns, height, strip)
        patches = pieces.as_strided(shape, (rows * row, stride * row, strip, row, 1))
        return patches.flatten(3).view(strips.dtype)


def use_im2col(network: nn.Module) -> None:
    """Turn a network's convolutions of few channels into products."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.in_channels < MULTIPLE and is_plain(module):
            module.__class__ = Im2ColConv
