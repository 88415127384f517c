"""FedVLS (Guo et al., AAAI 2025): keeps what is known of absent classes, suppresses logits."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import shares, weighted_average
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedVLSOptions:
    """λ is the README's example; the authors' parser has 1. The other number is in their code."""

    lam: float = option(0.1, "weight λ of the distillation on absent classes", low=0.0)
    suppress: float = option(
        0.005, "weight of the logit suppression; the paper has none, as if it were 1", low=0.0
    )


class FedVLS(FedAvg):
    """CE(g + log π_k, y) + λ·KL(received ‖ current over absent classes) + suppression of logits.

    The suppression is Σ_c π_{k,c}·log mean_i e^{s_ic}, with s_ic = g_c − log π_{k,c} − log C where
    y_i ≠ c, and 0 where y_i = c, as in the authors' code. The paper's s_ic is g_c, without the
    images of class c.
    """

    name = "fedvls"
    year = 2025
    Options = FedVLSOptions
    paper = "Guo et al., Exploring Vacant Classes in Label-Skewed Federated Learning"

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        received = visit.received
        h = model.frozen(received, x)
        return {"teacher": F.linear(h, received["head.weight"], received["head.bias"])}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        counts = visit.client.counts
        share = shares(counts)
        prior = (share + 1e-9).log()
        logits = model(batch.x)
        kept = vacant_distillation(logits, batch.constants["teacher"], counts <= 0)
        spread = suppression(logits - prior, batch, share)
        return {
            "ce": self.cross_entropy(logits + prior, batch, counts > 0),
            "vacant": self.options.lam * weighted_average(kept, batch.weight),
            "suppress": self.options.suppress * spread,
        }


def vacant_distillation(logits: Tensor, teacher: Tensor, absent: Tensor) -> Tensor:
    """Return KL(teacher ‖ current) over absent classes for every image; 0 if none is absent."""
    # Without absent classes all logits are the same number: no divergence and no gradient.
    student_log = logits.masked_fill(~absent, -1e9).log_softmax(1)
    teacher_log = teacher.detach().masked_fill(~absent, -1e9).log_softmax(1)
    return (teacher_log.exp() * (teacher_log - student_log)).sum(1)


def suppression(shifted: Tensor, batch: Batch, share: Tensor) -> Tensor:
    """Return Σ_c π_c·log mean_i e^{s_ic}, computed around the largest exponent of every class."""
    classes = shifted.shape[1]
    target = F.one_hot(batch.y, classes).bool()
    exponents = (shifted - math.log(classes)).masked_fill(target, 0.0)
    exponents = exponents.masked_fill((batch.weight <= 0)[:, None], -1e4)
    top = exponents.detach().amax(0)
    sums = (batch.weight[:, None] * (exponents - top).exp()).sum(0)
    mean = sums / batch.weight.sum().clamp_min(1e-12)
    return (share * (mean.clamp_min(1e-30).log() + top)).sum()
