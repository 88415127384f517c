import pytest
import torch

from cafedcl.config.train_options import TrainOptions
from cafedcl.task.local_schedule import LocalSchedule


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_summed_rates_are_the_way_that_a_constant_gradient_goes(momentum: float) -> None:
    options = TrainOptions(
        lr=0.3, momentum=momentum, epochs=3, batch_size=10, lr_decay=0.7, lr_decay_in_round=True
    )
    schedule = LocalSchedule(options, typical=35, pooled=False, rounds=5)
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for epoch in range(3):
        sgd.param_groups[0]["lr"] = 0.3 * 0.7 ** (2 + epoch)
        for _ in range(4):
            weight.grad = torch.ones(1, dtype=torch.float64)
            sgd.step()
    assert schedule.summed_rates(35, round=2) == pytest.approx(-weight.item(), rel=1e-12)
