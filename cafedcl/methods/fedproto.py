"""FedProto (Tan et al., AAAI 2022): personal models that meet only in their class prototypes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Averages, Batch, ClassMeans, Client, Field, Up, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.aggregation import merge_prototypes, no_prototypes
from cafedcl.functional.contrast import (
    class_means,
    distances,
    running_means,
    start_sums,
    weighted_average,
)
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedProtoOptions:
    """λ = 1 is the authors' for grey images (0.1 for CIFAR-10; HtFLlib and FedTGP use 10)."""

    lam: float = option(1.0, "weight λ of the prototype distance", low=0.0)
    prototypes: str = option(
        "moving",
        "prototypes: means of the last epoch's features, while weights move, or exact (literal)",
        choices=("moving", "literal"),
    )


class FedProto(Method):
    """CE + λ·MSE(h, P̄_y), with P̄ the unweighted mean over the clients that have the class.

    That is the authors' code; the paper's divisor is a misprint. An image whose class has no
    prototype adds 0 to the loss, but counts in its mean. Classes without a prototype are ranked by
    the classifier, below all others.
    """

    name = "fedproto"
    year = 2022
    Options = FedProtoOptions
    replayed = True
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients"
    sends = "prototypes"
    predicts = "nearest prototype (L2)"
    personal = ".*"
    averages = Averages(classes=ClassMeans())

    def start(self, model: Network) -> Tensors:
        return no_prototypes(self.classes, self.dim)

    def scratch(self, client: Client) -> Tensors:
        return start_sums(client.counts, self.dim)

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        h = self.embed(model, batch.x)
        p = visit.anchors["prototypes"]
        known = visit.anchors["known"]
        running_means(h.detach(), batch.y, batch.weight, visit.scratch)
        proto = weighted_average((h - p[batch.y]).square().mean(1) * known[batch.y], batch.weight)
        return {
            "ce": self.cross_entropy(model.head(h), batch),
            "proto": self.options.lam * proto,
        }

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        means = visit.scratch["sums"] / visit.scratch["counts"].clamp_min(1)[:, None]
        if self.options.prototypes == "literal":
            means, _ = class_means(*visit.embed("train", "trained"), self.classes)
        return {"classes": visit.client.holds, "prototypes": means[visit.client.holds]}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"prototypes": Field((self.dim,))}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return merge_prototypes(state, ups)

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        h = self.embed(model, x)
        # Far below every distance, so that a class with a prototype is preferred.
        by_head = model.head(h) - 1e4
        return torch.where(anchors["known"], -distances(h, anchors["prototypes"]), by_head)
