"""The gradient of a private step: the gradients of single images are clipped, then summed."""

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cafedcl.core.contract import Batch, Visit
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.tensors import Tensors
from cafedcl.functional.private_sums import clipped
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.models.base import Network

AT_A_TIME = 64
"""Images whose gradients are in memory at the same time; each is as large as the model."""


class LossOfOneImage(nn.Module):
    """A method's loss of a batch with one image, as a module whose weights can be replaced."""

    def __init__(self, network: Network, method: Method, visit: Visit) -> None:
        super().__init__()
        self.network = network
        self.method = method
        self.visit = visit

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the sum of the loss's terms."""
        batch = Batch(x[None], y[None], weight[None])
        terms = list(checked.loss(self.method, self.network, batch, self.visit).values())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def summed_gradients(
    flat: FlatNetwork, loss: LossOfOneImage, batch: Batch, longest: float
) -> Tensor:
    """Return the sum of all images' gradients, each clipped to ``longest``, as one vector.

    Adding or removing an image moves the sum by at most ``longest``.
    """
    weights = {f"network.{name}": leaf.detach() for name, leaf in flat.leaves.items()}

    def loss_of(values: Tensors, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return functional_call(loss, values, (x, y, weight))  # type: ignore[no-any-return]

    total = flat.vector.new_zeros(len(flat.vector))
    per_image = vmap(grad(loss_of), in_dims=(None, 0, 0, 0), randomness="different")
    images = (batch.x, batch.y, batch.weight)
    parts = zip(*(part.split(AT_A_TIME) for part in images), strict=True)
    for x, y, weight in parts:
        if not len(y):
            continue
        gradients = per_image(weights, x, y, weight)
        rows = flat.flatten_stacked([gradients[f"network.{name}"] for name in flat.slices])
        total += clipped(rows, longest).sum(0)
    return total
