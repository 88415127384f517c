"""Small encoders: the usual 4-layer CNN of federated learning, a CNN for 8×8 images, an MLP."""

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.models.base import Encoder


class CNN4(Encoder):
    """Two 5×5 convolutions with 2×2 max-pooling, and a fully connected layer of 512.

    The method's head is the fourth layer. It is the CNN of PFLlib and most federated-learning
    papers, without padding: the fully connected layer has 1,600 inputs for images of 32×32, and
    1,024 for 28×28.
    """

    channels_last = True

    def __init__(self, shape: Shape, width: float) -> None:
        super().__init__()
        channels = (_scaled_width(32, width), _scaled_width(64, width))
        self.dim = _scaled_width(512, width)
        self.conv1 = nn.Conv2d(shape[0], channels[0], 5)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        _require_size(shape, 16)
        # Each convolution takes 4 pixels off, and each pooling halves the rest.
        left = [((pixels - 4) // 2 - 4) // 2 for pixels in shape[1:]]
        self.full = nn.Linear(channels[1] * left[0] * left[1], self.dim)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the three layers' outputs before their ReLU."""
        first = self.conv1(x)
        second = self.conv2(self._pool_and_relu(first))
        return [first, second, self.full(self._pool_and_relu(second).flatten(1))]

    @staticmethod
    def _pool_and_relu(x: Tensor) -> Tensor:
        # Max-pooling before the ReLU gives the same result as after it, with a quarter of the work.
        return F.relu(F.max_pool2d(x, 2))


class CNN8(Encoder):
    """Two 3×3 convolutions of stride 2 and a fully connected layer, for images of 8×8."""

    def __init__(self, shape: Shape, width: float) -> None:
        super().__init__()
        channels = (_scaled_width(16, width), _scaled_width(32, width))
        self.dim = _scaled_width(64, width)
        self.conv1 = nn.Conv2d(shape[0], channels[0], 3, 2, 1)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, 2, 1)
        # Two convolutions of stride 2 quarter each side, rounded up.
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
        hidden = _scaled_width(200, width)
        self.dim = _scaled_width(64, width)
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], hidden)
        self.second = nn.Linear(hidden, self.dim)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return both layers' outputs before their ReLU."""
        first = self.first(x.flatten(1))
        return [first, self.second(F.relu(first))]


def _scaled_width(base: int, width: float) -> int:
    return max(1, round(base * width))


def _require_size(shape: Shape, pixels: int) -> None:
    if min(shape[1:]) < pixels:
        raise CafedclError(
            f"images of {shape[1]}×{shape[2]} are too small; the minimum is {pixels}×{pixels}"
        )
