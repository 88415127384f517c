"""Methods whose server trains its own head and is scored with it."""

import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.core.contract import Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.server_sgd import minimise_cross_entropy
from cafedcl.methods.base import own_mark
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


class ServerHead(FedAvg):
    """FedAvg, scored with a head that the server trains on features; clients use their own.

    The next round starts from the averaged model and its head, as if there were no other.
    """

    server_trains = True

    def start(self, model: Network) -> Tensors:
        head = nn.Linear(self.dim, self.classes)
        return {"anchors/weight": head.weight.detach(), "anchors/bias": head.bias.detach()}

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return own_mark(visit.client)

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        if memory:
            return super().scores(model, x, anchors, memory)
        return F.linear(model.features(x), anchors["weight"], anchors["bias"])


def trained_head(
    head: Tensors, features: Tensor, epochs: int, batch: int, lr: float, known: Tensor
) -> Tensors:
    """Return a head after SGD on the features (classes, number, dim) of the ``known`` classes."""
    number = features.shape[1]
    classes = known.nonzero().flatten()
    points = features[classes].flatten(0, 1)
    labels = classes.repeat_interleave(number)
    trained = minimise_cross_entropy(head, points, labels, batch, epochs, lr)
    return {f"anchors/{name}": value for name, value in trained.items()}
