import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods.fedyoyo import FedYoYo, FedYoYoOptions
from cafedcl.models import Network
from cafedcl.testing import check_method

COUNTS = np.array([6.0, 0, 2])
TOTAL = np.array([50.0, 30, 20])


def losses(visit_with, steps, **options):
    """Return the losses of a number of steps on the same batch, and its logits and labels."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), np.array([0, 2, 0, 0])
    method = FedYoYo(FedYoYoOptions(**options), 3, 3)
    visit = visit_with(COUNTS, total=torch.from_numpy(TOTAL))
    visit.scratch.update(method.scratch(visit.client))
    batch = Batch(*map(torch.from_numpy, (x, y, np.array([1.0, 1, 1, 0]))))
    network = Network(nn.Identity(), nn.Identity())
    found = [method.loss(network, batch, visit)["ce"].item() for _ in range(steps)]
    return found, x, y


def by_hand(x, y, prior, tau=1.5):
    s = x + np.log(prior**tau + 1e-9)
    return np.mean([np.log(np.exp(s[i]).sum()) - s[i, y[i]] for i in range(3)])


def test_the_prior_is_a_mixture_of_everybodys_and_the_clients_own(visit_with):
    found, x, y = losses(visit_with, 2, gamma=0.3)
    expected = by_hand(x, y, 0.7 * TOTAL / 100 + 0.3 * COUNTS / 8)
    assert found == pytest.approx([expected, expected], abs=1e-9)


def test_as_in_the_code_the_prior_moves_to_the_clients_own_step_by_step(visit_with):
    found, x, y = losses(visit_with, 3, prior="code")
    priors = [0.9**b * TOTAL / 100 + (1 - 0.9**b) * COUNTS / 8 for b in (1, 2, 3)]
    assert found == pytest.approx([by_hand(x, y, prior) for prior in priors], abs=1e-9)


def test_without_an_exponent_it_is_fedavg(tiny):
    plain, none = tiny("fedavg"), tiny("fedyoyo", method__tau=0.0)
    for federation in (plain, none):
        federation.run()
    for name, value in plain.state.items():
        torch.testing.assert_close(none.state[name], value, atol=1e-5, rtol=1e-4)


def test_defaults_are_the_authors():
    assert FedYoYoOptions() == FedYoYoOptions(tau=1.5, gamma=0.1, prior="mixture")


@pytest.mark.parametrize("check", ["padding", "engines"])
def test_the_count_of_steps_is_the_same_on_every_engine(check):
    check_method("fedyoyo", {"method.prior": "code", "train.epochs": 2}, only=check)
