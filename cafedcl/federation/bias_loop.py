"""The prototype bias loop, measured in every run that has global prototypes.

In the model of the paper's Section 4.2 (docs/theory.md) a class's global prototype p_g moves as e⁺
= ρ e + (1−ρ) b + ξ̄, where e = p_g − μ is its drift from the class's centre μ: the old anchor's
drift comes back (feedback), clients' centres differ from the common one (heterogeneity), and
averages over few images are noisy (variance). Here μ is measured, ρ estimated, and ‖e⁺‖² parted
into the three, which add up to it exactly.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cafedcl.core.contract import Up
from cafedcl.core.rng import stream
from cafedcl.core.tensors import Tensors, moved
from cafedcl.data.shards import Shards
from cafedcl.engine.base import Engine
from cafedcl.functional.aggregation import Entries, combined, normalise
from cafedcl.task.task import Task

PROTOTYPES = "anchors/prototypes"


def reference_rows(labels: Tensor, shards: Shards, per_class: int, seed: int) -> Tensor:
    """Return training images, at most so many of each class, that centres are measured on; the same
    in every round.
    """
    rows = torch.cat([part.cpu() for part in shards.train])
    order = torch.from_numpy(stream(seed, "reference").permutation(len(rows)))
    rows = rows[order]
    y = labels.cpu()[rows]
    chosen = [rows[y == c][:per_class] for c in range(shards.counts.shape[1])]
    return torch.cat(chosen).sort().values


def decompose(old: Tensor, new: Tensor, centre: Tensor, noise: Tensor) -> Tensors:
    """Part the squared drift of each class's new prototype; all are (classes, dim) but the expected
    noise, (classes).

    The estimated attraction ρ̂ ∈ [0, 1] is how much of the old anchor's drift e is in the new one's
    e⁺: ⟨e⁺, e⟩/‖e‖². Feedback is ‖ρ̂ e‖². Of what is left, variance is at most the expected noise,
    and heterogeneity is the rest.
    """
    before = (old - centre).double()
    after = (new - centre).double()
    size = before.square().sum(1)
    attraction = ((before * after).sum(1) / size.clamp_min(1e-30)).clamp(0, 1)
    drift = after.square().sum(1)
    feedback = attraction.square() * size
    rest = (drift - feedback).clamp_min(0)
    variance = torch.minimum(noise.double().nan_to_num(), rest)
    return {
        "drift": drift,
        "feedback": torch.minimum(feedback, drift),
        "heterogeneity": rest - variance,
        "variance": variance,
        "attraction": attraction,
    }


class Loop:
    """Measures the loop in a run: from the server's states before and after a round, and what came
    up in it.
    """

    def __init__(self, task: Task, per_class: int) -> None:
        self.task = task
        self.per_class = per_class

    @cached_property
    def reference(self) -> Tensor:
        """The training images that classes' centres are measured on."""
        return reference_rows(
            self.task.clients.data.train_y, self.task.clients.shards, self.per_class, self.task.seed
        )

    def __call__(
        self, engine: Engine, before: Tensors, after: Tensors, ups: list[Up], notes: Tensors
    ) -> Tensors:
        """Return drift, its parts and the injected variance per class; nothing where there are no
        prototypes.

        Centres under a server's model need training images, so where those lie elsewhere there is
        nothing either. ``notes`` are the clients' own, one row for every client of the run. Classes
        nobody reported are NaN.
        """
        if (
            not self.per_class
            or PROTOTYPES not in after
            or not ups
            or (self.task.clients.remote and self.task.has_server_model)
        ):
            return {}
        old = before[PROTOTYPES].cpu()
        new = after[PROTOTYPES].cpu()
        method = self.task.method
        ups = [replace(up, tensors=moved(up.tensors, "cpu")) for up in ups]
        clients = [up.client for up in ups]
        told = Entries(ups, len(new))
        counts = self.task.clients.shards.counts[clients].double()
        sent = told["prototypes"].double()
        held = told.held
        alpha = method.alphas(told)
        centre = self.centre(engine, after, normalise(counts * held), sent).to(new.dtype)
        noise = torch.zeros(len(new))
        tables = Tensors()
        if alpha is not None and "scatter" in notes:
            tables = Injection(alpha, counts, notes["scatter"][clients].double()).tables()
            mean = combined(alpha, sent)
            noise = tables["injected"] * (new.double().norm(dim=1) / mean.norm(dim=1)).square()
        tables |= decompose(old, new, centre, noise)
        absent = ~held.any(0)
        return {
            name: value.float().masked_fill(absent, torch.nan) for name, value in tables.items()
        }

    def centre(self, engine: Engine, state: Tensors, share: Tensor, sent: Tensor) -> Tensor:
        """Return every class's centre: over the reference images under the server's encoder.

        Without a server's model there is no common encoder, and the mean of what clients sent, by
        counts, stands in.
        """
        if not self.task.has_server_model:
            return combined(share, sent)
        labels = self.task.clients.data.train_y.cpu()[self.reference]
        return self.task.method.centre(engine.embed(state, self.reference).cpu(), labels)


@dataclass(frozen=True)
class Injection:
    """The variance that clients' averages bring into a class's prototype: α, n and σ̂² are
    (clients, classes).
    """

    alpha: Tensor
    counts: Tensor
    scatter: Tensor
    """Within-class variance as each client measured it; NaN where it has fewer than two images."""

    @cached_property
    def noise(self) -> Tensor:
        """s_k = σ̂_k²/n_k; a client with one image takes the variance of all clients together."""
        degrees = (self.counts - 1).clamp_min(0) * ~self.scatter.isnan()
        pooled = (degrees * self.scatter.nan_to_num()).sum(0) / degrees.sum(0)
        return torch.where(self.scatter.isnan(), pooled, self.scatter) / self.counts.clamp_min(1)

    def under(self, weights: Tensor) -> Tensor:
        """Return V = Σ_k α_k² s_k per class for weights, which are normalised over the clients that
        have the class.

        There may be several sets of weights, (…, clients, classes).
        """
        held = weights * (self.counts > 0)
        alpha = held / held.sum(-2, keepdim=True)
        return (alpha.square() * torch.where(alpha > 0, self.noise, torch.zeros_like(alpha))).sum(
            -2
        )

    def tables(self) -> Tensors:
        """Return the effective number of clients 1/Σα², and V under the chosen weights and under
        three others.
        """
        weights = {
            "injected": self.alpha,
            "injected_uniform": torch.ones_like(self.counts),
            "injected_counts": self.counts,
            "injected_best": 1 / self.noise.clamp_min(1e-12),
        }
        injected = self.under(torch.stack(list(weights.values())))
        return {
            "clients": 1 / self.alpha.square().sum(0),
            **dict(zip(weights, injected, strict=True)),
        }
