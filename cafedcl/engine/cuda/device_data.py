"""What all lanes of a device share: the program, and the images as it reads them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import Part
from cafedcl.core.sizes import power_of_two
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda.broadcast import Broadcast
from cafedcl.engine.cuda.step import Program
from cafedcl.task.task import Task

PARTS: tuple[Part, ...] = ("train", "validation", "synthetic")
MOST_PASSES = 4
"""A client's images are embedded under a capture in at most this many passes."""
NORMALISED_AT_A_TIME = 4096
"""Images that are normalised at a time, which bounds the memory for it."""


@dataclass(frozen=True)
class DeviceData:
    """What all lanes of a device share."""

    task: Task
    program: Program
    channels_last: bool
    train_x: Tensor
    """All training images, normalised; uint8 if they would take too much memory normalised."""
    test_x: Tensor
    widths: list[int]
    """The sizes that batches are padded to, in rising order."""
    steps: int
    """The number of steps with room: at least as many as any client's visit has."""
    embed_batch: int
    """Images per forward pass over a client's own data."""
    broadcast: Broadcast
    all_test_rows: Tensor
    """The rows of ``test_x`` that the server's model is scored on.

    They are made before any lane works, because a lane does not wait for another's results.
    """

    def width(self, client: int) -> int:
        """Return the width a client's batches are padded to."""
        size = self.task.schedule.batch_size(len(self.task.tail.rows[client]))
        return next(width for width in self.widths if width >= size)

    def image_rows(self, client: int) -> Tensor | None:
        """Return the rows of a client's images and their parts, (2, images); padding has part −1.

        The number of images is that of 1, 2 or 4 passes, so that few captures serve all clients.
        Return None for a client with more images.
        """
        if client not in self._image_rows:
            train = self.task.clients.shards.train[client]
            validation = self.task.clients.shards.validation[client]
            number = len(train) + len(validation)
            passes = power_of_two(-(-number // self.embed_batch))
            size = passes * self.embed_batch
            table = torch.zeros(2, size, dtype=torch.int64, device=self.task.device)
            table[0, :number] = torch.cat([train, validation])
            table[1, len(train) : number] = PARTS.index("validation")
            table[1, number:] = -1
            self._image_rows[client] = None if passes > MOST_PASSES else table
        return self._image_rows[client]

    @cached_property
    def _image_rows(self) -> dict[int, Tensor | None]:
        return {}

    def test_rows(self, client: int | None) -> Tensor:
        """Return the rows of ``test_x`` to score: all, those for own models, or under `pfllib` a
        client's own.

        It is the same tensor every time, so that it need not be copied again.
        """
        parts = self.task.clients.shards.test
        if parts and client is not None:
            return parts[client]
        own_rows = self.task.clients.own_rows
        if own_rows is not None and client is not None:
            return own_rows
        return self.all_test_rows

    @property
    def most_synthetic(self) -> int:
        """The largest number of synthetic images of any client."""
        return int(self.task.tail.synthetic_counts.sum(1).max())

    def synthetic_room(self) -> Tensors:
        """Return tensors with room for any client's synthetic images; empty if there are none."""
        most = self.most_synthetic
        if not most:
            return {}
        device = self.task.device
        room = {
            "x": self.train_x.new_zeros(most, *self.train_x.shape[1:]),
            "y": torch.zeros(most, dtype=torch.int64, device=device),
        }
        if self.task.tail.augmenter.shifts:
            room["shift"] = torch.zeros(most, self.task.method.dim, device=device)
        return room

    def load_synthetic(self, synthetic: SyntheticImages, room: Tensors) -> None:
        """Copy a client's synthetic images into their room."""
        if not len(synthetic):
            return
        normalised = self.train_x.is_floating_point()
        parts = {"x": self.as_stored(synthetic.x, normalised=normalised), "y": synthetic.y}
        if synthetic.shift is not None:
            parts["shift"] = synthetic.shift
        for name, values in parts.items():
            room[name][: len(values)].copy_(values)

    def training(self, rows: Tensor, synthetic: Tensors) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return training images, their labels, and what is added to their features, if anything.

        Rows beyond the training set are synthetic images.
        """
        labels = self.task.clients.data.train_y
        if not synthetic:
            images = self._as_input(self.train_x.index_select(0, rows))
            return images, labels.index_select(0, rows), None
        beyond = rows - len(labels)
        is_real = beyond < 0
        real_rows = rows.clamp(max=len(labels) - 1)
        synthetic_rows = beyond.clamp(min=0)

        # No branch on values under a capture: both are gathered, and one is chosen per image.
        def either(real: Tensor, made: Tensor) -> Tensor:
            mask = is_real.view(-1, *[1] * (real.dim() - 1))
            chosen = real.index_select(0, real_rows)
            return torch.where(mask, chosen, made.index_select(0, synthetic_rows))

        x = self._as_input(either(self.train_x, synthetic["x"]))
        y = either(labels, synthetic["y"])
        if "shift" not in synthetic:
            return x, y, None
        shift = synthetic["shift"].index_select(0, synthetic_rows)
        return x, y, shift.masked_fill(is_real[:, None], 0)

    def testing(self, rows: Tensor, _synthetic: Tensors) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return test images; their labels are not needed."""
        return self._as_input(self.test_x.index_select(0, rows)), rows, None

    def _as_input(self, x: Tensor) -> Tensor:
        """Return stored images as the encoder takes them."""
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        if x.is_floating_point():
            return x
        return self.task.clients.inputs.images(x).to(self.program.dtype)

    def as_stored(self, x: Tensor, *, normalised: bool) -> Tensor:
        """Return uint8 images (N, C, H, W) as stored: perhaps normalised, channels last."""
        if normalised:
            parts = x.split(NORMALISED_AT_A_TIME) if len(x) else [x]
            images = self.task.clients.inputs.images
            x = torch.cat([images(part).to(self.program.dtype) for part in parts])
        return x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x
