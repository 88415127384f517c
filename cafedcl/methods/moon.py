"""MOON (Li et al., CVPR 2021): model-contrastive learning."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors, prefixed, under
from cafedcl.functional.contrast import unit, weighted_average
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class MoonOptions:
    """μ = 1 is the code's default; its README uses 5 for CIFAR-10, which is a preset."""

    mu: float = option(1.0, "weight μ of the contrastive term", low=0.0)
    tau: float = option(0.5, "temperature τ", above=0.0)
    dim: int = option(256, "width of the projection", low=1, high=65_536)


def projection_head(inputs: int, dim: int, classes: int) -> nn.Sequential:
    """Return MOON's head: Linear, ReLU, Linear give z, on which the classifier sits."""
    head = nn.Sequential()
    head.add_module(
        "project", nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, dim))
    )
    head.add_module("classify", nn.Linear(dim, classes))
    return head


class Moon(Method):
    """CE + μ·mean −log e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}).

    It is Eq. 3 of the paper. As in the authors' code the classifier sits on the unnormalised z,
    z_glob comes from the received model, z_prev from this client's last trained one, both frozen,
    and a client's first visit has no contrastive term. PFLlib and FL-bench contrast backbone
    features without a projection instead.
    """

    name = "moon"
    year = 2021
    Options = MoonOptions
    replayed = True
    per_image = True
    paper = "Li et al., Model-Contrastive Federated Learning"
    presets: ClassVar = {"cifar10": {"mu": 5.0}}

    def head(self) -> nn.Module:
        return projection_head(self.dim, self.options.dim, self.classes)

    def embed(self, model: Network, x: Tensor) -> Tensor:
        return model.part("project")(super().embed(model, x))  # type: ignore[no-any-return]

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        previous = under("previous/", visit.memory)
        if not previous:
            return {}
        weights = {"received": visit.received, "previous": previous}
        return {name: unit(model.frozen(other, x, "project")) for name, other in weights.items()}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        z = self.embed(model, batch.x)
        terms = {"ce": self.cross_entropy(model.part("classify")(z), batch)}
        if batch.constants:
            others = [batch.constants[name] for name in ("received", "previous")]
            cosines = torch.stack([(unit(z) * other).sum(1) for other in others], 1)
            contrast = -F.log_softmax(cosines / self.options.tau, 1)[:, 0]
            terms["moon"] = self.options.mu * weighted_average(contrast, batch.weight)
        return terms

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return prefixed("previous/", model.state_dict())
