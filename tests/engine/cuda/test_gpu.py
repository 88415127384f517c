import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from cafedcl.core.contract import Down, Up
from cafedcl.core.tensors import moved
from cafedcl.device.capture import repeat
from cafedcl.device.lane import Lane
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.callback import Callback
from cafedcl.federation.rounds import Federation
from cafedcl.functional.kmeans import k_means
from cafedcl.methods import method_names
from cafedcl.methods.fedtgp import FedTGP, FedTGPOptions
from cafedcl.models import Network
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def one_round(method: str, freeze: str = "", **engine: object) -> Federation:
    tables = {
        "model": {"freeze": freeze},
        "method": {"name": method},
        "split": {"kind": "dirichlet", "form": "class", "alpha": 0.5},
        "federation": {"clients": 4, "rounds": 2},
        "train": {"epochs": 2, "lr": 0.01},
        "engine": {"workers": 1, "precision": "fp32", **engine},
        "augment": {"steps": 100} if method.endswith("+gan") else {},
    }
    federation = Federation(resolve(tables))
    federation.step()
    return federation


def furthest(one: Federation, other: Federation) -> float:
    """The largest relative distance between what two federations hold after a round."""
    here, there = one.snapshot()[0], other.snapshot()[0]
    assert here.keys() == there.keys()
    assert [record.participants for record in one.history] == [
        record.participants for record in other.history
    ]
    assert not any(record.failed for record in (*one.history, *other.history))
    names = [
        name
        for name, value in here.items()
        if value.is_floating_point() and name.startswith(("state/", "memory/"))
    ]
    return max(
        float((here[n].cpu() - there[n].cpu()).norm() / here[n].cpu().norm().clamp_min(1e-3))
        for n in names
    )


@pytest.mark.parametrize("method", [*method_names(), "cafedcl:best"])
def test_a_round_on_the_gpu_is_the_round_on_the_cpu(method: str) -> None:
    """To a relative 1e-3 of the norm: float32 convolutions in another order over 40 steps."""
    assert (
        furthest(
            one_round(method, name="reference", device="cpu"),
            one_round(method, name="reference", device="cuda"),
        )
        <= 1e-3
    )


@pytest.mark.parametrize("method", [*method_names(), "cafedcl:best"])
def test_captured_steps_are_the_eager_steps(method: str) -> None:
    """To a relative 1e-5, in fp32: padded batches, several streams, other kernels."""
    captured = one_round(method, name="cuda", device="cuda", streams=3)
    assert isinstance(captured.engine, CudaEngine)
    assert furthest(one_round(method, name="reference", device="cuda"), captured) <= 1e-5


def test_clients_train_on_the_features_of_a_frozen_encoder() -> None:
    captured = one_round("fedavg", "all", name="cuda", device="cuda", streams=3)
    assert captured.task.frozen_encoder is not None
    assert captured.task.clients.inputs.train_x.is_cuda
    assert furthest(one_round("fedavg", "all", name="reference", device="cpu"), captured) <= 1e-3


def test_a_capture_keeps_what_only_its_work_refers_to() -> None:
    device = torch.device("cuda")
    lane, out = Lane(device), torch.zeros(1000, device=device)

    def captured() -> Callable[[], None]:
        mine = torch.arange(1000.0, device=device)
        lane.follow()
        return lane.capture(lambda: out.copy_(mine))

    with lane.on():
        replay = captured()
        others = [torch.full((1000,), -1.0, device=device) for _ in range(100)]
        replay()
    torch.cuda.synchronize()
    assert len(others) == 100
    assert torch.equal(out.cpu(), torch.arange(1000.0))


@pytest.mark.parametrize("times", [1, 11, 12, 25, 1003])
def test_steps_are_repeated_between_what_the_caller_queues_before_and_after(times: int) -> None:
    """On a stream of the caller's own, which is kept busy, so that a step that does not wait would
    be overwritten.
    """
    caller = torch.cuda.Stream()
    with torch.cuda.stream(caller):
        count = torch.zeros(1, device="cuda")
        torch.cuda._sleep(20_000_000)
        count.fill_(5)
        repeat(lambda: count.add_(1), times, count.device)
        doubled = 2 * count
    caller.synchronize()
    assert doubled.item() == 2 * (5 + times)


