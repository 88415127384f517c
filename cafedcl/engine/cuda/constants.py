"""The constants of a loss for a client's images, where captured steps read them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cafedcl.core.tensors import Tensors, nbytes
from cafedcl.device.lane import Lane
from cafedcl.engine.cuda.broadcast import copy_into

MOST_BYTES = 1 << 28
"""Larger tables are not kept; instead every step computes the constants of its own images."""


class ConstantsTables(NamedTuple):
    """The constants of a client's images, and the place of each image in them."""

    places: Tensor
    """By an image's row in the training set, its row in the tables."""
    tables: Tensors

    def of(self, rows: Tensor) -> Tensors:
        """Return the constants of images; nothing if there are no tables."""
        if not self.tables:
            return {}
        places = self.places.index_select(0, rows)
        return {name: table.index_select(0, places) for name, table in self.tables.items()}


NO_TABLES = ConstantsTables(torch.zeros(0, dtype=torch.int64), {})


class VisitConstants:
    """Fills the tables at the start of a visit, by captured passes over the client's images.

    ``compute`` returns the constants of the images whose training set rows are in ``pass_rows``.
    There is room for ``most`` images of a client, out of ``images`` in the training set.
    """

    def __init__(
        self,
        lane: Lane,
        pass_rows: Tensor,
        compute: Callable[[], Tensors],
        *,
        most: int,
        images: int,
    ) -> None:
        self.lane = lane
        self.pass_rows = pass_rows
        self.compute = compute
        self.found = compute()
        tables = {name: v.new_zeros(most, *v.shape[1:]) for name, v in self.found.items()}
        if nbytes(tables) > MOST_BYTES:
            tables = {}
        self.tables = ConstantsTables(pass_rows.new_zeros(images), tables) if tables else NO_TABLES
        self.call: Callable[[], None] | None = None

    def load(self, rows: Tensor) -> None:
        """Compute the constants of a client's images, given their rows in the training set."""
        tables = self.tables.tables
        if not tables:
            return
        if self.call is None:
            self.call = self.lane.capture(lambda: copy_into(self.found, self.compute()))
        self.tables.places.index_copy_(0, rows, torch.arange(len(rows), device=rows.device))
        size = len(self.pass_rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            # The last part is shorter; the results of the rows after it are not read.
            self.pass_rows[: len(part)].copy_(part)
            self.call()
            for name, table in tables.items():
                table[start : start + len(part)] = self.found[name][: len(part)]
