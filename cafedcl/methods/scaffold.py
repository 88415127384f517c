"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates against client drift."""

import torch
from torch import Tensor

from cafedcl.core.contract import Batch, Field, Up, Visit
from cafedcl.core.tensors import Tensors, under
from cafedcl.functional.aggregation import uniform
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network


class Scaffold(FedAvg):
    """Every step's gradient is corrected by c − c_k, the gradient of the linear term ⟨θ, c − c_k⟩.

    Option II of the paper: c_k⁺ = c_k − c + (θ^t − θ_k)/Σ lr, and c ← c + (1/N) Σ (c_k⁺ − c_k).
    With momentum, Σ lr grows by as much as momentum lengthens the path. Models are averaged
    uniformly with server learning rate 1. Weight decay and clipping act on the corrected gradient.
    """

    name = "scaffold"
    year = 2020
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    sends = "model, control variates"
    replayed = True
    separable = True
    needs_one_rate = True
    reveals = "control variates, which tell how many steps a client made"

    def start(self, model: Network) -> Tensors:
        # A weight that is not trained has no drift to correct.
        return {
            f"anchors/control/{name}": torch.zeros_like(p)
            for name, p in model.named_parameters()
            if p.requires_grad
        }

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        c = under("control/", visit.anchors)
        own = under("control/", visit.memory)
        # In the model's order: received tensors may be in any other, which changes the last bits.
        weights = {n: p for n, p in model.named_parameters() if n in c}
        drift = [(p * (c[n] - own[n] if own else c[n])).sum() for n, p in weights.items()]
        terms = super().loss(model, batch, visit)
        return {**terms, "control": torch.stack(drift).sum()}

    def variates(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        """Return c_k⁺, and its change since the last visit."""
        c = under("control/", visit.anchors)
        own = under("control/", visit.memory)
        old = own or {name: torch.zeros_like(value) for name, value in c.items()}
        weights = {n: p for n, p in model.named_parameters() if n in c}
        moved = {n: (visit.received[n] - p.detach()) / visit.rates for n, p in weights.items()}
        new = {name: old[name] - c[name] + moved[name] for name in c}
        return new, {name: new[name] - old[name] for name in c}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        _, change = self.variates(model, visit)
        return {f"control/{name}": value for name, value in change.items()}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {
            f"control/{name}": Field(tuple(p.shape), per_class=False)
            for name, p in model.named_parameters()
            if p.requires_grad
        }

    def remember(self, model: Network, visit: Visit) -> Tensors:
        new, _ = self.variates(model, visit)
        return {f"control/{name}": value for name, value in new.items()}

    def weigh(self, ups: list[Up]) -> Tensor:
        return uniform(len(ups))

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        control = under("anchors/control/", state)
        first, *others = ([up.tensors[f"control/{name}"] for name in control] for up in ups)
        sums = [change.clone() for change in first]
        for changes in others:
            # One launch for all tensors of a client.
            torch._foreach_add_(sums, changes)
        return {
            f"anchors/control/{name}": value + change / self.clients
            for (name, value), change in zip(control.items(), sums, strict=True)
        }
