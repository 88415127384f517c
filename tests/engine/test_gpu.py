import pytest
import torch

from cafedcl.config import resolve
from cafedcl.federation import Federation
from cafedcl.methods import method_names

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def one_round(method: str, device: str) -> Federation:
    tables = {
        "method": {"name": method},
        "federation": {"clients": 4, "rounds": 2},
        "train": {"epochs": 2},
        "engine": {"device": device, "workers": 1},
    }
    federation = Federation(resolve(tables))
    federation.step()
    return federation


@pytest.mark.parametrize("method", method_names())
def test_a_round_on_the_gpu_is_the_round_on_the_cpu(method: str) -> None:
    """To a relative 1e-3 of the norm: float32 convolutions in another order over 40 steps."""
    cpu, gpu = one_round(method, "cpu"), one_round(method, "cuda")
    here, there = cpu.snapshot()[0], gpu.snapshot()[0]
    assert here.keys() == there.keys()
    for name, value in here.items():
        if value.is_floating_point() and name.startswith(("state/", "memory/")):
            distance = (value - there[name].cpu()).norm()
            assert distance <= 1e-3 * value.norm() + 1e-6, name
    assert [record.participants for record in cpu.history] == [record.participants for record in gpu.history]
