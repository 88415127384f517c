from multiprocessing import Pipe

import pytest
import torch

from cafedcl.core.contract import Down, Failure, Job, Reply, Up
from cafedcl.engine.cpu.messages import (
    DOWN,
    JOBS,
    RESULTS,
    Channel,
    down_message,
    group_message,
    group_result_message,
    to_down,
    to_group,
    to_group_results,
)
from cafedcl.engine.cpu.shared_memory import SharedMemory


@pytest.fixture(params=["through the pipe", "through shared memory", "too large for the memory"])
def channel(request: pytest.FixtureRequest) -> Channel:
    """Both ends in one, whichever way the content goes."""
    size = {"through shared memory": 2**16, "too large for the memory": 64}.get(request.param)
    ours, theirs = Pipe()
    both = Channel(
        ours, {} if size is None else {kind: SharedMemory(size) for kind in (DOWN, JOBS, RESULTS)}
    )
    both.pipe.recv_bytes = theirs.recv_bytes
    return both


def test_what_the_server_sends_arrives(channel: Channel) -> None:
    down = Down(7, {"model/w": torch.randn(2, 3), "anchors/known": torch.tensor([True, False])})
    channel.send(DOWN, down_message(down))
    kind, parts = channel.receive(copied=True)
    arrived = to_down(parts)
    assert (kind, arrived.round) == (DOWN, 7)
    assert arrived.tensors.keys() == down.tensors.keys()
    assert all(torch.equal(arrived.tensors[name], down.tensors[name]) for name in down.tensors)


def test_jobs_arrive_each_with_its_own_memory(channel: Channel) -> None:
    down = Down(7, {})
    group = (Job(3, down, {"model/own": torch.ones(2)}, True), Job(12, down, {}, False))
    channel.send(JOBS, group_message(group))
    kind, parts = channel.receive(copied=True)
    first, second = to_group(parts, down)
    assert kind == JOBS
    assert (first.client, first.evaluate, first.down) == (3, True, down)
    assert first.memory.keys() == {"model/own"}
    assert torch.equal(first.memory["model/own"], torch.ones(2))
    assert (second.client, second.evaluate, second.memory) == (12, False, {})


def test_results_arrive_a_failure_with_its_reason(channel: Channel) -> None:
    up = Up(
        3,
        5,
        {"classes": torch.tensor([1, 4])},
        {"w": torch.zeros(1)},
        {"u": torch.ones(2)},
        {"ce": 0.1},
        2.5,
    )
    sent = [
        Failure(2, "out of «memory»"),
        Reply(up, {"model/own": torch.ones(1)}, {"all": torch.tensor([1, 2], dtype=torch.int16)}),
    ]
    channel.send(RESULTS, group_result_message(sent))
    kind, parts = channel.receive(copied=True)
    failure, reply = to_group_results(parts)
    assert kind == RESULTS
    assert failure == sent[0]
    assert isinstance(reply, Reply)
    assert (reply.up.client, reply.up.samples, reply.up.losses, reply.up.seconds) == (
        3,
        5,
        {"ce": 0.1},
        2.5,
    )
    assert reply.up.tensors.keys() == {"classes"}
    assert torch.equal(reply.up.tensors["classes"], torch.tensor([1, 4]))
    assert reply.up.model.keys() == {"w"}
    assert torch.equal(reply.up.model["w"], torch.zeros(1))
    assert reply.up.notes.keys() == {"u"}
    assert reply.memory.keys() == {"model/own"}
    assert torch.equal(reply.correct["all"], torch.tensor([1, 2]))
