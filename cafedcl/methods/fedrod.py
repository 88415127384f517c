"""Fed-RoD (Chen and Chao, ICLR 2022): a generic head, and a personal head for each client."""

from dataclasses import dataclass

from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import log_shares
from cafedcl.methods.base import Method, own_mark
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedRoDOptions:
    """How the balanced softmax treats classes that the client lacks."""

    absent: str = option(
        "mask",
        "classes the client lacks: masked, as n = 0 says (mask), or counted as one image (floor)",
        choices=("mask", "floor"),
    )


class FedRoD(Method):
    """Generic head: CE(G(h) + log n_{k,c}, y). Personal head: CE(sg(G(h)) + P_k(sg(h)), y).

    The balanced softmax trains the encoder and G, which are averaged and make the server's model.
    The personal head P_k learns the residual; its loss trains nothing else, and it never leaves
    its client, which predicts by G(h) + P_k(h).
    """

    name = "fedrod"
    year = 2022
    Options = FedRoDOptions
    paper = "Chen and Chao, On Bridging Generic and Personalized Federated Learning"
    sends = "model without personal heads"
    predicts = "generic head; clients add their personal head"
    personal = r"head\.personal\..*"
    personal_is_optional = True
    replayed = True

    def head(self) -> nn.Module:
        heads = {name: nn.Linear(self.dim, self.classes) for name in ("generic", "personal")}
        return nn.ModuleDict(heads)

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        h = model.features(batch.x)
        generic = model.part("generic")(h)
        both = generic.detach() + model.part("personal")(h.detach())
        counts = visit.client.counts
        floor = self.options.absent == "floor"
        prior = counts.clamp_min(1).log() if floor else log_shares(counts)
        return {
            "generic": self.cross_entropy(generic + prior, batch),
            "personal": self.cross_entropy(both, batch),
        }

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return own_mark(visit.client)

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        h = model.features(x)
        logits = model.part("generic")(h)
        if memory:
            logits = logits + model.part("personal")(h)
        return logits  # type: ignore[no-any-return]
