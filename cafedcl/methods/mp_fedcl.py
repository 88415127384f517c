"""MP-FedCL (Qiao et al., IoT-J 2024): several prototypes per class and client, in one pool."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Field, Up, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import unit, weighted_average
from cafedcl.functional.kmeans import k_means
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class MPFedCLOptions:
    """k is our choice; τ is SupCon's."""

    k: int = option(3, "prototypes per class and client", low=1, high=1000)
    tau: float = option(0.07, "temperature τ", above=0.0)
    lam: float = option(1.0, "weight λ of the contrastive term", low=0.0)
    inference: str = option(
        "head",
        "how to classify: by the head, or by the nearest prototype of the pool",
        choices=("head", "pool"),
    )


class MPFedCL(Method):
    """CE + λ·mean_i −1/|Q_y| Σ_{q∈Q_y} log softmax_q(ẑ_i·q̂/τ).

    Q is the global pool of the clients' k-means centroids. The paper's text was not at hand and no
    code was found: this is a reconstruction from its abstract. Centroids are of the trained model's
    features; a class without an upload keeps its old ones; a class without any is left out.
    """

    name = "mp-fedcl"
    year = 2024
    Options = MPFedCLOptions
    replayed = True
    compiles_summary = False
    paper = (
        "Qiao et al., MP-FedCL: Multiprototype Federated Contrastive Learning for Edge Intelligence"
    )
    sends = "model, k prototypes per class"
    reveals = "centroids, which may be the features of a single image"
    predicts = "classifier head, or nearest of the pool"

    def start(self, model: Network) -> Tensors:
        return {
            "anchors/pool": torch.zeros(0, self.dim),
            "anchors/labels": torch.zeros(0, dtype=torch.int64),
        }

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        h = self.embed(model, batch.x)
        pool = visit.anchors["pool"]
        labels = visit.anchors["labels"]
        terms = {"ce": self.cross_entropy(model.head(h), batch)}
        if len(pool):
            mine = (batch.y[:, None] == labels).to(h.dtype)
            log_p = (unit(h) @ unit(pool).T / self.options.tau).log_softmax(1)
            contrast = -(log_p * mine).sum(1) / mine.sum(1).clamp_min(1)
            terms["pool"] = self.options.lam * weighted_average(
                contrast, batch.weight * mine.amax(1)
            )
        return terms

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        z, y = visit.embed("train", "trained")
        classes, centroids = k_means(
            z, y, visit.client.holds, self.options.k, padded=visit.captured
        )
        return {"classes": classes, "prototypes": centroids}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"prototypes": Field((self.dim,), rows_per_class=self.options.k)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        ups = sorted(ups, key=lambda up: up.client)
        labels = torch.cat([up.tensors["classes"] for up in ups])
        old = ~torch.isin(state["anchors/labels"], labels)
        pool = torch.cat([state["anchors/pool"][old], *(up.tensors["prototypes"] for up in ups)])
        return {
            "anchors/pool": pool,
            "anchors/labels": torch.cat([state["anchors/labels"][old], labels]),
        }

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        if self.options.inference == "head" or not len(anchors["pool"]):
            return super().scores(model, x, anchors, memory)
        similar = unit(self.embed(model, x)) @ unit(anchors["pool"]).T
        index = anchors["labels"].expand(len(x), -1)
        return similar.new_full((len(x), self.classes), -2.0).scatter_reduce(
            1, index, similar, "amax"
        )

    def similarity(self, scores: Tensor) -> Tensor:
        return scores if self.options.inference == "pool" else super().similarity(scores)
