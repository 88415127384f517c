import itertools

import pytest
import torch
from torch import nn

from cafedcl.config.sections import TrainOptions
from cafedcl.core.flat import FlatNetwork
from cafedcl.engine.sgd import SGD, descend


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def loss(model, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    return (model(x) * torch.randn(6, 3, generator=generator, dtype=torch.float64)).square().sum()


@pytest.mark.parametrize(
    ("momentum", "decay", "clip"), list(itertools.product([0.0, 0.9], [0.0, 1e-2], [0.0, 0.5, 1e6]))
)
def test_steps_equal_torch_sgd_after_clipping_the_norm(momentum, decay, clip):
    ours, theirs = network(), network()
    options = TrainOptions(momentum=momentum, weight_decay=decay, clip=clip)
    flat = FlatNetwork(ours)
    sgd = SGD(flat.vector, flat.flat_gradient(), options)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    for step in range(5):
        rate = 0.02 * 0.9**step
        loss(ours, step).backward()
        sgd.step(rate)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss(theirs, step).backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            assert (norm > clip) == (clip == 0.5)
        optimizer.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-12, rtol=0)


def test_flat_weights_are_the_network_and_outlive_loading():
    model = network()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flat = FlatNetwork(model).vector
    assert flat.tolist() == torch.cat([value.flatten() for value in state.values()]).tolist()
    flat.zero_()
    assert not any(p.any() for p in model.parameters())
    model.load_state_dict(state)
    assert flat.tolist() == torch.cat([value.flatten() for value in state.values()]).tolist()


def test_gradients_do_not_pile_up_over_steps_or_optimisers():
    model = network()
    flat = FlatNetwork(model)
    gradient = flat.flat_gradient()
    loss(model, 0).backward()
    assert gradient.any()
    sgd = SGD(flat.vector, gradient, TrainOptions())
    assert not gradient.any()
    loss(model, 1).backward()
    sgd.step(0.1)
    assert not gradient.any()


def test_frozen_weights_stay():
    model = network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    flat = FlatNetwork(model)
    sgd = SGD(flat.vector, flat.flat_gradient(), TrainOptions(weight_decay=0.5))
    loss(model, 0).backward()
    sgd.step(0.1)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(("momentum", "decay", "clip"), [(0.0, 0.0, 0.0), (0.9, 1e-2, 0.5)])
def test_every_row_is_clipped_and_moved_at_its_own_rate(momentum, decay, clip):
    options = TrainOptions(momentum=momentum, weight_decay=decay, clip=clip)
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (
        torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    rates = torch.tensor([[0.1], [0.02], [0.3]], dtype=torch.float64)
    together = start.clone()
    velocity = torch.zeros_like(start) if momentum else None
    for gradient in gradients:
        descend(together, gradient.clone(), velocity, rates, options)
    for row in range(3):
        alone = start[row].clone()
        own = torch.zeros_like(alone) if momentum else None
        for gradient in gradients:
            descend(alone, gradient[row].clone(), own, float(rates[row]), options)
        torch.testing.assert_close(together[row], alone, atol=1e-14, rtol=0)
    assert not torch.equal(together, start)
