"""FedRCL (Seo et al., CVPR 2024): relaxed contrastive learning on every level of the encoder."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Averages, Batch, Up, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.aggregation import uniform
from cafedcl.functional.contrast import unit, weighted_average
from cafedcl.methods.base import Method
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedRCLOptions:
    """The values of the authors' code."""

    tau: float = option(0.05, "temperature τ", above=0.0)
    lam: float = option(0.7, "similarity λ from which the penalty applies", low=-1.0, high=1.0)
    beta: float = option(1.0, "weight β of the penalty", low=0.0)
    negatives: int = option(2, "number of most similar negatives in the contrast", low=1)
    penalty: str = option(
        "hardest",
        "penalty on the least similar positive, or on all positives above λ (literal)",
        choices=("hardest", "literal"),
    )


class FedRCL(Method):
    """CE + mean_l SCL_l + β·mean_l PEN_l over all levels of the encoder.

    Levels are taken before their ReLU, pooled and normalised; there is no projection. SCL takes the
    least similar positive (the sample itself included) against the most similar negatives. PEN is
    log(1 + e^{(s−1)/τ}) for the least similar other positive if s ≥ λ, as in the authors' code; the
    paper presents all positives above λ (``literal``). Their server averages models uniformly.
    """

    name = "fedrcl"
    year = 2024
    Options = FedRCLOptions
    paper = "Seo et al., Relaxed Contrastive Learning for Federated Learning"
    averages = Averages(most=1.0)
    separable = True
    uses_levels = True

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        levels, h = model.levels(batch.x)
        pairs = [relaxed(level, batch.y, batch.weight, self.options) for level in levels]
        scl, pen = (torch.stack(terms).mean() for terms in zip(*pairs, strict=True))
        ce = self.cross_entropy(model.head(h), batch)
        return {"ce": ce, "scl": scl, "pen": self.options.beta * pen}

    def weigh(self, ups: list[Up]) -> Tensor:
        return uniform(len(ups))


def relaxed(
    level: Tensor, y: Tensor, weight: Tensor, options: FedRCLOptions
) -> tuple[Tensor, Tensor]:
    """Return SCL and PEN of one level; padding is never a positive or a negative."""
    z = unit(level)
    similar = z @ z.T
    real = weight > 0
    alike = (y[:, None] == y) & real
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    positive = similar.masked_fill(~(alike | itself), torch.inf).amin(1, keepdim=True)
    negative = similar.masked_fill(alike | itself | ~real, -torch.inf)
    hardest = negative.topk(min(options.negatives, len(y)), 1).values
    logits = torch.cat([positive, hardest], 1) / options.tau
    scl = logits.logsumexp(1) - logits[:, 0]
    others = alike & ~itself
    if options.penalty == "hardest":
        worst = similar.masked_fill(~others, torch.inf).amin(1)
        fires = (worst >= options.lam) & others.any(1)
        pen = F.softplus((torch.where(fires, worst, -torch.ones_like(worst)) - 1) / options.tau)
    else:
        above = others & (similar >= options.lam)
        pen = (F.softplus((similar - 1) / options.tau) * above).sum(1) / above.sum(1).clamp_min(1)
    return weighted_average(scl, weight), weighted_average(pen, weight)
