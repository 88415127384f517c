"""CReFF (Shang et al., IJCAI 2022): the server re-trains its head on federated features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Field, Up, Visit
from cafedcl.core.tensors import FEATURES, Tensors, moved
from cafedcl.functional.aggregation import Entries, normalise
from cafedcl.functional.server_sgd import minimise
from cafedcl.methods._server_head import ServerHead, trained_head
from cafedcl.models.base import Network


@dataclass(frozen=True)
class CReFFOptions:
    """The values of the authors' code."""

    features: int = option(100, "federated features per class", low=1, high=100_000)
    match_steps: int = option(100, "steps that match gradients", low=1, high=100_000)
    match_lr: float = option(0.1, "learning rate of the features", above=0.0)
    epochs: int = option(300, "epochs of the head on the features", low=1, high=100_000)
    lr: float = option(0.01, "learning rate of the head", above=0.0)
    batch: int = option(32, "batch size of the head", low=1, high=65_536)


class CReFF(ServerHead):
    """FedAvg, whose server is scored with a head trained on features that the server makes.

    Clients send, for each class they have, the gradient of the cross-entropy in the server's head
    on the received encoder's features. The server moves its features until they give the same
    gradients, row by row in cosine, and trains a new head on them.
    """

    name = "creff"
    year = 2022
    Options = CReFFOptions
    replayed = True
    paper = (
        "Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via "
        "Classifier Re-Training with Federated Features"
    )
    sends = "model, gradients of the head per class"
    predicts = "re-trained head; clients use their own"

    def start(self, model: Network) -> Tensors:
        features = torch.randn(self.classes, self.options.features, self.dim)
        return {**super().start(model), FEATURES: features}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        h, y = visit.embed("train", "received")
        member = (y[:, None] == torch.arange(self.classes, device=y.device)).to(h.dtype)
        p = F.linear(h, visit.anchors["weight"], visit.anchors["bias"]).softmax(1)
        # (p_i − e_y)·[h_i; 1]ᵀ summed over the images i of each class, by one matrix product.
        pairs = (member[:, :, None] * (p - member)[:, None]).flatten(1)
        sums = (pairs.T @ F.pad(h, (0, 1), value=1.0)).view(self.classes, self.classes, -1)
        gradients = sums / member.sum(0).clamp_min(1)[:, None, None]
        return {"classes": visit.client.holds, "gradients": gradients[visit.client.holds]}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"gradients": Field((self.classes, self.dim + 1))}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        o = self.options
        sent = Entries(ups, self.classes)
        share = normalise(sent.held.double())
        wanted = torch.einsum("kc,kcrd->crd", share, sent["gradients"].double()).float()
        features = state[FEATURES].clone().requires_grad_()
        head = state["anchors/weight"], state["anchors/bias"]
        known = sent.held.any(0)

        def loss(_rows: Tensor, _weight: Tensor) -> Tensor:
            return (gradient_distance(features, head, wanted) * known).sum()

        steps = torch.zeros(o.match_steps, 1, dtype=torch.int64), torch.ones(o.match_steps, 1)
        minimise(loss, {"features": features}, steps, o.match_lr)
        made = features.detach()
        fresh = moved(nn.Linear(self.dim, self.classes).state_dict(), made.device)
        everyone = torch.ones_like(known)
        return {
            FEATURES: made,
            **trained_head(fresh, made, o.epochs, o.batch, o.lr, everyone),
        }


def gradient_distance(features: Tensor, head: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    """Return Σ (1 − cos) over the rows of each class's gradient in the head; its bias is one row.

    ``features`` are (classes, number, dim), ``wanted`` (classes, classes, dim + 1).
    """
    p = F.linear(features, *head).softmax(-1)
    residual = p - torch.eye(len(features), device=p.device)[:, None]
    weight = residual.transpose(1, 2) @ features / features.shape[1]
    rows = 1 - F.cosine_similarity(weight, wanted[:, :, :-1], dim=-1, eps=1e-6)
    bias = 1 - F.cosine_similarity(residual.mean(1), wanted[:, :, -1], dim=-1, eps=1e-6)
    return rows.sum(1) + bias
