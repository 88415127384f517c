"""FedTGP (Zhang et al., AAAI 2024): the server trains prototypes to be well separated."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.config.options import option
from cafedcl.core.contract import Up
from cafedcl.core.tensors import Tensors, prefixed, under
from cafedcl.functional.aggregation import merge_prototypes, no_prototypes
from cafedcl.functional.contrast import cross_entropy
from cafedcl.functional.server_sgd import draw_batches, minimise
from cafedcl.methods.fedproto import FedProto
from cafedcl.models.base import Network

FAR = 1e9
"""The gap of a class that nobody uploaded, before the others' least gap takes its place."""


@dataclass(frozen=True)
class FedTGPOptions:
    """The values of the authors' code. Its λ = 10 weights the MSE; the paper's 0.1 a distance."""

    lam: float = option(10.0, "weight λ of the client's prototype distance (MSE)", low=0.0)
    prototypes: str = option(
        "literal",
        "prototypes: exact means (literal), or of the last epoch's features, while weights move",
        choices=("literal", "moving"),
    )
    tau: float = option(100.0, "largest margin τ", above=0.0)
    margin: str = option(
        "code",
        "margin: largest distance to a nearest neighbour (code), or between any two (literal)",
        choices=("code", "literal"),
    )
    epochs: int = option(100, "server epochs S", low=1, high=100_000)
    lr: float = option(0.01, "learning rate of the server's training", above=0.0)
    batch: int = option(10, "server batch size", low=1, high=65_536)


class FedTGP(FedProto):
    """Clients as in FedProto, towards P̂ = Linear∘ReLU∘Linear(table), which the server trains.

    The server's loss is the cross-entropy of −(‖P_k^c − P̂_c'‖ + δ·1[c' = c]) over all uploaded
    prototypes, with all C classes as negatives (Eqs. 6 to 8 of the paper). The network persists,
    its SGD is new in every round, and it is never sent.
    """

    name = "fedtgp"
    year = 2024
    Options = FedTGPOptions  # type: ignore[assignment]
    server_trains = True
    paper = (
        "Zhang et al., FedTGP: Trainable Global Prototypes with "
        "Adaptive-Margin-Enhanced Contrastive Learning"
    )

    def start(self, model: Network) -> Tensors:
        network = self.server()
        weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
        table = torch.randn(self.classes, self.dim)
        return {
            **no_prototypes(self.classes, self.dim),
            **prefixed("server/net/", weights),
            "server/table": table,
        }

    def server(self) -> nn.Module:
        """Return the server's network; its trained weights are in the state."""
        return nn.Sequential(
            nn.Linear(self.dim, self.dim), nn.ReLU(), nn.Linear(self.dim, self.dim)
        )

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        points = torch.cat([up.tensors["prototypes"] for up in ups])
        labels = torch.cat([up.tensors["classes"] for up in ups])
        anchors = {n: v for n, v in state.items() if n.startswith("anchors/")}
        means = merge_prototypes({n: torch.zeros_like(v) for n, v in anchors.items()}, ups)
        delta = adaptive_margin(means["anchors/prototypes"], means["anchors/known"], self.options)
        network = self.server()
        options = self.options
        weights = {n: v.clone().requires_grad_() for n, v in under("server/", state).items()}

        def loss(rows: Tensor, weight: Tensor) -> Tensor:
            made = functional_call(network, under("net/", weights), (weights["table"],))
            logits = margin_logits(points[rows], labels[rows], made, delta)
            return cross_entropy(logits, labels[rows], weight)

        batches = draw_batches(len(points), options.batch, options.epochs)
        minimise(loss, weights, batches, options.lr)
        learned = {name: value.detach() for name, value in weights.items()}
        made = functional_call(network, under("net/", learned), (learned["table"],))
        known = torch.ones_like(state["anchors/known"])
        return {
            **prefixed("server/", learned),
            "anchors/prototypes": made.detach(),
            "anchors/known": known,
        }


def safe_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return ‖a_i − b_j‖ with a finite gradient everywhere."""
    return (a[:, None] - b[None]).square().sum(-1).clamp_min(1e-12).sqrt()


def margin_logits(points: Tensor, labels: Tensor, made: Tensor, delta: Tensor) -> Tensor:
    """Return −(‖P − P̂_c'‖ + δ·1[c' = c])."""
    return -(safe_distances(points, made) + delta * F.one_hot(labels, len(made)))


def adaptive_margin(means: Tensor, known: Tensor, options: FedTGPOptions) -> Tensor:
    """Return the margin δ, at most τ.

    It is the largest distance of a mean prototype to its nearest neighbour (``code``), or the
    largest distance between any two (``literal``). A class that nobody sent has no distances; with
    a single class there are none at all, and δ = τ.
    """
    pairs = (known[:, None] & known) & ~torch.eye(len(known), dtype=torch.bool, device=known.device)
    gaps = safe_distances(means, means)
    if options.margin == "literal":
        gap = gaps.masked_fill(~pairs, 0.0).max()
    else:
        nearest = gaps.masked_fill(~pairs, FAR).amin(1)
        gap = torch.where(known, nearest, nearest.min()).max()
    gap = torch.where(pairs.any(), gap, torch.full_like(gap, FAR))
    return gap.clamp(max=options.tau)
