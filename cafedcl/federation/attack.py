"""Replies of clients that lie, for experiments: what a defence does is measured, not believed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Reply, Up
from cafedcl.core.rng import stream
from cafedcl.core.tensors import MODEL, Tensors, under
from cafedcl.task.liars import liars
from cafedcl.task.task import Task

BILLION = 1e9
HUGE = 3e38


class Attack:
    """Changes the replies of liars on their way to the server."""

    def __init__(self, config: Config, task: Task) -> None:
        self.options = config.attack
        self.seed = config.run.seed
        self.task = task
        self.liars = liars(config, len(task.clients.shards))
        self.claims = task.claims

    def remarks(self) -> Iterator[str]:
        """Yield what the attack cannot change because the method does not send it."""
        kind = self.options.kind
        sends_vectors = any(it.per_class and it.shape for it in self.task.fields.values())
        needed = {
            **dict.fromkeys(("sign-flip", "scale", "noise", "huge"), bool(self.task.shared())),
            **dict.fromkeys(("swap", "long"), sends_vectors),
            "sums": any(it.by_class for it in self.task.fields.values()),
        }
        words = {"swap": "prototypes", "long": "prototypes", "sums": "sums over images"}
        name = self.task.method.name
        if not needed.get(kind, True):
            what = words.get(kind, "weights")
            yield (
                f"attack.kind = {kind}: {name} sends no {what}, so the attack changes nothing that "
                "is sent; liars are only left out of scores of probabilities"
            )
        if kind != "none" and self.options.claim != "honest" and not self.claims:
            claim = self.options.claim
            yield f"attack.claim = {claim}: {name} sends no confidence, so it changes nothing"

    def tampered(self, reply: Reply, down: Down) -> Reply:
        """Return what the server receives from a client: its reply, or a lie."""
        client = reply.up.client
        # Those who flip labels believe what they send.
        if client not in self.liars or self.options.kind == "label-flip":
            return reply
        if down.round + 1 < self.options.since:
            return reply
        change: Callable[[Up, Down], Up] = {
            "sign-flip": self.scaled,
            "scale": self.scaled,
            "noise": self.noise,
            "swap": self.swapped,
            "long": self.long,
            "sums": self.opposite_sums,
            "huge": self.huge,
            "counts": self.counts,
        }[self.options.kind]
        lie = self.claiming(change(reply.up, down))
        return replace(reply, up=lie, valid_numbers=False)

    def scaled(self, up: Up, down: Down) -> Up:
        """Return a multiple of the update; by default its opposite."""
        factor = -1.0 if self.options.kind == "sign-flip" else self.options.factor
        return self.with_updates(up, down, lambda update: factor * update)

    def noise(self, up: Up, down: Down) -> Up:
        """Return noise whose length is ``factor`` times that of the update."""
        draws = stream(self.seed, "attack", up.client, down.round)

        def noise(update: Tensor) -> Tensor:
            drawn = torch.from_numpy(draws.standard_normal(update.shape)).to(update)
            return drawn * abs(self.options.factor) * update.square().mean().sqrt()

        return self.with_updates(up, down, noise)

    def with_updates(self, up: Up, down: Down, change: Callable[[Tensor], Tensor]) -> Up:
        """Return the reply with other updates of all weights that are averaged."""
        received = under(MODEL, down.tensors)
        model = {
            name: received[name] + change(value - received[name])
            if value.is_floating_point()
            else value
            for name, value in up.model.items()
        }
        return replace(up, model=model)

    def swapped(self, up: Up, down: Down) -> Up:  # noqa: ARG002
        """Return the reply with every class's prototype sent as that of the next class."""
        return self.with_vectors(up, lambda rows: rows.roll(1, 0))

    def long(self, up: Up, down: Down) -> Up:
        """Return swapped prototypes with ±1 in every coordinate."""
        return self.with_vectors(
            self.swapped(up, down), lambda rows: torch.sign(rows - rows.mean())
        )

    def with_vectors(self, up: Up, change: Callable[[Tensor], Tensor]) -> Up:
        """Return the reply with other vectors per class, such as prototypes."""
        changed: Tensors = {
            name: change(up.tensors[name])
            for name, field in self.task.fields.items()
            if field.per_class and field.shape
        }
        return replace(up, tensors={**up.tensors, **changed})

    def opposite_sums(self, up: Up, down: Down) -> Up:  # noqa: ARG002
        """Return the opposite of the sums over each class's images, which such images could have.

        A classifier that is fitted to them gives images of a class low scores for this class.
        """
        changed: Tensors = {
            name: -up.tensors[name] for name, field in self.task.fields.items() if field.by_class
        }
        return replace(up, tensors={**up.tensors, **changed})

    def huge(self, up: Up, down: Down) -> Up:  # noqa: ARG002
        """Return the largest weights that are still finite."""
        model = {
            name: torch.full_like(value, HUGE) if value.is_floating_point() else value
            for name, value in up.model.items()
        }
        return replace(up, model=model)

    def counts(self, up: Up, down: Down) -> Up:  # noqa: ARG002
        """Return a reply that claims a billion images."""
        claimed = {name: torch.full_like(up.tensors[name], BILLION) for name in self.claims}
        return replace(up, samples=int(BILLION), tensors={**up.tensors, **claimed})

    def claiming(self, up: Up) -> Up:
        """Return the reply with the confidence that the attack claims."""
        if self.options.claim == "honest" or self.options.kind == "counts":
            return up
        claimed: Tensors = {}
        for name, (_, most) in self.claims.items():
            value = up.tensors[name]
            if self.options.claim == "one":
                claimed[name] = torch.ones_like(value)
            else:
                listed = up.tensors["classes"].cpu()
                claimed[name] = most[up.client, listed].to(value)
        return replace(up, tensors={**up.tensors, **claimed})
