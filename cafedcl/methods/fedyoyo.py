"""FedYoYo (Yan et al., ICCV 2025): logits adjusted by a mixture of global and local priors."""

from dataclasses import dataclass

import torch

from cafedcl.config.options import option
from cafedcl.core.contract import Batch, Client, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional.contrast import shares
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


@dataclass(frozen=True)
class FedYoYoOptions:
    """The values of the authors' code."""

    tau: float = option(1.5, "exponent τ of the prior", low=0.0)
    gamma: float = option(0.1, "share γ of the client's own distribution", low=0.0, high=1.0)
    prior: str = option(
        "mixture",
        "the prior: (1−γ)·global + γ·own (mixture), or mixed anew at every step, so that it moves "
        "to the client's own (code)",
        choices=("mixture", "code"),
    )


class FedYoYo(FedAvg):
    """CE(g + log(prior^τ + 1e-9), y) with prior = (1−γ)·N_c/N + γ·π_k (distribution-aware).

    The global prior uses the true class counts, which clients receive at enrolment; the authors
    estimate effective numbers from features. Their self-distillation between a weak and a strong
    view of each image is left out, because a batch has one view.
    """

    name = "fedyoyo"
    year = 2025
    Options = FedYoYoOptions
    paper = "Yan et al., You Are Your Own Best Teacher"
    uses_census = True

    def scratch(self, client: Client) -> Tensors:
        return {"steps": torch.zeros_like(client.counts[:1])}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        own = shares(visit.client.counts)
        everyone = shares(visit.client.census.total)
        steps = visit.scratch["steps"]
        steps += 1
        rest = 1 - self.options.gamma
        if self.options.prior == "code":
            # The authors' code overwrites the prior by the mixture in every step.
            prior = rest**steps * everyone + (1 - rest**steps) * own
        else:
            prior = rest * everyone + (1 - rest) * own
        adjusted = model(batch.x) + (prior.pow(self.options.tau) + 1e-9).log()
        return {"ce": self.cross_entropy(adjusted, batch, prior > 0)}