@pytest.mark.parametrize("batch", [7, 10, 500])
def test_a_server_that_trains_on_the_gpu_learns_what_it_learns_on_the_cpu(batch: int) -> None:
    """To a relative 1e-3 of the norm, over two rounds; the second one begins with what the first
    one left.
    """
    method, draws = (
        FedTGP(FedTGPOptions(batch=batch, epochs=30), 10, 64),
        torch.Generator().manual_seed(0),
    )
    torch.manual_seed(0)
    start, found = method.start(Network(nn.Identity(), nn.Identity())), []
    centres, uploads = torch.randn(10, 64, generator=draws), []
    for _ in range(8):
        held = torch.randperm(10, generator=draws)[:6].sort().values
        uploads.append(
            {
                "classes": held,
                "prototypes": centres[held] + 0.2 * torch.randn(6, 64, generator=draws),
            }
        )
    for device in ("cpu", "cuda"):
        state = moved(start, device)
        for seed in (1, 2):
            torch.manual_seed(seed)
            ups = [Up(client, 10, moved(tensors, device)) for client, tensors in enumerate(uploads)]
            state = {**state, **method.update(state, ups)}
        assert all(value.device.type == device for value in state.values())
        found.append(moved(state, "cpu"))
    here, there = found
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert float((value.float() - there[name].float()).norm() / value.float().norm()) <= 1e-3, (
            name
        )
        assert not torch.equal(value, start[name]), name


