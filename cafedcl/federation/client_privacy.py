"""Client-level differential privacy: a server step that nearly does not depend on any one client.

The server step of a method that takes weighted means is a ratio of sums. The private step adds
noise to the sums above and below the line, and gives the method one reply that is their ratio. The
noise is calibrated to the most that one client can add to all sums together
(`functional/private_sums.py`), so everything that the server does afterwards is private too.

What it does not cover: what sites send before the first round, and what the server records besides
its state (`docs/privacy.md`).
"""

import math

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Averages, Up
from cafedcl.core.errors import CafedclError
from cafedcl.core.rng import stream
from cafedcl.core.tensors import MODEL, Tensors, moved, prefixed
from cafedcl.federation.accounting import Accountant
from cafedcl.federation.spending import Spending
from cafedcl.federation.updates import Updates
from cafedcl.functional.private_sums import (
    BoundedPart,
    Contributions,
    capped_weights,
    next_clip,
    shortened,
    system_normal,
)
from cafedcl.methods.base import Aggregator
from cafedcl.task.task import Task

DENOMINATORS = 0.1
"""The share of the budget that is spent on sums of weights: they are few numbers, and large."""
QUANTILE = 0.05
"""The share of a model's budget that is spent on how many updates were shortened."""
CLIP = "server/privacy/clip"
"""The state's entry with the clipping length, where it is adapted."""


class ClientPrivacy(Spending):
    """Makes the server steps of a run private."""

    noisy_step = True

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        check_clients(config, task)
        parameters = task.network.named_parameters()
        trained = {name for name, weight in parameters if weight.requires_grad}
        self.trained = [name for name in task.shared() if name in trained]
        """The weights that are averaged with noise; nobody changes the others."""
        self.accountant = Accountant(self.options, "privacy.kind = clients")
        self.check_budget({})

    @property
    def averages(self) -> Averages:
        """The means that the method's server step is made of."""
        assert self.task.method.averages is not None
        return self.task.method.averages

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, with what is adapted."""
        if not self.options.quantile:
            return state
        return {**state, CLIP: torch.tensor(self.options.clip)}

    def clip(self, state: Tensors) -> float:
        """Return the longest update that a state allows."""
        return float(state[CLIP]) if self.options.quantile else self.options.clip

    def cap(self, most: float) -> float:
        """Return the largest weight that counts: the method's own bound, or a number of images."""
        return float(self.options.samples) if math.isinf(most) else most

    def contributions(self, state: Tensors) -> Contributions:
        """Return what contributions are made of, each part with its bound and share."""
        rest = 1 - DENOMINATORS
        parts: dict[str, BoundedPart] = {}
        model_share = 1.0
        if self.averages.classes:
            model_share = 1 - self.options.share if self.trained else 0.0
        if self.trained:
            clip = self.clip(state)
            size = sum(state[MODEL + name].numel() for name in self.trained)
            within = QUANTILE if self.options.quantile else 0.0
            parts["update"] = BoundedPart(size, clip, model_share * (rest - within))
            parts["weight"] = BoundedPart(1, 1.0, model_share * DENOMINATORS)
            if within:
                parts["within"] = BoundedPart(1, 0.5, model_share * within)
        if self.averages.classes:
            classes = self.task.method.classes
            shape = self.task.fields[self.averages.classes.values].shape
            size = classes * torch.Size(shape).numel()
            class_share = 1 - model_share
            parts["values"] = BoundedPart(size, self.options.prototype, class_share * rest)
            parts["weights"] = BoundedPart(classes, 1.0, class_share * DENOMINATORS)
        return Contributions(parts)

    def noise(self, size: int, round: int) -> Tensor:
        """Return the noise of one round, in one draw."""
        if self.from_system:
            return self.options.noise * torch.from_numpy(system_normal(size))
        draws = stream(self.config.run.seed, "privacy", round).standard_normal(size)
        return self.options.noise * torch.from_numpy(draws)

    def epsilon(self, state: Tensors, rounds: int) -> float:  # noqa: ARG002
        """Return ε after so many rounds more than there were."""
        share = self.config.federation.participation
        return self.accountant.epsilon(share, self.releases + rounds)

    def after_round(self, state: Tensors) -> dict[str, float]:
        """Return what the record of a round says; ``state`` is the one after it."""
        later = self.epsilon(state, 2) if self.options.budget else 0.0
        found = self.spent(self.epsilon(state, 1), later)
        if self.options.quantile:
            found["clip"] = float(state[CLIP])
        return found


