import itertools

import pytest
import torch
from capturing import assert_near, captured
from torch import nn

from cafedcl.config.train_options import TrainOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.flat import FlatNetwork
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.optimizer import ClientOptimizer, descend, start_state


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
    gradient = torch.empty_like(flat.vector)
    sgd = ClientOptimizer(flat.vector, gradient, options)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    for step in range(5):
        rate = 0.02 * 0.9**step
        flat.gradient_of(loss(ours, step), gradient)
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


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.5)])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
def test_steps_equal_torch_adamw_after_clipping_the_norm(decay, clip, betas):
    ours, theirs = network(), network()
    options = TrainOptions(
        optimizer="adamw",
        lr=0.01,
        weight_decay=decay,
        clip=clip,
        beta1=betas[0],
        beta2=betas[1],
    )
    flat = FlatNetwork(ours)
    gradient = torch.empty_like(flat.vector)
    mine = ClientOptimizer(flat.vector, gradient, options)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=betas, weight_decay=decay)
    for step in range(6):
        rate = 0.02 * 0.9**step
        flat.gradient_of(loss(ours, step), gradient)
        mine.step(rate)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss(theirs, step).backward()
        if clip:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_engines_agree_on_adamw_with_a_rate_for_the_encoder(tiny, engine):
    settings = {"train__optimizer": "adamw", "train__lr": 0.003, "train__encoder_lr": 0.001}
    one = tiny("fedavg", **settings)
    other = tiny("fedavg", **settings)
    if engine == "cpu":
        other.engine = StackedClients(other.task, 3)
    else:
        captured(other)
    for federation in (one, other):
        assert not federation.step().failed
        # The second round shows that the optimizer begins anew with every visit.
        assert not federation.step().failed
    assert_near(one.state, other.state, 1e-4)
    other.close()


def test_a_method_that_needs_the_steps_of_sgd_refuses_another_optimizer(tiny):
    with pytest.raises(CafedclError, match=r"train.optimizer = adamw: .*scaffold.* steps of sgd"):
        tiny("scaffold", train__optimizer="adamw", train__lr=0.001)


def test_flat_weights_are_the_network_and_outlive_loading():
    model = network()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flat = FlatNetwork(model).vector
    assert flat.tolist() == torch.cat([value.flatten() for value in state.values()]).tolist()
    flat.zero_()
    assert not any(p.any() for p in model.parameters())
    model.load_state_dict(state)
    assert flat.tolist() == torch.cat([value.flatten() for value in state.values()]).tolist()


def test_a_gradient_replaces_the_one_before_and_is_zero_where_a_weight_has_no_part():
    model = network()
    flat = FlatNetwork(model)
    gradient = torch.full_like(flat.vector, torch.nan)
    flat.gradient_of(loss(model, 0), gradient)
    flat.gradient_of(loss(model, 1), gradient)
    other = network()
    loss(other, 1).backward()
    expected = torch.cat([weight.grad.flatten() for weight in other.parameters()])
    assert torch.equal(gradient, expected)
    flat.gradient_of(model[2].bias.sum(), gradient)
    assert gradient.tolist() == [0.0] * (len(gradient) - 3) + [1.0] * 3


def test_frozen_weights_stay():
    model = network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    flat = FlatNetwork(model)
    gradient = torch.empty_like(flat.vector)
    sgd = ClientOptimizer(flat.vector, gradient, TrainOptions(weight_decay=0.5))
    flat.gradient_of(loss(model, 0), gradient)
    sgd.step(0.1)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "options",
    [
        TrainOptions(momentum=0.0, weight_decay=0.0, clip=0.0),
        TrainOptions(momentum=0.9, weight_decay=1e-2, clip=0.5),
        TrainOptions(optimizer="adamw", weight_decay=1e-2, clip=0.5),
    ],
)
def test_every_row_is_clipped_and_moved_at_its_own_rate(options):
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (
        torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    rates = torch.tensor([[0.1], [0.02], [0.3]], dtype=torch.float64)
    together = start.clone()
    state = start_state(start, options)
    for gradient in gradients:
        descend(together, gradient.clone(), state, rates, options)
    for row in range(3):
        alone = start[row].clone()
        own = start_state(alone, options)
        for gradient in gradients:
            descend(alone, gradient[row].clone(), own, float(rates[row]), options)
        torch.testing.assert_close(together[row], alone, atol=1e-14, rtol=0)
    assert not torch.equal(together, start)
