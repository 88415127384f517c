"""Convolutions of few channels as matrix products, for compiled steps on tensor cores."""

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.engine.kernels import is_plain

MULTIPLE = 8
"""Tensor cores take numbers of 16 bits in multiples of so many."""


class Patches(nn.Conv2d):
    """A convolution as one product of its filters with all patches of the images.

    Libraries have no fast kernels for one channel or three, which makes the first layer the slowest of a small network.
    Compiled, the patches are laid out by the kernel that gathers the images, and the bias is added by the product.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        assert not isinstance(self.padding, str)
        (high, wide), (down, right) = self.padding, self.stride
        patches = F.pad(x, (wide, wide, high, high)).unfold(2, self.kernel_size[0], down)
        patches = patches.unfold(3, self.kernel_size[1], right).permute(0, 2, 3, 4, 5, 1).flatten(3)
        filters = self.weight.permute(0, 2, 3, 1).flatten(1)
        more = (0, -filters.shape[1] % MULTIPLE)
        return F.linear(F.pad(patches, more), F.pad(filters, more), self.bias).permute(0, 3, 1, 2)


def adapt(network: nn.Module) -> None:
    """Let a network's convolutions of few channels run as products."""
    for module in network.modules():
        if type(module) is nn.Conv2d and module.in_channels < MULTIPLE and is_plain(module):
            module.__class__ = Patches
