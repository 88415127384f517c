"""FedProto (Tan et al., AAAI 2022): personal models that meet only in their class prototypes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cafedcl.aggregation import merge_prototypes, no_prototypes
from cafedcl.contract import Batch, Client, Field, Up, Visit
from cafedcl.contrast import class_means, class_sums, cross_entropy, weighted_average
from cafedcl.method import Method
from cafedcl.models.base import Network
from cafedcl.options import option
from cafedcl.pack import Tensors

MOVING = "moving: features of the last local epoch while weights move (code); literal: exact means (paper)"


@dataclass(frozen=True)
class FedProtoOptions:
    """λ = 1 is the authors' for grey images (0.1 for CIFAR-10; HtFLlib and FedTGP use 10)."""

    lam: float = option(1.0, "weight λ of the prototype distance", low=0.0)
    prototypes: str = option("moving", MOVING, choices=("moving", "literal"))
    server: str = option("uniform", "mean over a class's holders: uniform (code) or counts", choices=("uniform", "counts"))


class FedProto(Method):
    """CE + λ·MSE(h, P̄_y); P̄ is the unweighted mean over a class's holders, as in the authors' code.

    The paper's server formula also divides by the number of holders, a misprint that shrinks prototypes, and is not
    offered. Unlike the authors' loader, no last batch is dropped. Samples of a class without a prototype add 0 but
    stay in the denominator. Until a prototype is known, the client's classifier predicts.
    """

    name, year = "fedproto", 2022
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients"
    travels, predicts, personal = "prototypes", "nearest prototype (L2)", ".*"
    Options = FedProtoOptions

    def start(self) -> Tensors:
        return no_prototypes(self.classes, self.dim)

    def scratch(self, client: Client) -> Tensors:
        return {"sums": client.counts.new_zeros(self.classes, self.dim), "counts": torch.zeros_like(client.counts)}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        h = self.embed(model, batch.x)
        sums, counts = class_sums(h.detach(), batch.y, batch.weight, self.classes)
        visit.scratch["sums"].add_(sums)
        visit.scratch["counts"].add_(counts)
        distance = (h - visit.anchors["prototypes"][batch.y]).square().mean(1) * visit.anchors["known"][batch.y]
        proto = self.options.lam * weighted_average(distance, batch.weight)
        return {"ce": cross_entropy(model.head(h), batch.y, batch.weight), "proto": proto}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        held = visit.client.holds
        means = visit.scratch["sums"] / visit.scratch["counts"].clamp_min(1)[:, None]
        if self.options.prototypes == "literal":
            z, y = visit.embed("train", "trained")
            means, _ = class_means(z, y, self.classes)
        reply = {"classes": held, "prototypes": means[held], "counts": visit.client.counts[held]}
        return {name: reply[name] for name in ("classes", *self.fields())}, {}

    def fields(self) -> dict[str, Field]:
        counts = {"counts": Field((), low=0.0, high=1e9)} if self.options.server == "counts" else {}
        return {"prototypes": Field((self.dim,)), **counts}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return merge_prototypes(state, ups, "counts" if self.options.server == "counts" else None)

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        h = self.embed(model, x)
        distance = torch.cdist(h, anchors["prototypes"]).masked_fill(~anchors["known"], torch.inf)
        return torch.where(anchors["known"].any(), -distance, model.head(h))
