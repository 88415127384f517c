"""FedLoGe (Xiao et al., ICLR 2024): one fixed sparse simplex, an auxiliary and a personal head."""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import off_diagonal, simplex, unit
from cafedcl.methods.base import Method
from cafedcl.models.base import Network

GAIN = 1.7
"""The length that the authors' code gives to the auxiliary head's rows for prediction."""


@dataclass(frozen=True)
class FedLoGeOptions:
    """The values of the authors' code, except for the fixed head."""

    sparsity: float = option(0.6, "share of the fixed head's entries that are 0", low=0.0, high=0.9)
    steps: int = option(
        200,
        "Adam steps that make the fixed head, with learning rate 1/steps; the authors take "
        "10,000, with nearly the same result",
        low=1,
        high=1000,
    )
    norm: float = option(
        1.0, "length of the fixed head's rows: 1 in the paper, 0.1 in the authors' code", above=0.0
    )
    inference: str = option(
        "auxiliary",
        "head that the server predicts with: the auxiliary head with rows of the same length, for "
        "long tails, or the fixed head, for balanced data",
        choices=("auxiliary", "fixed"),
    )


class FedLoGe(Method):
    """CE(S h) for the encoder; CE(G sg(h)) and CE(L_k sg(h)) for the two heads that are trained.

    S is a fixed sparse simplex. The encoder and G are averaged, L_k stays with its
    client. Prediction realigns the heads without training: the server divides every row of G by its
    length, and a client multiplies it by the length of its own row of L_k, and adds L_k(h).
    """

    name = "fedloge"
    year = 2024
    Options = FedLoGeOptions
    paper = (
        "Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data"
    )
    presets: ClassVar = {"code": {"norm": 0.1}}
    sends = "model without personal heads"
    predicts = "realigned auxiliary head; clients add their personal head"
    personal = r"head\.personal\..*"
    personal_is_optional = True
    replayed = True

    def head(self) -> nn.Module:
        heads = {name: nn.Linear(self.dim, self.classes) for name in ("auxiliary", "personal")}
        return nn.ModuleDict(heads)

    def start(self, model: Network) -> Tensors:
        bias = nn.Linear(self.dim, self.classes).bias.detach()
        fixed = sparse_simplex(self.classes, self.dim, self.options)
        return {"anchors/fixed": fixed, "anchors/bias": bias}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        h = model.features(batch.x)
        logits = {
            "fixed": h @ visit.anchors["fixed"].T + visit.anchors["bias"],
            "auxiliary": model.part("auxiliary")(h.detach()),
            "personal": model.part("personal")(h.detach()),
        }
        return {n: self.cross_entropy(each, batch) for n, each in logits.items()}

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return {"lengths": linear(model, "personal").weight.detach().norm(dim=1)}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        h = model.features(x)
        auxiliary = linear(model, "auxiliary")
        if memory:
            realigned = h @ auxiliary.weight.T * memory["lengths"] + auxiliary.bias
            return realigned + model.part("personal")(h)  # type: ignore[no-any-return]
        if self.options.inference == "fixed":
            return h @ anchors["fixed"].T + anchors["bias"]
        return GAIN * h @ unit(auxiliary.weight).T + auxiliary.bias


def linear(model: Network, part: str) -> nn.Linear:
    """Return a head as a linear layer, for direct access to its weights."""
    return cast(nn.Linear, model.part(part))


@torch.enable_grad()
def sparse_simplex(classes: int, dim: int, options: FedLoGeOptions) -> Tensor:
    """Return a simplex with random zeros whose other entries were trained (SSE-C).

    Adam brings all rows to the same length and makes the smallest angles between them larger.
    """
    frame = simplex(classes, dim).flatten()
    frame[torch.randperm(len(frame))[: int(options.sparsity * len(frame))]] = 0.0
    rows = frame.view(classes, dim).requires_grad_()
    mask = (rows != 0).float()
    apart = off_diagonal(torch.ones(classes, classes, dtype=torch.bool))
    adam = torch.optim.Adam([rows], lr=1 / options.steps)
    for _ in range(options.steps):
        lengths = rows.norm(dim=1)
        z = rows / lengths.clamp_min(1e-12)[:, None]
        nearest = (z @ z.T).masked_fill(~apart, -1.0).amax(1).clamp(-0.99999, 0.99999)
        loss = (lengths - options.norm).square().sum() - nearest.acos().mean()
        (gradient,) = torch.autograd.grad(loss, rows)
        rows.grad = gradient * mask
        adam.step()
    return rows.detach()
