"""Where a lane's steps read what comes next: the tables of a schedule, always in the same tensors."""

from collections import deque
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.engine.schedule import Schedule

ON_THEIR_WAY = 3
"""Visits of a lane whose tables may not have left the host: one that runs, one that is queued, one
that failed.
"""


class BatchTables:
    """The tables of one width on the device, and the pages on the host from which they are copied
    there.

    The pages are locked in memory once and for all, which takes longer than filling them.
    """

    def __init__(self, sample: Schedule, steps: int, device: torch.device) -> None:
        shapes = {name: (steps, *table.shape[1:]) for name, table in sample.tables.items()}
        kinds = {name: table.dtype for name, table in sample.tables.items()}
        self.tables = {
            name: torch.zeros(shape, dtype=kinds[name], device=device)
            for name, shape in shapes.items()
        }

        def page(name: str) -> tuple[Tensor, npt.NDArray[Any]]:
            made = torch.zeros(shapes[name], dtype=kinds[name], pin_memory=device.type == "cuda")
            return made, made.numpy()

        self.pages = deque({name: page(name) for name in shapes} for _ in range(ON_THEIR_WAY))
        self.marks: dict[str, object] = {}

    def fill(self, schedule: Schedule) -> None:
        """Copy a schedule into the tables, but for what is there already."""
        self.pages.rotate()
        for name, table in schedule.tables.items():
            mark = schedule.marks.get(name)
            if mark is None or self.marks.get(name) != mark:
                self.marks[name] = mark
                page, array = self.pages[0][name]
                array[: schedule.steps] = table.numpy()
                self.tables[name].copy_(page, non_blocking=True)
