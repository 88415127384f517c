"""FedProc (Mu et al., 2023): prototypical contrastive learning on a unit projection."""

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
from cafedcl.functional.aggregation import Entries, merge_prototypes, no_prototypes, normalise
from cafedcl.functional.contrast import class_means, class_scatter, unit
from cafedcl.methods.base import Method
from cafedcl.methods.moon import projection_head
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedProcOptions:
    """The authors have no temperature; with τ = 1 the contrast stays near log(1 + (C−1)/e)."""

    dim: int = option(256, "width of the projection", low=1, high=65_536)
    tau: float = option(1.0, "temperature of the contrastive term (the code has none)", above=0.0)


class FedProc(Method):
    """a·CE + (1−a)·GPC with a = t/T, and CE alone in the first round.

    GPC is the cross-entropy of z·ĉ over global centres ĉ. As in the authors' code z is normalised
    before the classifier, centres are count-weighted means of unit z under the trained local
    models, and a class nobody reported keeps its centre (zero at the start). Their server weights
    models by enumeration index, which is wrong under partial participation; ours weights them
    by the participants' samples.
    """

    name = "fedproc"
    year = 2023
    Options = FedProcOptions
    replayed = True
    depends_on_rounds = True
    paper = "Mu et al., FedProc: Prototypical Contrastive Federated Learning on Non-IID Data"
    sends = "model, prototypes, counts"
    averages = Averages(classes=ClassMeans(weights="counts", most=float("inf")))

    def head(self) -> nn.Module:
        return projection_head(self.dim, self.options.dim, self.classes)

    def start(self, model: Network) -> Tensors:
        return no_prototypes(self.classes, self.options.dim)

    def embed(self, model: Network, x: Tensor) -> Tensor:
        return unit(model.part("project")(super().embed(model, x)))

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        z = self.embed(model, batch.x)
        share = torch.where(visit.round > 0, visit.progress, torch.ones_like(visit.progress))
        centres = unit(visit.anchors["prototypes"])
        gpc = self.cross_entropy(z @ centres.T / self.options.tau, batch)
        ce = self.cross_entropy(model.part("classify")(z), batch)
        return {"ce": share * ce, "gpc": (1 - share) * gpc}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        z, y = visit.embed("train", "trained")
        means = class_means(z, y, self.classes)[0]
        held = visit.client.holds
        notes = {"scatter": class_scatter(z, y, self.classes)}
        counts = visit.client.counts[held]
        return {"classes": held, "prototypes": means[held], "counts": counts}, notes

    def fields(self, model: Network) -> dict[str, Field]:
        return {
            "prototypes": Field((self.options.dim,), norm=1.0001),
            "counts": Field(()),
        }

    def claims(self, enrolment: Enrolment) -> Claims:
        return {"counts": (enrolment.counts, enrolment.counts)}

    def alphas(self, sent: Entries) -> Tensor:
        return normalise(sent["counts"].double())

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return merge_prototypes(state, ups, "counts")

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        return model.part("classify")(self.embed(model, x))  # type: ignore[no-any-return]
