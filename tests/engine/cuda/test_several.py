"""Several GPUs in one run; the host stands for each of them."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from capturing import EVERYONE, UNEQUAL, Tiny, assert_same, assert_same_records, jobs_of

from cafedcl.core.contract import Reply
from cafedcl.core.errors import CafedclError
from cafedcl.engine.choose import further_devices
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.engine.cuda.several import SeveralGpus
from cafedcl.federation.rounds import Federation
from cafedcl.task.build import prepare


def on_gpus(federation: Federation, gpus: int) -> Federation:
    """The same federation on so many devices."""
    options = replace(
        federation.config.engine, name="cuda", precision="fp32", compile="off", gpus=gpus
    )
    return Federation(prepare(replace(federation.config, engine=options)))


@pytest.mark.parametrize("method", ["fedavg", "cafedcl", "moon", "fedrod", "scaffold"])
def test_two_gpus_train_what_one_trains(tiny: Tiny, method: str) -> None:
    """Memories, personal weights, random transforms and the server's model included."""
    settings = {"federation__clients": 5, "train__flip": True, **UNEQUAL, **EVERYONE}
    one, other = (on_gpus(tiny(method, **settings), gpus) for gpus in (1, 2))
    assert isinstance(one.engine, CudaEngine)
    assert isinstance(other.engine, SeveralGpus)
    for _ in range(2):
        records = one.step(), other.step()
        assert_same(one, other, 1e-6)
        assert_same_records(*records, 1e-6)


def test_every_engine_has_clients_of_its_own(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = on_gpus(tiny("fedavg", federation__clients=5, **UNEQUAL, **EVERYONE), 2)
    trained: list[tuple[int, set[int]]] = []
    train = CudaEngine.train

    def watched(self: CudaEngine, jobs: Any) -> Any:
        trained.append((id(self), {job.client for job in jobs}))
        return train(self, jobs)

    monkeypatch.setattr(CudaEngine, "train", watched)
    federation.step()
    federation.step()
    assert sorted(clients for _, clients in trained) == sorted([{0, 2, 4}, {1, 3}] * 2)
    assert len(set(map(str, trained))) == 2, "each engine has the same clients in both rounds"
    assert len({id(engine.task) for engine in federation.engine.engines}) == 2


def test_an_error_of_one_engine_ends_the_round_and_the_next_one_works(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = on_gpus(tiny("fedavg", federation__clients=4, **UNEQUAL, **EVERYONE), 2)
    free_memory = CudaEngine._free_memory

    def failing(self: CudaEngine, client: int) -> float:
        if client == 1:
            raise RuntimeError("out of memory")
        return free_memory(self, client)

    with monkeypatch.context() as patched:
        patched.setattr(CudaEngine, "_free_memory", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            list(federation.engine.train(jobs_of(federation, 0, 1, 2, 3)))
    results = list(federation.engine.train(jobs_of(federation, 0, 1, 2, 3)))
    assert all(isinstance(result, Reply) for result in results)
    assert sorted(result.up.client for result in results) == [0, 1, 2, 3]


def test_a_round_that_is_given_up_leaves_no_thread_behind(tiny: Tiny) -> None:
    federation = on_gpus(tiny("fedavg", federation__clients=6, **UNEQUAL, **EVERYONE), 3)
    before = threading.active_count()
    results = federation.engine.train(jobs_of(federation, *range(6)))
    next(results)
    results.close()
    assert threading.active_count() == before


def test_settings_of_the_arithmetic_are_as_before_after_a_round(tiny: Tiny) -> None:
    federation = on_gpus(tiny("fedavg", federation__clients=4, **UNEQUAL, **EVERYONE), 2)
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32
    federation.step()
    assert (cudnn.benchmark, cudnn.allow_tf32) == before


def test_devices_follow_the_first_and_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert further_devices(torch.device("cuda"), 3) == ["cuda:1", "cuda:2"]
    assert further_devices(torch.device("cuda:2"), 2) == ["cuda:3"]
    assert further_devices(torch.device("cuda:3"), 1) == []
    with pytest.raises(
        CafedclError, match=r"engine\.gpus = 3: there are 2 CUDA devices from cuda:2"
    ):
        further_devices(torch.device("cuda:2"), 3)
