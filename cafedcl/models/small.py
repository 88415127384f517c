"""The small encoders: the 4-layer CNN of the federated-learning literature, a CNN for 8×8 images,
an MLP.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.models.base import Encoder


class CNN4(Encoder):
    """Two 5×5 convolutions without padding, each with 2×2 max-pooling, and one fully connected
    layer of 512.

    The method's head is the fourth layer. It is the CNN of PFLlib and most federated-learning
    papers: 1,600 numbers go into the fully connected layer for images of 32×32, 1,024 for 28×28.
    """

    def __init__(self, shape: Shape, width: float) -> None:
        super().__init__()
        channels = (_wide(32, width), _wide(64, width))
        self.dim = _wide(512, width)
        self.conv1 = nn.Conv2d(shape[0], channels[0], 5)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        _at_least(shape, 16)
        left = [((pixels - 4) // 2 - 4) // 2 for pixels in shape[1:]]
        self.full = nn.Linear(channels[1] * left[0] * left[1], self.dim)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the three layers' outputs before their ReLU."""
        first = self.conv1(x)
        second = self.conv2(self._shrunk(first))
        return [first, second, self.full(self._shrunk(second).flatten(1))]

    @staticmethod
    def _shrunk(x: Tensor) -> Tensor:
        """Pooling comes first: that gives the same numbers as a ReLU before it, from a quarter of
        the work.
        """
        return F.relu(F.max_pool2d(x, 2))


class CNN8(Encoder):
    """Two 3×3 convolutions of stride 2 and one fully connected layer: small enough for 8×8 images."""

    def __init__(self, shape: Shape, width: float) -> None:
        super().__init__()
        channels = (_wide(16, width), _wide(32, width))
        self.dim = _wide(64, width)
        self.conv1 = nn.Conv2d(shape[0], channels[0], 3, 2, 1)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, 2, 1)
        self.full = nn.Linear(channels[1] * -(-shape[1] // 4) * -(-shape[2] // 4), self.dim)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the three layers' outputs before their ReLU."""
        first = self.conv1(x)
        second = self.conv2(F.relu(first))
        return [first, second, self.full(F.relu(second).flatten(1))]


class MLP(Encoder):
    """Two fully connected layers."""

    def __init__(self, shape: Shape, width: float) -> None:
        super().__init__()
        hidden = _wide(200, width)
        self.dim = _wide(64, width)
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], hidden)
        self.second = nn.Linear(hidden, self.dim)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return both layers' outputs before their ReLU."""
        first = self.first(x.flatten(1))
        return [first, self.second(F.relu(first))]


def _wide(base: int, width: float) -> int:
    return max(1, round(base * width))


def _at_least(shape: Shape, pixels: int) -> None:
    if min(shape[1:]) < pixels:
        raise CafedclError(
            f"images of {shape[1]}×{shape[2]} are too small for it; the least is {pixels}×{pixels}"
        )
