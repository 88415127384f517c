"""Client-level differential privacy: a server step that hardly depends on any single client.

The server step of a method that takes weighted means is a ratio of sums. The private step adds
noise to the numerators and denominators, and gives the method one reply that is their ratio. The
noise is calibrated to the most that one client can add to all sums together
(`functional/private_sums.py`), so everything that the server does afterwards is private too.

What it does not cover: what sites send before the first round, and what the server records besides
its state (`docs/privacy.md`).
"""

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Up
from cafedcl.core.errors import CafedclError
from cafedcl.core.rng import stream
from cafedcl.core.tensors import MODEL, Tensors, moved, prefixed
from cafedcl.engine.base import Engine, SecureSites
from cafedcl.federation.accounting import Accountant
from cafedcl.federation.contributions import CLIP, ContributionBounds, Contributor
from cafedcl.federation.spending import Spending
from cafedcl.functional.private_sums import clipped, next_clip, system_normal
from cafedcl.methods import checked
from cafedcl.methods.base import Aggregator, Method
from cafedcl.task.task import Task


class ClientPrivacy(Spending):
    """Makes the server steps of a run private."""

    noisy_step = True

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        check_clients(config, task)
        self.bounds = ContributionBounds(config.privacy, task)
        self.accountant = Accountant(self.options, "privacy.kind = clients")
        self.check_budget({})

    @property
    def expected(self) -> float:
        """The mean number of clients in a round. The actual number would reveal who takes part."""
        return self.config.federation.participation * len(self.task.clients.shards)

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, with what is adapted."""
        if not self.options.quantile:
            return state
        return {**state, CLIP: torch.tensor(self.options.clip)}

    def aggregator(self, plain: Aggregator, round: int, engine: Engine) -> "PrivateAggregator":
        """Return the private server step of a round."""
        if not self.options.secure:
            return PrivateAggregator(plain, self, round)
        assert isinstance(engine, SecureSites)
        return SecureAggregator(plain, self, round, engine)

    def noise(self, size: int, round: int) -> Tensor:
        """Return the noise of one round, in one draw."""
        if self.from_system:
            return self.options.noise * torch.from_numpy(system_normal(size))
        draws = stream(self.config.run.seed, "privacy", round).standard_normal(size)
        return self.options.noise * torch.from_numpy(draws)

    def epsilon(self, state: Tensors, first: int, rounds: int) -> float:  # noqa: ARG002
        """Return ε after the given number of further rounds."""
        share = self.config.federation.participation
        return self.accountant.epsilon(share, self.releases + rounds)

    def after_round(self, state: Tensors, round: int) -> dict[str, float]:
        """Return what the record of a round says; ``state`` is the one after it."""
        later = self.epsilon(state, round, 2) if self.options.budget else 0.0
        found = self.spent(self.epsilon(state, round, 1), later)
        if self.options.quantile:
            found["clip"] = float(state[CLIP])
        return found


class PrivateAggregator:
    """Sums bounded contributions, adds noise, and lets the method use their ratio."""

    def __init__(self, inner: Aggregator, privacy: ClientPrivacy, round: int) -> None:
        self.inner = inner
        self.privacy = privacy
        self.round = round
        self.contributor = Contributor(privacy.bounds, inner.state)
        self.layout = self.contributor.layout
        self.updates = self.contributor.updates
        self.total = torch.zeros(self.layout.size, dtype=torch.float64)

    def add(self, up: Up) -> None:
        """Add a reply."""
        self.total += self.contributor.contribution(up)

    def finish(self) -> Tensors:
        """Return the server's new state. It depends on the replies only through noisy sums."""
        noise = self.privacy.noise(self.layout.size, self.round)
        sums = self.layout.sums(self.total + noise)
        state = {**self.inner.state, **self._model(sums)}
        mean = self._mean_reply(sums)
        if mean is not None:
            state |= checked.update(self.inner.method, self.inner.state, [mean])
        return state

    def _model(self, sums: Tensors) -> Tensors:
        """Return the model after the round, and the next clipping length where it is adapted."""
        if not self.privacy.bounds.trained:
            return {}
        changed: Tensors = {}
        clip = self.layout.parts["update"].longest
        if self._counts("weight", sums["weight"]):
            # The mean of updates is no longer than the clipping length. Shortening a noisy mean to
            # that length only brings it closer to the mean without noise.
            mean = clipped(sums["update"] / sums["weight"], clip)
            received = self.updates.received
            moved_weights = self.updates.applied(mean.to(received.device, received.dtype))
            changed |= prefixed(MODEL, moved_weights)
        if "within" in sums:
            within = float(sums["within"]) / self.privacy.expected + 0.5
            after = next_clip(clip, within, self.privacy.options.quantile)
            changed[CLIP] = torch.tensor(after)
        return changed

    def _mean_reply(self, sums: Tensors) -> Up | None:
        """Return one reply that is the mean of all; None if no class has enough weight.

        A method that takes no mean per class keeps the rest of its state unchanged.
        """
        means = self.privacy.bounds.averages.classes
        if means is None:
            return None
        weights = sums["weights"]
        known = self._counts("weights", weights).nonzero().flatten()
        if not len(known):
            return None
        rows = sums["values"].view(len(weights), -1)[known] / weights[known, None]
        rows = clipped(rows, self.privacy.options.prototype)
        shape = self.privacy.task.fields[means.values].shape
        sent = {"classes": known, means.values: rows.view(len(known), *shape).float()}
        if means.weights:
            shares = (weights[known] / self.privacy.expected).clamp(max=1.0)
            sent[means.weights] = (self.privacy.bounds.cap(means.most) * shares).float()
        return Up(-1, 1, moved(sent, self.privacy.task.server_device))

    def _counts(self, name: str, weights: Tensor) -> Tensor:
        """Return which noisy sums of weights are large enough to divide by."""
        floor = self.privacy.options.floor * self.layout.deviation(name, self.privacy.options.noise)
        return (weights >= floor) & (weights > 0)


