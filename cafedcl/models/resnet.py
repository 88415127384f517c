"""ResNets with GroupNorm: for small images with the CIFAR stem (3×3, stride 1, no max-pool), for
large ones with that of ImageNet.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.models.base import Encoder, average_pool

GROUPS = 2


class Norm(nn.GroupNorm):
    """Group normalisation and what follows it in a ResNet, which an engine can fuse."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, *, relu: bool = False) -> Tensor:
        """Return the normalised images, perhaps plus a shortcut, perhaps after a ReLU."""
        y = super().forward(x)
        if shortcut is not None:
            y = y + shortcut
        return F.relu(y) if relu else y


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = Norm(GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = Norm(GROUPS, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.add_module("conv", nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.add_module("norm", Norm(GROUPS, outputs))

    def forward(self, x: Tensor, *, relu: bool) -> Tensor:
        """Return the block's sum, perhaps after its ReLU."""
        inner = self.norm1(self.conv1(x), relu=True)
        return self.norm2(self.conv2(inner), self.shortcut(x), relu=relu)  # type: ignore[no-any-return]


class ResNet(Encoder):
    """A stem and several stages of blocks; every stage but the first halves the image."""

    bases: ClassVar[tuple[int, ...]]
    """The channels of every stage at width 1."""
    depth: ClassVar[int]
    """Blocks per stage."""

    def __init__(self, shape: Shape, width: float = 1.0) -> None:
        super().__init__()
        # Rounded to a multiple of the number of groups.
        channels = [max(GROUPS, GROUPS * round(base * width / GROUPS)) for base in self.bases]
        self.dim = channels[-1]
        self.conv = self.stem(shape[0], channels[0])
        self.norm = Norm(GROUPS, channels[0])
        self.blocks = nn.ModuleList()
        inputs = channels[0]
        for stage, outputs in enumerate(channels):
            self.blocks.append(Block(inputs, outputs, 2 if stage else 1))
            for _ in range(self.depth - 1):
                self.blocks.append(Block(outputs, outputs, 1))
            inputs = outputs

    @staticmethod
    def stem(inputs: int, outputs: int) -> nn.Conv2d:
        """Return the first convolution."""
        return nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)

    def pooled_stem(self, x: Tensor, *, relu: bool) -> Tensor:
        """Return the output of the stem, perhaps after its ReLU."""
        return self.norm(self.conv(x), relu=relu)  # type: ignore[no-any-return]

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the levels: the stem and the stages, before their ReLU."""
        levels = [self.pooled_stem(x, relu=False)]
        for begin in range(0, len(self.blocks), self.depth):
            level = levels[-1]
            for block in self.blocks[begin : begin + self.depth]:
                level = block(F.relu(level), relu=False)
            levels.append(level)
        return levels

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of the last stage, after its ReLU.

        No level is needed before its ReLU here, so each ReLU is left to the normalisation before
        it, and `stages` is not called.
        """
        x = self.pooled_stem(x, relu=True)
        for block in self.blocks:
            x = block(x, relu=True)
        return average_pool(x)


class ResNet18(ResNet):
    """The paper's encoder: 11,168,832 parameters for RGB images at width 1."""

    bases = (64, 128, 256, 512)
    depth = 2


class ResNet18Large(ResNet18):
    """ResNet-18 for images above 64 pixels: a 7×7 convolution of stride 2, then max-pooling."""

    @staticmethod
    def stem(inputs: int, outputs: int) -> nn.Conv2d:
        """Return the first convolution."""
        return nn.Conv2d(inputs, outputs, 7, 2, 3, bias=False)

    def pooled_stem(self, x: Tensor, *, relu: bool) -> Tensor:
        """Return the output of the stem, perhaps after its ReLU."""
        # Max-pooling before the ReLU gives the same result as after it.
        return F.max_pool2d(super().pooled_stem(x, relu=relu), 3, 2, 1)


class ResNet8(ResNet):
    """The encoder of CReFF, which papers on federated long tails use: 256 features."""

    bases = (64, 128, 256)
    depth = 1