class PrivateAggregator:
    """Sums bounded contributions, adds noise, and lets the method use their ratio."""

    def __init__(self, inner: Aggregator, privacy: ClientPrivacy, round: int) -> None:
        self.inner = inner
        self.privacy = privacy
        self.round = round
        self.layout = privacy.contributions(inner.state)
        self.updates = Updates({MODEL + n: inner.state[MODEL + n] for n in privacy.trained})
        self.total = torch.zeros(self.layout.size, dtype=torch.float64)

    def add(self, up: Up) -> None:
        """Take in a reply."""
        self.total += self.contribution(up)

    def contribution(self, up: Up) -> Tensor:
        """Return what a reply adds to the sums, on the host. Only the reply itself decides it."""
        values: Tensors = {}
        if self.privacy.trained:
            clip = self.layout.parts["update"].longest
            update = self.updates.of(up).double().cpu()
            most = self.privacy.cap(self.privacy.averages.most)
            weight = capped_weights(self.inner.method.weigh([up]).cpu(), most)
            values["update"] = weight * shortened(update, clip)
            values["weight"] = weight
            within = torch.linalg.vector_norm(update) <= clip
            values["within"] = within.double() - 0.5
        values |= self._class_sums(up)
        return self.layout.vector(values)

    def _class_sums(self, up: Up) -> Tensors:
        """Return a reply's weighted rows and their weights, by class; the weights have norm 1 at
        most.
        """
        means = self.privacy.averages.classes
        if means is None:
            return {}
        classes = up.tensors["classes"].cpu()
        rows = up.tensors[means.values].double().cpu().flatten(1)
        listed = torch.ones(len(classes), dtype=torch.float64)
        if means.weights:
            listed = capped_weights(up.tensors[means.weights].cpu(), self.privacy.cap(means.most))
        weights = torch.zeros(self.layout.parts["weights"].size, dtype=torch.float64)
        weights[classes] = listed
        weights = shortened(weights, 1.0)
        values = torch.zeros(len(weights), rows.shape[1], dtype=torch.float64)
        values[classes] = shortened(rows, self.privacy.options.prototype)
        return {"values": weights[:, None] * values, "weights": weights}

    def finish(self) -> Tensors:
        """Return the server's new state. It depends on the replies through noisy sums only."""
        noise = self.privacy.noise(self.layout.size, self.round)
        sums = self.layout.sums(self.total + noise)
        state = {**self.inner.state, **self._model(sums)}
        mean = self._mean_reply(sums)
        if mean is not None:
            state |= self.inner.method.update(self.inner.state, [mean])
        return state

    def _model(self, sums: Tensors) -> Tensors:
        """Return the model after the round, and the next clipping length where it is adapted."""
        if not self.privacy.trained:
            return {}
        changed: Tensors = {}
        clip = self.layout.parts["update"].longest
        if self._counts("weight", sums["weight"]):
            # The mean of updates is no longer than any of them may be. Shortening a noisy mean to
            # that length brings it closer to the mean without noise, and never farther away.
            mean = shortened(sums["update"] / sums["weight"], clip)
            received = self.updates.received
            moved_weights = self.updates.applied(mean.to(received.device, received.dtype))
            changed |= prefixed(MODEL, moved_weights)
        if "within" in sums:
            expected = self.privacy.config.federation.participation * len(
                self.privacy.task.clients.shards
            )
            within = float(sums["within"]) / expected + 0.5
            after = next_clip(clip, within, self.privacy.options.quantile)
            changed[CLIP] = torch.tensor(after)
        return changed

    def _mean_reply(self, sums: Tensors) -> Up | None:
        """Return one reply that is the mean of all; None if no class has enough weight."""
        means = self.privacy.averages.classes
        if means is None:
            return Up(-1, 1, {})
        weights = sums["weights"]
        known = self._counts("weights", weights).nonzero().flatten()
        if not len(known):
            return None
        rows = sums["values"].view(len(weights), -1)[known] / weights[known, None]
        rows = shortened(rows, self.privacy.options.prototype)
        shape = self.privacy.task.fields[means.values].shape
        sent = {"classes": known, means.values: rows.view(len(known), *shape).float()}
        if means.weights:
            expected = self.privacy.config.federation.participation * len(
                self.privacy.task.clients.shards
            )
            shares = (weights[known] / expected).clamp(max=1.0)
            sent[means.weights] = (self.privacy.cap(means.most) * shares).float()
        return Up(-1, 1, moved(sent, self.privacy.task.server_device))

    def _counts(self, name: str, weights: Tensor) -> Tensor:
        """Return which noisy sums of weights are large enough to divide by."""
        floor = self.privacy.options.floor * self.layout.deviation(name, self.privacy.options.noise)
        return (weights >= floor) & (weights > 0)


def check_clients(config: Config, task: Task) -> None:
    """Refuse what a bound on one client's influence does not hold for."""
    method = task.method
    if method.averages is None or not method.separable:
        raise CafedclError(
            f"privacy.kind = clients: the server step of {method.name} with these options is not "
            "made of weighted means, so one client's influence has no bound; use fedavg, fedprox, "
            "fedlc, fedproto or cafedcl, for example"
        )
    if method.uses_census:
        raise CafedclError(
            f"privacy.kind = clients: clients of {method.name} use the counts of all clients, "
            "which are told without noise; use another method, or with cafedcl set "
            "method.data_scale = 'saturating' or 'own'"
        )
    if config.defence.kind != "none":
        raise CafedclError(
            f"defence.kind = {config.defence.kind}: it compares clients with each other, so one "
            "client's influence has no bound; leave it out, or leave out privacy.kind = clients"
        )
    if config.federation.min_replies > 1:
        raise CafedclError(
            f"federation.min_replies = {config.federation.min_replies}: a round that is skipped "
            "tells who took part; leave it out, or leave out privacy.kind = clients"
        )
    if config.privacy.quantile and not task.shared():
        raise CafedclError(
            f"privacy.quantile = {config.privacy.quantile:g}: {method.name} averages no model, so "
            "there are no updates to shorten; leave it out"
        )
    buffers = dict(task.network.named_buffers())
    running = [name for name in task.shared() if name in buffers]
    if running:
        raise CafedclError(
            f"privacy.kind = clients: the model {config.model.name} has running statistics "
            f"('{running[0]}'), which noise would ruin; choose a model without batch norm"
        )
