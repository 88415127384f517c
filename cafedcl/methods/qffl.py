"""q-FFL (Li et al., ICLR 2020): clients with a higher loss weigh more, for fairness."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Field, Up, Visit
from cafedcl.core.tensors import MODEL, Tensors, under
from cafedcl.functional.contrast import cross_entropy
from cafedcl.methods.base import Aggregator, Method
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network

LARGEST_LOSS = 1e4


@dataclass(frozen=True)
class QFFLOptions:
    """The authors choose q by data set, from 0.001 to 5."""

    q: float = option(0.1, "how much higher losses weigh; 0: all clients the same", low=0.0)
    lipschitz: float = option(
        10.0, "constant L of the server's step; the authors take 1/train.lr", above=0.0
    )


class QFFL(FedAvg):
    """θ ← θ − Σ F_k^q Δ_k / Σ (q F_k^{q−1} ‖Δ_k‖² + L F_k^q), with Δ_k = L·(θ − θ_k) (q-FedAvg).

    F_k is the loss of the received model on the client's training images.
    """

    name = "qffl"
    year = 2020
    Options = QFFLOptions
    paper = "Li et al., Fair Resource Allocation in Federated Learning"
    sends = "model, loss"
    separable = True

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        h, y = visit.embed("train", "received")
        head = visit.received
        logits = F.linear(h, head["head.weight"], head["head.bias"])
        return {"loss": cross_entropy(logits, y, torch.ones_like(h[:, 0]))}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        # The loss is a client's weight, so it is bounded; a model that is worse has diverged.
        return {"loss": Field((), low=0.0, high=LARGEST_LOSS, per_class=False)}

    def weigh(self, ups: list[Up]) -> Tensor:
        return torch.stack([loss_of(up) ** self.options.q for up in ups])

    def aggregator(self, state: Tensors) -> Aggregator:
        return FairAggregator(self, state)


class FairAggregator(Aggregator):
    """Averages by F_k^q, then shortens the step by the curvature that the weights add."""

    def __init__(self, method: Method, state: Tensors) -> None:
        super().__init__(method, state)
        self.weights = 0.0
        self.curvature = 0.0

    def add(self, up: Up) -> None:
        """Add a reply."""
        q = self.method.options.q
        lipschitz = self.method.options.lipschitz
        loss = loss_of(up)
        received = under(MODEL, self.state)
        parts = [(received[n] - v).double().square().sum() for n, v in up.model.items()]
        length = lipschitz**2 * float(torch.stack(parts).sum())
        # Powers of tensors overflow to infinity, which the server rejects; those of floats raise.
        self.weights += float(lipschitz * loss**q)
        self.curvature += float(q * loss ** (q - 1) * length + lipschitz * loss**q)
        super().add(up)

    def finish(self) -> Tensors:
        """Return the server's new state."""
        after = super().finish()
        share = self.weights / self.curvature if self.curvature else 1.0
        moved = {
            name: torch.lerp(self.state[name], value, share)
            for name, value in after.items()
            if name.startswith(MODEL) and value.is_floating_point()
        }
        return {**after, **moved}


def loss_of(up: Up) -> Tensor:
    """Return F_k, slightly above 0 as in the authors' code, so that any power of it is finite."""
    return up.tensors["loss"].double().cpu() + 1e-10
