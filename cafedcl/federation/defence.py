"""A server step that lying clients cannot ruin, for every method that averages.

The replies of a round are changed before the method's own step sees them. So its weights, its
prototypes and its other state are computed as usual, from replies that do less harm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cafedcl.config.trust_options import DefenceOptions
from cafedcl.core.contract import Up
from cafedcl.core.tensors import Tensors
from cafedcl.federation.peers import FEWEST, Peers
from cafedcl.federation.updates import Updates
from cafedcl.functional.robust import (
    clip_factors,
    cross_checked,
    geometric_median,
    krum,
    middle,
    pulled_in,
    trimmed_mean,
)
from cafedcl.methods.base import Aggregator
from cafedcl.task.task import Task


class Defence:
    """Defends the server steps of a run."""

    def __init__(self, options: DefenceOptions, task: Task) -> None:
        self.options = options
        self.task = task
        self.fields = task.fields
        self.claims = task.claims
        self.peers: Peers | None = None
        if options.kind == "peers":
            self.peers = Peers(task.enrolment.counts, task.server_device)

    def remarks(self) -> Iterator[str]:
        """Yield what the defence cannot protect because the method does not send it."""
        kind = self.options.kind
        name = self.task.method.name
        if self.options.cross_check and not self.claims:
            yield (
                f"defence.cross_check = true: clients of {name} claim no confidences, so there is "
                "nothing to check"
            )
        # The other kinds also look at prototypes.
        by_weights = kind in ("krum", "multi-krum", "peers") or not self.fields
        if kind != "none" and by_weights and not self.task.shared():
            yield f"defence.kind = {kind}: {name} sends no weights, so the defence changes nothing"
        if self.peers is not None and len(self.task.clients.shards) <= FEWEST:
            yield (
                f"defence.kind = peers: with {len(self.task.clients.shards)} clients nobody is "
                "left out, because nobody can tell who is lying; only the length of updates is "
                "limited"
            )

    def start(self, state: Tensors) -> Tensors:
        """Return the state before the first round, with what the defence keeps."""
        return {**state, **self.peers.start()} if self.peers else state

    def aggregator(self, plain: Aggregator) -> "Aggregator | DefendedAggregator":
        """Return the server step of a round behind the defence, if there is one."""
        return plain if self.options.kind == "none" else DefendedAggregator(plain, self)


def left_out(aggregator: object) -> list[int]:
    """Return the clients whose replies a defence left out."""
    return aggregator.left_out if isinstance(aggregator, DefendedAggregator) else []


class DefendedAggregator:
    """Collects the replies of a round, defends, and lets the method's aggregator do the rest."""

    def __init__(self, inner: Aggregator, defence: Defence) -> None:
        self.inner = inner
        self.defence = defence
        self.options = defence.options
        self.fields = defence.fields
        self.updates = Updates(inner.state)
        self.ups: list[Up] = []
        self.kept: Tensors = {}
        """What the defence keeps for the next round."""
        self.left_out: list[int] = []

    def add(self, up: Up) -> None:
        """Add a reply."""
        self.ups.append(up)

    def finish(self) -> Tensors:
        """Return the server's new state."""
        let_in = self.defended()
        clients = {up.client for up in let_in}
        self.left_out = [up.client for up in self.ups if up.client not in clients]
        for up in let_in:
            self.inner.add(up)
        return {**self.inner.finish(), **self.kept}

    def defended(self) -> Sequence[Up]:
        """Return the replies that are aggregated."""
        ups: Sequence[Up] = self.ups
        if len(ups) < 3:
            # With two replies nobody can say which one is wrong.
            return ups
        if self.options.kind in ("krum", "multi-krum"):
            return self._closest(ups)
        if ups[0].model:
            updates = torch.stack([self.updates.of(up) for up in ups])
            ups = self._models(*self._trusted(ups, updates))
        return self._class_sums(self._classes(self._vectors(ups)))

    def _closest(self, ups: Sequence[Up]) -> Sequence[Up]:
        """Return the replies whose models are closest to the others'."""
        if not ups[0].model:
            return ups
        vectors = torch.stack([self.updates.vector(up) for up in ups])
        multi = self.options.kind == "multi-krum"
        return [ups[row] for row in krum(vectors, self.options.liars, multi=multi)]

    def _trusted(self, ups: Sequence[Up], updates: Tensor) -> tuple[Sequence[Up], Tensor]:
        """Return the replies of clients whose updates agree with their peers', and these updates.

        A defence that does not look at peers trusts everyone.
        """
        if self.defence.peers is None:
            return ups, updates
        clients = [up.client for up in ups]
        trusted, self.kept = self.defence.peers.judge(clients, updates, self.inner.state)
        rows = trusted.nonzero().flatten().tolist()
        return [ups[row] for row in rows], updates[rows]

    def _models(self, ups: Sequence[Up], updates: Tensor) -> Sequence[Up]:
        """Return the replies with models that are safe to average."""
        safe = self._safe_rows(updates)
        changed = []
        for up, before, after in zip(ups, updates, safe, strict=True):
            if torch.equal(before, after):
                # Bit for bit what the client sent: nothing is lost by rounding.
                changed.append(up)
                continue
            changed.append(replace(up, model={**up.model, **self.updates.applied(after)}))
        return changed

    def _safe_rows(self, rows: Tensor) -> Tensor:
        """Return a safe vector for each client; a robust mean is the same for all."""
        if self.options.kind in ("clip", "peers"):
            factors = clip_factors(torch.linalg.vector_norm(rows, dim=1), self.options.factor)
            return torch.where((factors < 1)[:, None], factors[:, None] * rows, rows)
        if self.options.kind == "trimmed-mean":
            return trimmed_mean(rows, self.options.liars).expand_as(rows)
        return middle(rows).expand_as(rows)

    def _vectors(self, ups: Sequence[Up]) -> Sequence[Up]:
        """Return the replies with safe entries that are not per class, such as control variates."""
        # The mean of several clients' sums is not a sum over any client's images.
        names = [
            name for name, field in self.fields.items() if not (field.per_class or field.summed)
        ]
        if not names:
            return ups
        shapes = [ups[0].tensors[name].shape for name in names]
        sizes = [shape.numel() for shape in shapes]
        rows = torch.stack(
            [torch.cat([up.tensors[name].flatten() for name in names]) for up in ups]
        )
        changed = []
        for up, row in zip(ups, self._safe_rows(rows), strict=True):
            parts = zip(names, shapes, row.split(sizes), strict=True)
            entries = {name: part.view(shape) for name, shape, part in parts}
            changed.append(replace(up, tensors={**up.tensors, **entries}))
        return changed

    def _classes(self, ups: Sequence[Up]) -> Sequence[Up]:
        """Return the replies with safe vectors per class, such as prototypes."""
        names = [
            name
            for name, field in self.fields.items()
            if field.per_class and field.shape and field.rows_per_class == 1
        ]
        tensors = [dict(up.tensors) for up in ups]
        if self.options.cross_check:
            self._cross_check(ups, tensors, names)
        for name in names:
            for entries in tensors:
                entries[name] = entries[name].clone()
            for places in self._places(ups).values():
                rows = torch.stack([tensors[client][name][row] for client, row in places])
                safe = self._safe_points(rows)
                for (client, row), value in zip(places, safe, strict=True):
                    tensors[client][name][row] = value
        return [replace(up, tensors=entries) for up, entries in zip(ups, tensors, strict=True)]

    def _class_sums(self, ups: Sequence[Up]) -> Sequence[Up]:
        """Return the replies with safe sums over the images of a class: their means are safe."""
        names = [name for name, field in self.fields.items() if field.by_class]
        if not names:
            return ups
        counts = self.defence.task.enrolment.counts[[up.client for up in ups]]
        tensors = [dict(up.tensors) for up in ups]
        for name in names:
            table = torch.stack([up.tensors[name] for up in ups])
            for label, column in enumerate(counts.T):
                holders = column.nonzero().flatten()
                sums = table[holders.to(table.device), label]
                images = column[holders, None].to(sums)
                means = sums / images
                safe = self._safe_points(means)
                # Bit for bit what the client sent where nothing is wrong with it.
                found = torch.where((safe == means).all(1, keepdim=True), sums, safe * images)
                table[holders.to(table.device), label] = found
            for entries, rows in zip(tensors, table, strict=True):
                entries[name] = rows
        return [replace(up, tensors=entries) for up, entries in zip(ups, tensors, strict=True)]

    def _cross_check(
        self, ups: Sequence[Up], tensors: Sequence[Tensors], names: Sequence[str]
    ) -> None:
        """Limit what clients claim for a class by how well their vectors agree with the others'."""
        for claim, (low, high) in self.defence.claims.items():
            for entries in tensors:
                entries[claim] = entries[claim].clone()
            for label, places in self._places(ups).items():
                clients = [ups[number].client for number, _ in places]
                values = torch.stack([tensors[number][claim][row] for number, row in places])
                ranges = (low[clients, label].to(values), high[clients, label].to(values))
                for name in names:
                    rows = torch.stack([ups[number].tensors[name][row] for number, row in places])
                    values = cross_checked(values, *ranges, rows)
                for (number, row), value in zip(places, values, strict=True):
                    tensors[number][claim][row] = value

    def _places(self, ups: Sequence[Up]) -> dict[int, list[tuple[int, int]]]:
        """Return, for every class, the replies that have it and the row in each."""
        places: dict[int, list[tuple[int, int]]] = {}
        for number, up in enumerate(ups):
            for row, label in enumerate(up.tensors["classes"].tolist()):
                places.setdefault(label, []).append((number, row))
        return places

    def _safe_points(self, points: Tensor) -> Tensor:
        if len(points) < 3:
            return points
        if self.options.kind in ("clip", "peers"):
            return pulled_in(points, self.options.factor)
        if self.options.kind == "trimmed-mean":
            return trimmed_mean(points, self.options.liars).expand_as(points)
        return geometric_median(points.double()).to(points.dtype).expand_as(points)
