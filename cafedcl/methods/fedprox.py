"""FedProx (Li et al., MLSys 2020): FedAvg with a pull towards the received model."""

from dataclasses import dataclass

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedProxOptions:
    """The authors tune μ in {0.001, 0.01, 0.1, 0.5, 1}; PFLlib's default of 0 is FedAvg."""

    mu: float = option(0.01, "weight μ of the proximal term", low=0.0)


class FedProx(FedAvg):
    """CE + (μ/2)‖θ − θ^t‖² (Eq. 2 of the paper); FedRCL's and FedACG's code leave out the ½."""

    name = "fedprox"
    year = 2020
    per_image = True
    Options = FedProxOptions
    paper = "Li et al., Federated Optimization in Heterogeneous Networks"

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        away = sum(
            (p - visit.received[name]).square().sum() for name, p in model.named_parameters()
        )
        return {**super().loss(model, batch, visit), "prox": self.options.mu / 2 * away}
