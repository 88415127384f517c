from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from capturing import sent
from torch import Tensor, nn

from cafedcl.core.contract import Batch, Down, Failure, Job, Reply, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cpu import stacked as stack_module
from cafedcl.engine.cpu.stacked import STEPS_GATHERED, StackedClients, stretches
from cafedcl.federation.rounds import Federation
from cafedcl.functional.metrics import KINDS
from cafedcl.methods import method_names
from cafedcl.models import Network

Tiny = Callable[..., Federation]
METHODS = [name for name in method_names() if name != "central"]
UNEQUAL = {
    "split__kind": "dirichlet",
    "split__form": "class",
    "split__alpha": 0.3,
    "federation__participation": 1.0,
}
SHORT = {"fedtgp": {"method__epochs": 5}}
WAYS = {
    "padded batches": {"train__epochs": 2, "train__iterations": 3},
    "unequal steps": {"train__epochs": 2, "train__batch_size": 60},
    "all options": {
        "train__epochs": 2,
        "train__batch_size": 100,
        "train__momentum": 0.5,
        "train__clip": 0.5,
        "train__lr_decay": 0.9,
        "train__lr_decay_in_round": True,
        "train__flip": True,
        "train__crop": 1,
    },
}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were trained side by side."""
    done: list[int] = []
    stacked = StackedClients.stacked

    def counting(self: StackedClients, group: Any) -> Any:
        trained = stacked(self, group)
        done.append(len(group))
        return trained

    monkeypatch.setattr(StackedClients, "stacked", counting)
    return done


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(tiny: Tiny, method: str, size: int = 3, **settings: Any) -> tuple[Federation, Federation]:
    """The same federation with the reference engine, and with clients stacked."""
    one, other = (tiny(method, **settings, **SHORT.get(method, {})) for _ in range(2))
    other.engine = StackedClients(other.task, size)
    return one, other


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the norm."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return (
        float((one.double() - other.double()).norm() / one.double().norm().clamp_min(1e-3))
        if one.numel()
        else 0.0
    )


def assert_near(one: Tensors, other: Tensors, within: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert distance(value.nan_to_num(-1), other[name].nan_to_num(-1)) <= within, name


# against the reference engine


# Steps are unequal and batches are padded under all options too, so plain ones need few methods.
@pytest.mark.parametrize(
    ("method", "way"),
    [
        (method, way)
        for method in METHODS
        for way in WAYS
        if way == "all options" or method in ("fedavg", "cafedcl", "scaffold")
    ],
)
def test_a_round_is_the_reference_engines_round(
    tiny: Tiny, groups: list[int], method: str, way: str
) -> None:
    """To a relative 1e-5 after one round, and 1e-4 after two, with memories and anchors.

    Neither is scored, which is not compared here.
    """
    unscored = {"federation__rounds": 3, "evaluate__every": 9, "evaluate__own_every": 9}
    few = {**UNEQUAL, "federation__clients": 4}
    one, other = pair(tiny, method, **few, **WAYS[way], **unscored, train__lr=0.03)
    sizes = [len(rows) for rows in one.task.clients.shards.train]
    if way == "all options":
        assert len({-(-size // 100) for size in sizes}) > 1, "steps are unequal"
        assert all(size % 100 for size in sizes), "every last batch is padded"
    for within in (1e-5, 1e-4):
        here, there = one.step(), other.step()
        assert (here.failed, here.traffic) == ([], there.traffic)
        assert here.loss.keys() == there.loss.keys()
        assert here.loss == pytest.approx(there.loss, rel=within, abs=within)
        assert_near(one.state, other.state, within)
        assert one.memories.keys() == other.memories.keys()
        for client, memory in one.memories.items():
            assert_near(memory, other.memories[client], within)
    assert sum(groups) == 2 * len(one.task.clients.shards)
    assert max(groups) > 1


@pytest.mark.parametrize("model", ["cnn8", "mlp"])
def test_replies_are_the_reference_engines_with_scores_and_notes(
    tiny: Tiny, groups: list[int], model: str
) -> None:
    one, other = pair(
        tiny, "cafedcl", **UNEQUAL, model__name=model, train__epochs=2, train__iterations=3
    )
    down = Down(0, one.method.broadcast(one.state))
    jobs = [Job(client, down, {}, True) for client in range(5)]
    expected, found = (
        {r.up.client: r for r in engine.train(jobs)} for engine in (one.engine, other.engine)
    )
    assert expected.keys() == found.keys() == set(range(5))
    assert groups
    for client, reply in found.items():
        assert reply.up.samples == expected[client].up.samples
        assert reply.up.losses == pytest.approx(expected[client].up.losses, rel=1e-5)
        assert reply.up.seconds > 0
        assert_near(sent(expected[client].up), sent(reply.up), 1e-5)
        assert_near(expected[client].up.notes, reply.up.notes, 1e-5)
        assert reply.correct.keys() == expected[client].correct.keys() == {"tested", *KINDS}
        for name, right in expected[client].correct.items():
            assert (right - reply.correct[name]).abs().sum() <= 0.01 * len(
                one.task.clients.test_labels(client)
            )


def test_a_group_gives_the_same_bits_whether_its_steps_are_recorded_or_played(tiny: Tiny) -> None:
    federation = tiny("cafedcl", **UNEQUAL, train__epochs=2, train__batch_size=60)
    down = Down(0, federation.method.broadcast(federation.state))
    jobs = [Job(client, down, {}, False) for client in range(5)]
    engine = StackedClients(federation.task, 5)
    first, second = ({r.up.client: sent(r.up) for r in engine.train(jobs)} for _ in range(2))
    assert engine.recordings
    assert all(tape is not None for tape in engine.recordings.values())
    for client, tensors in first.items():
        assert all(torch.equal(value, second[client][name]) for name, value in tensors.items())


def test_old_recordings_make_way_for_new_ones(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "RECORDINGS_KEPT", 2)
    federation = tiny("fedavg", **UNEQUAL, train__batch_size=20)
    engine = StackedClients(federation.task, 5)
    down = Down(0, federation.method.broadcast(federation.state))
    replies = list(engine.train([Job(client, down, {}, False) for client in range(5)]))
    assert len(replies) == 5
    assert len(engine.recordings) == 2


def test_stretches_are_where_the_same_clients_are_at_work() -> None:
    assert list(stretches([5, 5, 3, 1])) == [(0, 1, 4), (1, 3, 3), (3, 5, 2)]
    assert list(stretches([2 * STEPS_GATHERED + 1])) == [
        (0, STEPS_GATHERED, 1),
        (STEPS_GATHERED, 2 * STEPS_GATHERED, 1),
        (2 * STEPS_GATHERED, 2 * STEPS_GATHERED + 1, 1),
    ]


def test_clients_with_and_without_weights_of_their_own_train_side_by_side(
    tiny: Tiny, groups: list[int]
) -> None:
    """And each sees the weights it began with as received, whatever the order of its memory."""
    results = []
    for federation in pair(tiny, "fedprox", 5, **UNEQUAL, method__mu=1.0, train__epochs=2):
        federation.method.personal = ".*"
        start = {f"model/{name}": value for name, value in federation.task.initial.items()}
        moved = {name: 0.5 * value for name, value in reversed(start.items())}
        memories = [{}, start, {}, moved, start]
        jobs = [Job(client, Down(0, {}), memories[client], False) for client in range(5)]
        for _ in range(2):
            results.append({r.up.client: r for r in federation.engine.train(jobs)})
            jobs = [replace(job, memory=dict(reversed(job.memory.items()))) for job in jobs]
    assert groups == [5, 5]
    for client, reply in results[0].items():
        assert reply.up.losses["prox"] > 0
        for other in results[1:]:
            assert reply.up.losses == pytest.approx(other[client].up.losses, rel=1e-5)
            assert_near(reply.memory, other[client].memory, 1e-5)


# when something goes wrong


def run_all(federation: Federation, engine: StackedClients) -> dict[int, Reply | Failure]:
    down = Down(0, federation.method.broadcast(federation.state))
    results = engine.train([Job(client, down, {}, False) for client in range(5)])
    return {r.up.client if isinstance(r, Reply) else r.client: r for r in results}


def test_one_clients_nan_stays_with_it(tiny: Tiny, groups: list[int]) -> None:
    federation = tiny("local", **UNEQUAL, train__epochs=2)
    engine = StackedClients(federation.task, 5)
    fine = run_all(federation, engine)
    start = {f"model/{name}": value for name, value in federation.task.initial.items()}
    bad = {name: torch.full_like(value, torch.nan) for name, value in start.items()}
    down = Down(0, federation.method.broadcast(federation.state))
    jobs = [Job(client, down, bad if client == 2 else start, False) for client in range(5)]
    results = {r.up.client: r for r in engine.train(jobs) if isinstance(r, Reply)}
    assert groups == [5, 5]
    assert all(value.isnan().all() for value in results[2].memory.values())
    for client in (0, 1, 3, 4):
        assert all(
            torch.equal(value, fine[client].memory[name])
            for name, value in results[client].memory.items()
        )


def test_a_client_whose_summary_raises_is_the_only_one_to_fail(
    tiny: Tiny, groups: list[int]
) -> None:
    federation = tiny("cafedcl", **UNEQUAL)
    summarize = federation.method.summarize

    def failing(model: Network, visit: Visit) -> Any:
        if visit.client.index == 3:
            raise RuntimeError("no more memory")
        return summarize(model, visit)

    federation.method.summarize = failing
    results = run_all(federation, StackedClients(federation.task, 5))
    assert groups == [5]
    failed = results[3]
    assert isinstance(failed, Failure)
    assert failed.reason.startswith("RuntimeError: no more memory (test_stacked.py, line ")
    assert [client for client, result in sorted(results.items()) if isinstance(result, Reply)] == [
        0,
        1,
        2,
        4,
    ]


def test_what_was_trained_for_a_round_that_was_given_up_is_forgotten(tiny: Tiny) -> None:
    one, other = pair(tiny, "local", 5, **UNEQUAL)
    engine, down = other.engine, Down(0, other.method.broadcast(other.state))
    jobs = [Job(client, down, {}, False) for client in range(5)]
    results = engine.train(jobs)
    first = next(results)
    assert len(engine.trained) == 4
    results.close()
    assert engine.trained == {}
    later = replace(jobs[first.up.client], down=Down(1, down.tensors))
    expected = one.engine.attempt(later)
    assert all(
        torch.equal(value, expected.memory[n]) for n, value in engine.attempt(later).memory.items()
    )


@pytest.mark.parametrize("kind", ["reads a value", "reads a number", "draws", "raises"])
def test_a_loss_that_cannot_be_stacked_is_trained_one_client_after_another(
    tiny: Tiny, groups: list[int], kind: str
) -> None:
    one, other = (tiny("fedavg", **UNEQUAL) for _ in range(2))

    def spoil(federation: Federation) -> None:
        plain = federation.method.loss

        def loss(model: Network, batch: Batch, visit: Visit) -> Tensors:
            terms = plain(model, batch, visit)
            if kind == "reads a value" and terms["ce"].detach().item() < 0:
                return {}
            if kind == "reads a number":
                return {"ce": terms["ce"] / visit.client.samples}
            if kind == "draws":
                return {"ce": terms["ce"] * torch.rand(())}
            if kind == "raises" and len(batch.weight) != int(batch.weight.sum()):
                raise RuntimeError("padding")
            return terms

        federation.method.loss = loss

    spoil(one)
    spoil(other)
    expected, found = run_all(one, one.engine), run_all(other, StackedClients(other.task, 5))
    assert groups == []
    for client, reply in expected.items():
        assert all(torch.equal(v, sent(found[client].up)[n]) for n, v in sent(reply.up).items())


def test_a_step_that_was_refused_is_not_recorded_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = tiny("fedavg", **UNEQUAL)
    calls: list[int] = []

    def refuse(*_: object) -> Any:
        calls.append(1)
        raise ValueError("no")

    monkeypatch.setattr(stack_module, "record", refuse)
    engine = StackedClients(federation.task, 5)
    for _ in range(3):
        assert all(isinstance(result, Reply) for result in run_all(federation, engine).values())
    assert calls == [1]


class ClientImages(nn.Module):
    """Somebody's network, which calls functions instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(
            0.2 * torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(1))
        )
        self.full = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.full(nn.functional.conv2d(x, self.filters, padding=1).relu().mean((2, 3)))


def test_somebodys_own_network_is_stacked_too(tiny: Tiny, groups: list[int]) -> None:
    results = []
    for size in (1, 5):
        federation = tiny("fedprox", **UNEQUAL)
        torch.manual_seed(0)
        network = Network(ClientImages(), nn.Linear(6, 10))
        initial = {name: value.detach().clone() for name, value in network.state_dict().items()}
        task = replace(federation.task, network=network, initial=initial)
        down = Down(0, {f"model/{name}": value for name, value in initial.items()})
        engine = StackedClients(task, size)
        results.append(
            {r.up.client: r for r in engine.train([Job(k, down, {}, False) for k in range(5)])}
        )
    assert groups == [5]
    for client, reply in results[0].items():
        assert isinstance(reply, Reply)
        assert_near(sent(reply.up), sent(results[1][client].up), 1e-5)
