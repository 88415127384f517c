"""FedAvg (McMahan et al., AISTATS 2017): train locally, average the weights by samples."""

from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


class FedAvg(Method):
    """Cross-entropy; θ ← Σ (n_k/Σn) θ_k over the participants."""

    name = "fedavg"
    paper = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data"
    )
    year = 2017
    per_image = True

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        """Return the cross-entropy."""
        return {"ce": self.cross_entropy(model(batch.x), batch)}
