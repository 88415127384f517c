"""A server's own training: plain SGD in steps of one shape, over batches drawn beforehand."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.core.tensors import Tensors
from cafedcl.device.capture import repeat

Batches = tuple[Tensor, Tensor]
"""The rows of every step, and their weights: (steps, batch) both."""


def draw_batches(number: int, batch: int, epochs: int) -> Batches:
    """Draw batches of ``number`` rows, in a new order for every epoch.

    A short last batch is padded with rows of weight 0.
    """
    orders = torch.stack([torch.randperm(number) for _ in range(epochs)])
    width = min(batch, number)
    rows = F.pad(orders, (0, -number % width), value=-1).view(-1, width)
    return rows.clamp_min(0), (rows >= 0).float()


def minimise(
    loss: Callable[[Tensor, Tensor], Tensor], weights: Tensors, batches: Batches, lr: float
) -> None:
    """Move the weights in place, by one step of gradient descent for every batch.

    ``loss(rows, weight)`` returns the loss of some rows with their weights. It is captured where
    that is possible, so it must read only tensors and never wait for one.
    """
    trained = list(weights.values())
    rows, row_weights = (table.to(trained[0].device) for table in batches)
    cursor = torch.zeros(1, dtype=torch.int64, device=rows.device)

    def step() -> None:
        gradients = torch.autograd.grad(loss(rows[cursor][0], row_weights[cursor][0]), trained)
        with torch.no_grad():
            torch._foreach_add_(trained, gradients, alpha=-lr)
            # A counter on the device, because a replayed step cannot see one on the host.
            cursor.add_(1)

    repeat(step, len(rows), rows.device)


def minimise_cross_entropy(
    head: Tensors, points: Tensor, labels: Tensor, batch: int, epochs: int, lr: float
) -> Tensors:
    """Return a linear head, ``weight`` and ``bias``, after SGD on the cross-entropy of points.

    Its gradient is (p − e_y)·[x; 1]ᵀ, so a step is four kernels, where autograd takes thirty. A
    server may take ten thousand of them in a round.
    """
    rows, weight = draw_batches(len(points), batch, epochs)
    rows = rows.view(epochs, -1, rows.shape[1]).to(points.device)
    sizes = weight.view(epochs, -1, rows.shape[2])[0].sum(1).tolist()
    # A padded row is zero even where others have the 1 of the bias, so it moves no weight.
    padded = torch.cat([F.pad(points, (0, 1), value=1.0), points.new_zeros(1, points.shape[1] + 1)])
    rows = rows.masked_fill((weight == 0).view(rows.shape).to(rows.device), len(points))
    matrix = torch.cat([head["weight"], head["bias"][:, None]], 1)
    targets = F.pad(F.one_hot(labels, len(matrix)).to(points.dtype), (0, 0, 0, 1))
    cursor = torch.zeros(1, dtype=torch.int64, device=rows.device)

    def epoch() -> None:
        # All batches of an epoch are gathered at once.
        now = rows[cursor][0]
        for x, target, size in zip(padded[now], targets[now], sizes, strict=True):
            residual = (x @ matrix.T).softmax(1).sub_(target)
            matrix.addmm_(residual.T, x, alpha=-lr / size)
        cursor.add_(1)

    with torch.no_grad():
        repeat(epoch, epochs, rows.device)
    return {"weight": matrix[:, :-1].contiguous(), "bias": matrix[:, -1].contiguous()}
