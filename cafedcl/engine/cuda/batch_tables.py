"""The tables of a schedule on the device, where a lane's captured steps read what comes next."""

from collections import deque
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.engine.schedule import Schedule

COPIES_IN_FLIGHT = 3
"""Visits of a lane whose tables may still be on the host: one runs, one is queued, one failed."""


class BatchTables:
    """The tables of one width on the device, and the host pages from which they are copied there.

    The pages are pinned once, because pinning takes longer than filling them. There are several,
    because a page must not be overwritten before its copy is done.
    """

    def __init__(self, sample: Schedule, steps: int, device: torch.device) -> None:
        shapes = {name: (steps, *table.shape[1:]) for name, table in sample.tables.items()}
        dtypes = {name: table.dtype for name, table in sample.tables.items()}
        self.tables = {
            name: torch.zeros(shape, dtype=dtypes[name], device=device)
            for name, shape in shapes.items()
        }

        def make_page(name: str) -> tuple[Tensor, npt.NDArray[Any]]:
            pinned = device.type == "cuda"
            page = torch.zeros(shapes[name], dtype=dtypes[name], pin_memory=pinned)
            return page, page.numpy()

        self.pages = deque(
            {name: make_page(name) for name in shapes} for _ in range(COPIES_IN_FLIGHT)
        )
        self.keys: dict[str, object] = {}

    def fill(self, schedule: Schedule) -> None:
        """Copy a schedule into the tables, except for those that already have its content."""
        self.pages.rotate()
        for name, table in schedule.tables.items():
            key = schedule.keys.get(name)
            if key is not None and self.keys.get(name) == key:
                continue
            self.keys[name] = key
            page, array = self.pages[0][name]
            array[: schedule.steps] = table.numpy()
            self.tables[name].copy_(page, non_blocking=True)
