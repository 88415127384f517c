"""FedIIC (Wu et al., MICCAI 2023): only its margins of the logits, larger for harder classes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Claims, Enrolment, Field, Up, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.aggregation import Entries, normalise
from cafedcl.functional.contrast import class_means, log_shares
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedIICOptions:
    """The value of the authors' code."""

    d: float = option(0.25, "exponent d of a class's difficulty", low=0.0)


class FedIIC(FedAvg):
    """CE of g_c + log(π_{k,c}/(ℓ_c^d + 1e-5)), ℓ_c the class's mean loss over all clients.

    Clients measure the loss of the model that they received, before training; the server pools it
    and sends it in the next round. The authors pool it in the same round, by a pass over all
    clients before training. Their two contrastive terms are left out: they need two views of each
    image.
    """

    name = "fediic"
    year = 2023
    Options = FedIICOptions
    replayed = True
    paper = "Wu et al., FedIIC: Towards Robust Federated Learning for Class-Imbalanced Medical Data"
    sends = "model, losses per class, counts"

    def start(self, model: Network) -> Tensors:
        return {"anchors/difficulty": torch.ones(self.classes)}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        difficulty = visit.anchors["difficulty"].pow(self.options.d) + 1e-5
        margins = log_shares(visit.client.counts) - difficulty.log()
        return {"ce": self.cross_entropy(model(batch.x) + margins, batch)}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        h, y = visit.embed("train", "received")
        head = visit.received
        logits = F.linear(h, head["head.weight"], head["head.bias"])
        # A label of −1 marks padding, which belongs to no class.
        each = -logits.log_softmax(1).gather(1, y.clamp_min(0)[:, None])
        losses = class_means(each, y, self.classes)[0][:, 0]
        held = visit.client.holds
        return {"classes": held, "losses": losses[held], "counts": visit.client.counts[held]}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"losses": Field((), low=0.0), "counts": Field(())}

    def claims(self, enrolment: Enrolment) -> Claims:
        return {"counts": (enrolment.counts, enrolment.counts)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        sent = Entries(ups, self.classes)
        old = state["anchors/difficulty"]
        mean = (normalise(sent["counts"].double()) * sent["losses"]).sum(0)
        return {"anchors/difficulty": torch.where(sent.held.any(0), mean.to(old.dtype), old)}
