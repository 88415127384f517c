"""FedETF (Li et al., ICCV 2023): a fixed simplex as the classifier, and balanced softmax."""

from dataclasses import dataclass

from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import simplex, unit
from cafedcl.methods.base import Method
from cafedcl.methods.fednh import LogitScale
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedETFOptions:
    """The values of the authors' code for ResNets; for CNN and VGG it starts β at 10."""

    scale: float = option(1.0, "initial value of the trainable scale β of the logits", above=0.0)


class FedETF(Method):
    """CE of β·⟨f, m_c⟩ + log max(n_{k,c}, 1), with f the unit projection of the features to R^C.

    M is a simplex equiangular tight frame, the same for all clients and never trained. A class that
    the client lacks counts as one image, so it is pushed away a little and not masked. The scale β
    and the projection are averaged with the model. The authors' personal stage, once at the end,
    is left out.
    """

    name = "fedetf"
    year = 2023
    Options = FedETFOptions
    paper = (
        "Li et al., No Fear of Classifier Biases: "
        "Neural Collapse Inspired Federated Learning with Synthetic and Fixed Classifier"
    )
    predicts = "nearest vertex of a simplex (cosine)"

    def head(self) -> nn.Module:
        project = nn.Linear(self.dim, self.classes)
        return nn.ModuleDict({"project": project, "scale": LogitScale(self.options.scale)})

    def start(self, model: Network) -> Tensors:
        return {"anchors/frame": simplex(self.classes, self.classes)}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        logits = self.scores(model, batch.x, visit.anchors, {})
        prior = visit.client.counts.clamp_min(1).log()
        return {"ce": self.cross_entropy(logits + prior, batch)}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        f = unit(model.part("project")(model.features(x)))
        return model.part("scale")(f @ anchors["frame"].T)  # type: ignore[no-any-return]
