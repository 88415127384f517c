"""The encoder's own learning rate, the same in every engine."""

import pytest
import torch
from capturing import assert_near, captured
from torch import nn

from cafedcl.config.train_options import TrainOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.flat import FlatNetwork
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.optimizer import ClientOptimizer

pytestmark = pytest.mark.usefixtures("plain_kernels", "no_engine_outlives_its_test")
SETTINGS = {"train__encoder_lr": 0.003, "train__lr": 0.03, "train__momentum": 0.5}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torch_with_two_groups(momentum):
    torch.manual_seed(0)
    ours = nn.ModuleDict({"encoder": nn.Linear(4, 3), "head": nn.Linear(3, 2)}).double()
    theirs = nn.ModuleDict({"encoder": nn.Linear(4, 3), "head": nn.Linear(3, 2)}).double()
    theirs.load_state_dict(ours.state_dict())
    options = TrainOptions(lr=0.1, encoder_lr=0.02, momentum=momentum, weight_decay=0.01, clip=0.5)
    flat = FlatNetwork(ours)
    factors = flat.factors("encoder.", options.encoder_factor)
    gradient = torch.empty_like(flat.vector)
    sgd = ClientOptimizer(flat.vector, gradient, options, factors)
    groups = [
        {"params": theirs["encoder"].parameters(), "lr": 0.02},
        {"params": theirs["head"].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, momentum=momentum, weight_decay=0.01)
    for _ in range(4):
        x = torch.randn(5, 4, dtype=torch.float64)
        flat.gradient_of(ours["head"](ours["encoder"](x)).square().sum(), gradient)
        sgd.step(0.1)
        theirs["head"](theirs["encoder"](x)).square().sum().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-12, rtol=0)


ADAMW = {"train__optimizer": "adamw", "train__encoder_lr": 0.0003, "train__lr": 0.003}


@pytest.mark.parametrize("settings", [SETTINGS, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_engines_agree_on_the_encoders_rate(tiny, engine, settings):
    one = tiny("fedavg", **settings)
    plain = tiny("fedavg", **{**settings, "train__encoder_lr": 0.0})
    other = tiny("fedavg", **settings)
    if engine == "cpu":
        other.engine = StackedClients(other.task, 3)
    else:
        captured(other)
    start = {name: value.clone() for name, value in one.state.items()}
    assert not one.step().failed
    assert not other.step().failed
    plain.step()
    assert_near(one.state, other.state, 1e-5)
    name = next(name for name in start if name.startswith("model/encoder."))
    slow = (one.state[name] - start[name]).norm()
    fast = (plain.state[name] - start[name]).norm()
    assert slow < 0.3 * fast


def test_without_a_rate_of_its_own_nothing_is_multiplied():
    assert FlatNetwork(nn.ModuleDict({"encoder": nn.Linear(2, 2)})).factors("encoder.", 1.0) is None
    assert FlatNetwork(nn.ModuleDict({"head": nn.Linear(2, 2)})).factors("encoder.", 0.1) is None


def test_a_method_that_needs_one_rate_refuses_two(tiny):
    with pytest.raises(CafedclError, match=r"train.encoder_lr = 0.003: .*scaffold.* one learning"):
        tiny("scaffold", **SETTINGS)
