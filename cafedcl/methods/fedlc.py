"""FedLC (Zhang et al., ICML 2022): logits calibrated by the client's own label counts."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import weighted_average
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedLCOptions:
    """τ is not given in the paper; 1 in FL-bench and FedACG."""

    tau: float = option(1.0, "scale τ of the margins", low=0.0)
    softmax: str = option(
        "inclusive",
        "whether the softmax includes the target in its denominator, or not (literal)",
        choices=("inclusive", "literal"),
    )


class FedLC(FedAvg):
    """CE of z_c − τ·n_{k,c}^{−1/4} with the client's own counts.

    A class that the client lacks has n = 1e-8, which masks it out. The paper's denominator leaves
    the target out (``literal``): that loss has no lower bound and collapses, so everybody trains
    with the inclusive softmax. No calibration at test time. PFLlib sums counts over all clients.
    """

    name = "fedlc"
    year = 2022
    Options = FedLCOptions
    paper = "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration"

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        margins = self.options.tau * visit.client.counts.clamp_min(1e-8).pow(-0.25)
        logits = model(batch.x) - margins
        if self.options.softmax == "inclusive":
            return {"ce": self.cross_entropy(logits, batch, visit.client.counts > 0)}
        target = F.one_hot(batch.y, self.classes).bool()
        rest = logits.masked_fill(target, -torch.inf).logsumexp(1)
        return {"lc": weighted_average(rest - logits[target], batch.weight)}
