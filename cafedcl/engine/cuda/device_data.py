"""What all lanes of a device share: the program, and the images as it sees them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Part
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda.broadcast import Broadcast
from cafedcl.engine.cuda.step import Program
from cafedcl.task.task import Task

PARTS: tuple[Part, ...] = ("train", "validation", "synthetic")
PASSES = 4
"""In so many passes at most the images of a client can be looked at under a capture."""


@dataclass(frozen=True)
class DeviceData:
    """What all lanes of a device share."""

    task: Task
    program: Program
    channels_last: bool
    train_x: Tensor
    """All training images as the encoder sees them; uint8 where there are too many to keep them so.
    """
    test_x: Tensor
    widths: list[int]
    steps: int
    """The most steps of any client's visit."""
    look: int
    """Images per forward pass over a client's own data."""
    broadcast: Broadcast
    """What the server tells all clients of a round."""

    def width(self, client: int) -> int:
        """Return the width a client's batches are padded to."""
        size = self.task.schedule.batch_size(len(self.task.tail.rows[client]))
        return next(width for width in self.widths if width >= size)

    def looked(self, client: int) -> Tensor | None:
        """Return a client's images, padded to a few passes, and the number of each one's part,
        which is −1 for padding.

        There is nothing for a client that has more images than that.
        """
        if client not in self._looked:
            train = self.task.clients.shards.train[client]
            validation = self.task.clients.shards.validation[client]
            number = len(train) + len(validation)
            passes = 1 << max(-(-number // self.look) - 1, 0).bit_length()
            place = torch.zeros(2, passes * self.look, dtype=torch.int64, device=self.task.device)
            place[0, :number] = torch.cat([train, validation])
            place[1, len(train) : number] = PARTS.index("validation")
            place[1, number:] = -1
            self._looked[client] = None if passes > PASSES else place
        return self._looked[client]

    @cached_property
    def _looked(self) -> dict[int, Tensor | None]:
        return {}

    def test_rows(self, client: int | None) -> Tensor:
        """Return which images of ``test_x`` a model is scored on: all of them, or under `pfllib`
        the client's own.

        It is the same tensor every time.
        """
        parts = self.task.clients.shards.test
        return parts[client] if parts and client is not None else self._all_test_rows

    @cached_property
    def _all_test_rows(self) -> Tensor:
        parts = self.task.clients.shards.test
        return (
            torch.cat(parts) if parts else torch.arange(len(self.test_x), device=self.test_x.device)
        )

    def room(self) -> Tensors:
        """Return the place for a client's synthetic images, their labels, and what is added to
        their features.
        """
        most = int(self.task.tail.wanted.sum(1).max())
        method = self.task.method
        if not most:
            return {}
        device = self.task.device
        more = {}
        if self.task.tail.augmenter.shifts:
            more["shift"] = torch.zeros(most, method.dim, device=device)
        empty = self.train_x.new_zeros(most, *self.train_x.shape[1:])
        return {"x": empty, "y": torch.zeros(most, dtype=torch.int64, device=device), **more}

    def accommodate(self, extra: SyntheticImages, room: Tensors) -> None:
        """Put a client's synthetic images into their place."""
        if len(extra):
            parts = {
                "x": self.lay_out(extra.x, ready=self.train_x.is_floating_point()),
                "y": extra.y,
            }
            parts |= {} if extra.shift is None else {"shift": extra.shift}
            for name, values in parts.items():
                room[name][: len(values)].copy_(values)

    def training(self, rows: Tensor, extra: Tensors) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return training images as the encoder sees them, their labels, and what is added to their
        features.

        Rows beyond the training set are synthetic images.
        """
        labels = self.task.clients.data.train_y
        if not extra:
            return (
                self._seen(self.train_x.index_select(0, rows)),
                labels.index_select(0, rows),
                None,
            )
        beyond = rows - len(labels)
        real = beyond < 0
        own = rows.clamp(max=len(labels) - 1)
        other = beyond.clamp(min=0)

        def either(ours: Tensor, theirs: Tensor) -> Tensor:
            mask = real.view(-1, *[1] * (ours.dim() - 1))
            return torch.where(mask, ours.index_select(0, own), theirs.index_select(0, other))

        x = self._seen(either(self.train_x, extra["x"]))
        y = either(labels, extra["y"])
        if "shift" not in extra:
            return x, y, None
        return x, y, extra["shift"].index_select(0, other).masked_fill(real[:, None], 0)

    def testing(self, rows: Tensor, _extra: Tensors) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return test images as the encoder sees them; nobody asks for labels."""
        return self._seen(self.test_x.index_select(0, rows)), rows, None

    def _seen(self, x: Tensor) -> Tensor:
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        return (
            x if x.is_floating_point() else self.task.clients.data.images(x).to(self.program.dtype)
        )

    def lay_out(self, x: Tensor, *, ready: bool) -> Tensor:
        """Return uint8 images (N, C, H, W) the way they are read, normalised once and for all if
        asked.
        """
        if ready:
            parts = x.split(4096) if len(x) else [x]
            x = torch.cat(
                [self.task.clients.data.images(part).to(self.program.dtype) for part in parts]
            )
        return x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x
