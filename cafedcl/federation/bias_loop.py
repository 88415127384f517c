"""The prototype bias loop, measured in every run that has global prototypes.

In the model of the paper's Section 4.2 (docs/theory.md) the drift e = p_g − μ of a class's global
prototype from the class's centre μ becomes e⁺ = ρ e + (1−ρ) b + ξ̄ in a round. The old drift comes
back (feedback), clients' centres differ from the common one (heterogeneity), and averages over few
images are noisy (variance). Here μ is measured, ρ is estimated, and ‖e⁺‖² is split into the three
parts, which add up to it exactly.
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
from cafedcl.methods import checked
from cafedcl.task.task import Task

PROTOTYPES = "anchors/prototypes"


def reference_rows(labels: Tensor, shards: Shards, per_class: int, seed: int) -> Tensor:
    """Return the training images that centres are measured on: at most ``per_class`` of a class.

    They are the same in every round.
    """
    rows = shards.train.indices.cpu()
    order = torch.from_numpy(stream(seed, "reference").permutation(len(rows)))
    rows = rows[order]
    y = labels.cpu()[rows]
    chosen = [rows[y == c][:per_class] for c in range(shards.counts.shape[1])]
    return torch.cat(chosen).sort().values


def decompose(old: Tensor, new: Tensor, centre: Tensor, noise: Tensor) -> Tensors:
    """Split the squared drift of each class's new prototype into its three parts.

    Prototypes and centres are (classes, dim), and the expected ``noise`` is (classes). The
    attraction ρ̂ ∈ [0, 1] is estimated as the share of the old drift e in the new one e⁺:
    ⟨e⁺, e⟩/‖e‖². Feedback is ‖ρ̂ e‖². Of the rest, variance is at most the expected noise, and
    heterogeneity is what remains.
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


class BiasLoop:
    """Measures the loop from the server's states before and after a round, and the replies."""

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
        """Return drift, its parts and the injected variance per class.

        ``notes`` are the client notes, one row for every client of the run. A class that nobody
        reported is NaN. Without prototypes the result is empty.
        """
        # Under secure aggregation the server does not see what a client has sent, and a method may
        # call its anchors prototypes although clients send none.
        ups = [up for up in ups if {"classes", "prototypes"} <= up.tensors.keys()]
        if not self.per_class or not ups or PROTOTYPES not in after:
            return {}
        if self.task.clients.remote and self.task.has_server_model:
            # Centres under the server's model need training images, which are at the sites.
            return {}
        old = before[PROTOTYPES].cpu()
        new = after[PROTOTYPES].cpu()
        method = self.task.method
        ups = [replace(up, tensors=moved(up.tensors, "cpu")) for up in ups]
        clients = [up.client for up in ups]
        entries = Entries(ups, len(new))
        counts = self.task.clients.shards.counts[clients].double()
        sent = entries["prototypes"].double()
        held = entries.held
        alpha = checked.alphas(method, entries)
        centre = self.centre(engine, after, normalise(counts * held), sent).to(new.dtype)
        noise = torch.zeros(len(new))
        tables: Tensors = {}
        if alpha is not None and "scatter" in notes:
            tables = Injection(alpha, counts, notes["scatter"][clients].double()).tables()
            # The server may normalise the mean, which scales its noise as well.
            scale = new.double().norm(dim=1) / combined(alpha, sent).norm(dim=1)
            noise = tables["injected"] * scale.square()
        tables |= decompose(old, new, centre, noise)
        absent = ~held.any(0)
        return {
            name: value.float().masked_fill(absent, torch.nan) for name, value in tables.items()
        }

    def centre(self, engine: Engine, state: Tensors, share: Tensor, sent: Tensor) -> Tensor:
        """Return every class's centre: the mean over the reference images by the server's model.

        Without a server's model it is the count-weighted mean of the prototypes that clients sent.
        """
        if not self.task.has_server_model:
            return combined(share, sent)
        labels = self.task.clients.data.train_y.cpu()[self.reference]
        z = engine.embed(state, self.reference).cpu()
        return checked.centre(self.task.method, z, labels)


@dataclass(frozen=True)
class Injection:
    """The variance that clients' averages bring into a class's prototype.

    Weights α, counts n and variances σ̂² are (clients, classes).
    """

    alpha: Tensor
    counts: Tensor
    scatter: Tensor
    """Within-class variance as each client measured it; NaN where it has fewer than two images."""

    @cached_property
    def noise(self) -> Tensor:
        """s_k = σ̂_k²/n_k; a client with one image has the pooled variance of all clients."""
        degrees = (self.counts - 1).clamp_min(0) * ~self.scatter.isnan()
        pooled = (degrees * self.scatter.nan_to_num()).sum(0) / degrees.sum(0)
        return torch.where(self.scatter.isnan(), pooled, self.scatter) / self.counts.clamp_min(1)

    def under(self, weights: Tensor) -> Tensor:
        """Return V = Σ_k α_k² s_k per class, for one or several sets of weights.

        Weights are (…, clients, classes), and are normalised over the clients that have the class.
        """
        held = weights * (self.counts > 0)
        alpha = held / held.sum(-2, keepdim=True)
        noise = torch.where(alpha > 0, self.noise, torch.zeros_like(alpha))
        return (alpha.square() * noise).sum(-2)

    def tables(self) -> Tensors:
        """Return the effective number of clients 1/Σα², and V under four kinds of weights."""
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
