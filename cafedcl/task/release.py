"""What clients report: class counts, rows per class, notes and test results, as far as allowed.

The limits are applied where the client's data are. What a client sends is made from the counts that
it reports, so nothing else that it sends, such as a confidence, reveals the exact ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.release_options import ReleaseOptions
from cafedcl.core.contract import Client, Field, Reply, Up
from cafedcl.core.tensors import Tensors

DECIMALS = 2
"""Decimals of pixel statistics where counts are not exact."""


@dataclass(frozen=True)
class Release:
    """Limits what a client reports. The options must be settled."""

    options: ReleaseOptions

    def counts(self, counts: Tensor) -> Tensor:
        """Return class counts as they are reported; 0 for classes with too few images.

        Reported counts stay as they are, so the server may apply the same limits again.
        """
        fewest = max(self.options.fewest, 1)
        grid = self.options.grid
        told = counts
        if self.options.counts == "rounded":
            steps = (counts.double() / grid).round().clamp_min(math.ceil(fewest / grid))
            told = (steps * grid).to(counts.dtype)
        if self.options.counts == "withheld":
            told = torch.full_like(counts, fewest)
        return torch.where(counts >= fewest, told, torch.zeros_like(counts))

    def possible_counts(self, told: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fewest and the most images per class that a client may have, given the counts
        that it reports; infinity where they are withheld.
        """
        fewest = max(self.options.fewest, 1)
        grid = self.options.grid
        low = told.double()
        high = low.clone()
        if self.options.counts == "rounded":
            # Counts that would round to less than the smallest reported count are reported as it.
            smallest = math.ceil(fewest / grid) * grid
            low = torch.where(told <= smallest, fewest, (low - grid / 2).ceil().clamp_min(fewest))
            high = (high + grid / 2).floor()
        if self.options.counts == "withheld":
            low = torch.full_like(low, fewest)
            high = torch.full_like(high, torch.inf)
        # A class with too few images is trained on, but not reported.
        unreported = torch.full_like(low, fewest - 1)
        return torch.where(told > 0, low, 0.0), torch.where(told > 0, high, unreported)

    def moments(self, values: Tensor) -> Tensor:
        """Return pixel statistics as they are reported."""
        return values if self.options.counts == "exact" else values.round(decimals=DECIMALS)

    def client(self, client: Client) -> Client:
        """Return a client as its summary sees it: with the counts and classes that it reports."""
        if self.options.is_plain:
            return client
        counts = self.counts(client.counts)
        return replace(
            client,
            samples=int(counts.sum()),
            counts=counts,
            holds=counts.nonzero().flatten(),
        )

    def reply(self, reply: Reply, client: Client, fields: Mapping[str, Field]) -> Reply:
        """Return a reply with what may be reported; ``client`` is as its summary saw it."""
        if self.options.is_plain:
            return reply
        up = self._unit_rows(self._reported_rows(reply.up, client, fields), fields)
        if self.options.notes == "off":
            up = replace(up, notes={}, seconds=0.0)
        return replace(reply, up=up, correct=self.tested(reply.correct))

    def tested(self, correct: Tensors) -> Tensors:
        """Return test results as they are reported: none for classes with too few test images, and
        correct predictions out of the reported number of test images.

        A recall stays the same, up to rounding. Where counts are withheld, it is in whole percent.
        """
        if not correct:
            return correct
        exact = correct["tested"]
        told = self.counts(exact)
        if self.options.counts == "withheld":
            told = torch.where(told > 0, 100, 0)
        scale = told.double() / exact.clamp_min(1)
        return {name: (value * scale).round().to(value.dtype) for name, value in correct.items()}

    def _reported_rows(self, up: Up, client: Client, fields: Mapping[str, Field]) -> Up:
        """Return what is sent with zeros for classes that the client does not report.

        Only methods that list all classes send such rows at all.
        """
        if "classes" not in up.tensors:
            return up
        reported = torch.isin(up.tensors["classes"], client.holds.to(up.tensors["classes"].device))
        if reported.all():
            return up
        tensors = dict(up.tensors)
        for name, field in fields.items():
            if field.per_class:
                value = tensors[name]
                tensors[name] = value * reported.view(-1, *(1,) * (value.dim() - 1))
        return replace(up, tensors=tensors)

    def _unit_rows(self, up: Up, fields: Mapping[str, Field]) -> Up:
        """Return what is sent with the means of unit vectors scaled to length 1."""
        if self.options.prototypes != "unit":
            return up
        rows = {
            name: F.normalize(up.tensors[name], dim=-1)
            for name, field in fields.items()
            if field.per_class and field.shape and math.isfinite(field.norm)
        }
        return replace(up, tensors={**up.tensors, **rows})


PLAIN = Release(ReleaseOptions().settled(own_data=False))
"""Clients report all that their method asks for."""