class SecureAggregator(PrivateAggregator):
    """Gets the sum of all contributions from the sites, and never sees a single one."""

    def __init__(
        self, inner: Aggregator, privacy: ClientPrivacy, round: int, engine: SecureSites
    ) -> None:
        super().__init__(inner, privacy, round)
        self.engine = engine

    def add(self, up: Up) -> None:
        """Do nothing: a reply only confirms that its site took part in the sum."""

    def finish(self) -> Tensors:
        """Return the server's new state."""
        summed = self.engine.take_sum()
        if summed is not None:
            self.total = summed
        return super().finish()


def check_step(config: Config, method: Method) -> None:
    """Refuse a method in which one client's influence has no bound."""
    if method.averages is None or not method.separable:
        raise CafedclError(
            f"privacy.kind = clients: the server step of {config.method.name} does not consist of "
            "weighted means, so one client's influence has no bound; use fedavg, fedprox, fedlc, "
            "fedproto, or cafedcl with method.weights = 'uniform', for example. A method of "
            "your own says by `averages` and `separable` that its step takes such means"
        )
    if method.uses_census:
        raise CafedclError(
            f"privacy.kind = clients: clients of {method.name} use the counts of all clients, "
            "which are sent without noise; use another method, or with cafedcl set method.weights "
            "= 'uniform', or method.data_scale = 'saturating' or 'own'"
        )


def check_clients(config: Config, task: Task) -> None:
    """Refuse options under which one client's influence has no bound."""
    method = task.method
    check_step(config, method)
    if config.defence.kind != "none":
        raise CafedclError(
            f"defence.kind = {config.defence.kind}: it compares clients with each other, so one "
            "client's influence has no bound; leave it out, or leave out privacy.kind = clients"
        )
    if config.privacy.secure and config.engine.name != "flower":
        raise CafedclError(
            "privacy.secure = true: it hides sites from a server across machines; use it with "
            "`cafedcl deploy run`. In a simulation the sums are the same without it"
        )
    if config.federation.min_replies > 1:
        raise CafedclError(
            f"federation.min_replies = {config.federation.min_replies}: a skipped round reveals "
            "who took part; leave it out, or leave out privacy.kind = clients"
        )
    if config.privacy.quantile and not task.shared():
        raise CafedclError(
            f"privacy.quantile = {config.privacy.quantile:g}: {method.name} averages no model, so "
            "there are no updates to clip; leave it out"
        )
    buffers = dict(task.network.named_buffers())
    running = [name for name in task.shared() if name in buffers]
    if running:
        raise CafedclError(
            f"privacy.kind = clients: the model {config.model.name} has running statistics "
            f"('{running[0]}'), which noise would ruin; choose a model without batch norm"
        )