def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of 3, 9, 45 and 300 points in three clouds each, and one that is the same point
    twenty times.
    """
    draws, sizes = torch.Generator().manual_seed(0), (3, 9, 45, 300)
    z = [
        6 * torch.randn(3, 64, generator=draws).repeat(n // 3, 1)
        + torch.randn(n, 64, generator=draws)
        for n in sizes
    ]
    y = torch.tensor([0, 1, 2, 3, 5]).repeat_interleave(torch.tensor([*sizes, 20]))
    order = torch.randperm(len(y), generator=draws)
    return torch.cat([*z, torch.ones(20, 64)])[order], y[order]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_centroids_on_the_gpu_are_those_on_the_cpu(k: int) -> None:
    z, y = clouds()
    (classes, centroids), (there, found) = (
        k_means(z, y, y.unique(), k),
        k_means(z.cuda(), y.cuda(), y.unique().cuda(), k),
    )
    assert found.is_cuda
    assert classes.tolist() == there.tolist()
    if k <= 3:
        torch.testing.assert_close(found.cpu(), centroids, atol=1e-3, rtol=1e-3)
    costs = [
        torch.cdist(z[y == 3], rows[classes == 3]).square().amin(1).sum()
        for rows in (centroids, found.cpu())
    ]
    torch.testing.assert_close(costs[0], costs[1], atol=0, rtol=0.02)


def test_padded_centroids_never_wait_for_the_device() -> None:
    z, y = (part.cuda() for part in clouds())
    held = y.unique()
    k_means(z, y, held, 3, padded=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            k_means(z, y, held, 3, padded=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not any("synchronizing CUDA operation" in str(each.message) for each in said)


@pytest.mark.parametrize("name", ["reference", "cuda"])
@pytest.mark.parametrize(("method", "home"), [("fedtgp", "cuda"), ("fedproto", "cpu")])
def test_what_the_server_works_on_is_on_the_device_only_if_it_trains(
    method: str, home: str, name: str
) -> None:
    federation = one_round(method, name=name, device="cuda")
    assert {value.device.type for value in federation.state.values()} == {home}
    federation.restore(*federation.snapshot())
    assert {value.device.type for value in federation.state.values()} == {home}
    assert federation.step().failed == []


@pytest.mark.parametrize("kind", ["resample", "mixup", "cutmix", "gaussian"])
def test_captured_steps_see_the_same_synthetic_images(kind: str) -> None:
    captured = one_round(f"cafedcl+{kind}", name="cuda", device="cuda", streams=3)
    assert furthest(one_round(f"cafedcl+{kind}", name="reference", device="cuda"), captured) <= 1e-5


def test_generators_learn_side_by_side_what_they_learn_alone() -> None:
    """To a relative 5 %: a hundred steps of Adam on kernels that sum in another order each time."""
    alone, beside = (
        one_round("cafedcl+gan", name=name, device="cuda") for name in ("reference", "cuda")
    )
    assert all(not record.failed for record in (*alone.history, *beside.history))
    for client, memory in alone.memories.items():
        other = beside.memories[client]
        assert memory.keys() == other.keys()
        for name, value in memory.items():
            if name.startswith("augment/generator/"):
                assert float((value - other[name]).norm() / value.norm().clamp_min(1e-3)) <= 0.05, (
                    name
                )


@pytest.mark.parametrize("method", ["fedavg", "cafedcl", "moon"])
def test_compiled_steps_are_the_eager_steps(method: str) -> None:
    compiled = one_round(method, name="cuda", device="cuda", compile="on")
    assert isinstance(compiled.engine, CudaEngine)
    assert compiled.engine.device_data.program.compiled
    assert furthest(one_round(method, name="reference", device="cuda"), compiled) <= 1e-5


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize("method", ["fedavg", "cafedcl"])
def test_bf16_trains_to_the_same_loss(method: str, compiled: str) -> None:
    half = one_round(method, device="cuda", precision="bf16", compile=compiled)
    full = one_round(method, device="cuda")
    assert isinstance(half.engine, CudaEngine)
    assert half.engine.device_data.program.compiled == (compiled == "on")
    losses = [sum(federation.history[0].loss.values()) for federation in (half, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]
    assert all(
        value.dtype == torch.float32
        for name, value in half.state.items()
        if name.startswith("model/")
    )


@pytest.mark.parametrize("batch", [37, 500])
def test_lanes_that_share_the_test_images_predict_what_one_does(batch: int) -> None:
    tables = {
        "method": {"name": "cafedcl"},
        "federation": {"clients": 6, "rounds": 2},
        "evaluate": {"batch": batch},
    }
    engines = [
        {"name": "reference"},
        {"streams": 1, "precision": "fp32"},
        {"streams": 6, "precision": "fp32"},
    ]
    predicted = []
    for engine in engines:
        federation = Federation(resolve({**tables, "engine": {"device": "cuda", **engine}}))
        federation.step()
        predicted.append([federation.engine.predict(federation.state)().long() for _ in range(3)])
    assert all(torch.equal(each[0], other) for each in predicted for other in each)
    assert all(
        float((predicted[0][0] == other[0]).double().mean()) >= 0.99 for other in predicted[1:]
    )


def test_memories_over_the_budget_go_to_the_host() -> None:
    tables = {
        "method": {"name": "moon"},
        "federation": {"clients": 4, "rounds": 2},
        "engine": {"device": "cuda"},
    }
    federation, roomy = Federation(resolve(tables)), Federation(resolve(tables))
    assert isinstance(federation.engine, CudaEngine)
    federation.engine.memory_budget = 0.0
    for each in (federation, roomy):
        each.run()
    assert all(
        value.device.type == "cpu"
        for memory in federation.memories.values()
        for value in memory.values()
    )
    assert all(value.is_cuda for memory in roomy.memories.values() for value in memory.values())
    assert furthest(federation, roomy) <= 1e-6


def test_a_model_that_draws_random_numbers_is_not_captured() -> None:
    notices = []

    class Listener(Callback):
        def noticed(self, federation: Federation, message: str) -> None:
            notices.append(message)

    setup = prepare(resolve({"method": {"name": "fedavg"}, "engine": {"device": "cuda"}}))
    setup.task.network.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10)).cuda()
    initial = {
        name: value.detach().clone() for name, value in setup.task.network.state_dict().items()
    }
    federation = Federation(replace(setup, task=replace(setup.task, initial=initial)), [Listener()])
    assert isinstance(federation.engine, ReferenceEngine)
    assert len(notices) == 1
    assert "random numbers" in notices[0]


def test_the_first_capture_waits_for_what_the_caller_has_queued() -> None:
    """The caller's stream may still be filling, or reading, the memory that a lane works on."""
    setup = prepare(resolve({"federation": {"clients": 4}, "engine": {"device": "cuda"}}))
    engine = CudaEngine(setup.task, setup.config.engine, 4, compiled=False)
    torch.cuda._sleep(500_000_000)
    queued = torch.cuda.Event()
    queued.record()
    assert not queued.query(), "the device should be asleep"
    engine.trial(Down(0, setup.task.method.broadcast(setup.start())))
    assert queued.query()
    engine.close()


@pytest.mark.parametrize("method", ["fedavg", "fedvls", "cafedcl"])
def test_a_second_run_in_a_process_has_the_bits_of_the_first(method: str) -> None:
    first = one_round(method)
    expected = {name: value.clone() for name, value in first.snapshot()[0].items()}
    first.close()
    for _ in range(3):
        # A busy device makes streams drift apart, which shows whether they wait for each other.
        torch.cuda._sleep(200_000_000)
        again = one_round(method)
        found = again.snapshot()[0]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        again.close()
