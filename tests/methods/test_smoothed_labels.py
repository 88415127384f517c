"""With label smoothing, no method pulls up the logits of classes that a client cannot learn."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods import find_method
from cafedcl.models import Network

COUNTS = (30.0, 5.0, 1.0, 0.0)
"""The client lacks the last class, and so does everybody else."""


@pytest.mark.parametrize("name", ["fedlc", "fedvls", "fedyoyo"])
def test_a_class_that_the_client_lacks_is_not_pulled_up(
    name: str, visit_with: Callable[..., Any]
) -> None:
    cls, _ = find_method(name)
    method = cls(cls.Options(), 4, 4)
    method.label_smoothing = 0.1
    counts = torch.tensor(COUNTS).double()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    visit = visit_with(counts, most=counts, total=2 * counts, images=2 * counts.sum())
    visit.scratch.update(method.scratch(visit.client))
    network = Network(nn.Identity(), nn.Identity())
    weight = torch.ones(6).double()
    y = torch.tensor([0, 0, 1, 2, 0, 1])
    batch = Batch(x, y, weight, {"teacher": x.detach()})
    term = method.loss(network, batch, visit)["ce"]
    (slope,) = torch.autograd.grad(term, x)
    # Pulled up, it would be −0.1/4 for every image.
    assert slope[:, 3].min() > -1e-6
    assert slope[:, 0].abs().max() > 0.01
