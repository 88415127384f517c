"""What all lanes of a device share: the program, and the images as it sees them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.engine.base import Bench
from cafedcl.engine.program import Program


@dataclass(frozen=True)
class Supply:
    """What all lanes of a device share."""

    bench: Bench
    program: Program
    channels_last: bool
    train_x: Tensor
    """All training images as the encoder sees them; uint8 where there are too many to keep them so."""
    test_x: Tensor
    train_rows: tuple[npt.NDArray[np.int64], ...]
    """Every client's training images, on the host."""
    widths: list[int]
    steps: int
    """The most steps of any client's visit."""
    look: int
    """Images per forward pass over a client's own data."""

    def width(self, client: int) -> int:
        """Return the width a client's batches are padded to."""
        size = self.bench.batch_size(len(self.train_rows[client]))
        return next(width for width in self.widths if width >= size)

    def test_rows(self, client: int | None) -> Tensor:
        """Return which images of ``test_x`` a model is scored on: all of them, or under `pfllib` the client's own."""
        parts = self.bench.shards.test
        if not parts:
            return torch.arange(len(self.test_x), device=self.test_x.device)
        return torch.cat(parts) if client is None else parts[client]

    def training(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return training images as the encoder sees them, and their labels."""
        return self._images(self.train_x, rows), self.bench.data.train_y.index_select(0, rows)

    def testing(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return test images as the encoder sees them; nobody asks for labels."""
        return self._images(self.test_x, rows), rows

    def _images(self, source: Tensor, rows: Tensor) -> Tensor:
        x = source.index_select(0, rows)
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        return x if x.is_floating_point() else self.bench.data.images(x).to(self.program.dtype)

    def lay_out(self, x: Tensor, *, ready: bool) -> Tensor:
        """Return uint8 images (N, C, H, W) the way they are read, normalised once and for all if asked."""
        if ready:
            parts = x.split(4096) if len(x) else [x]
            x = torch.cat([self.bench.data.images(part).to(self.program.dtype) for part in parts])
        return x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x
