"""FedNH (Dai et al., AAAI 2023): the classifier is prototypes on a sphere, moved by the server."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import (
    Averages,
    Batch,
    Claims,
    ClassMeans,
    Enrolment,
    Field,
    Up,
    Visit,
)
from cafedcl.core.tensors import Tensors
from cafedcl.functional.aggregation import merge_prototypes, uniform
from cafedcl.functional.contrast import class_means, orthonormal, unit
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedNHOptions:
    """The values of the authors' code; it starts s at 20 for ResNet and at 1 for its small CNN."""

    smoothing: float = option(
        0.9, "share ρ of the old prototype kept at every update", low=0.0, high=1.0
    )
    scale: float = option(20.0, "initial value of the trainable scale s of the logits", above=0.0)


class LogitScale(nn.Module):
    """The trainable scale of the logits."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([value]))

    def forward(self, x: Tensor) -> Tensor:
        """Return s·x."""
        return self.scale * x


class FedNH(Method):
    """CE of s·z̃·W, where W are the broadcast unit prototypes, and only s is trained.

    W is orthonormal at first. Clients send unit class means; the server takes their count-weighted
    mean, normalises it, and moves W to the normalised ρW + (1−ρ)·mean. Models are averaged
    uniformly, as in the authors' code.
    """

    name = "fednh"
    year = 2023
    Options = FedNHOptions
    replayed = True
    paper = "Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes"
    sends = "model, prototypes, counts"
    separable = True
    averages = Averages(most=1.0, classes=ClassMeans(weights="counts", most=float("inf")))
    predicts = "nearest prototype (cosine)"

    def head(self) -> nn.Module:
        return LogitScale(self.options.scale)

    def start(self, model: Network) -> Tensors:
        known = torch.ones(self.classes, dtype=torch.bool)
        return {"anchors/prototypes": orthonormal(self.classes, self.dim), "anchors/known": known}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        logits = self.scores(model, batch.x, visit.anchors, {})
        return {"ce": self.cross_entropy(logits, batch)}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        z, y = visit.embed("train", "trained")
        means = unit(class_means(unit(z), y, self.classes)[0])
        held = visit.client.holds
        return {"classes": held, "prototypes": means[held], "counts": visit.client.counts[held]}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"prototypes": Field((self.dim,), norm=1.0001), "counts": Field(())}

    def claims(self, enrolment: Enrolment) -> Claims:
        return {"counts": (enrolment.counts, enrolment.counts)}

    def centre(self, z: Tensor, y: Tensor) -> Tensor:
        return unit(super().centre(unit(z), y))

    def weigh(self, ups: list[Up]) -> Tensor:
        return uniform(len(ups))

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        rho = self.options.smoothing
        old = state["anchors/prototypes"]
        mean = unit(merge_prototypes(state, ups, "counts")["anchors/prototypes"])
        return {"anchors/prototypes": unit(rho * old + (1 - rho) * mean)}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        return model.head(unit(self.embed(model, x)) @ anchors["prototypes"].T)  # type: ignore[no-any-return]
