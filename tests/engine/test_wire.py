import torch

from cafedcl.contract import Down, Failure, Job, Reply, Up
from cafedcl.engine.wire import pack_down, pack_job, pack_result, unpack_down, unpack_job, unpack_result


def test_jobs_and_results_arrive_as_they_were_sent() -> None:
    down = Down(7, {"model/w": torch.randn(2, 3), "anchors/known": torch.tensor([True, False])})
    arrived = unpack_down(pack_down(down))
    assert arrived.round == 7
    assert all(torch.equal(arrived.tensors[name], down.tensors[name]) for name in down.tensors)
    job = unpack_job(pack_job(Job(3, down, {"model/own": torch.ones(2)}, True)), arrived)
    assert (job.client, job.evaluate, job.down) == (3, True, arrived)
    assert torch.equal(job.memory["model/own"], torch.ones(2))
    up = Up(3, 5, {"model/w": torch.zeros(1), "classes": torch.tensor([1, 4])}, {"u": torch.ones(2)}, {"ce": 0.1}, 2.5)
    reply = unpack_result(pack_result(Reply(up, {"model/own": torch.ones(1)}, {"all": torch.tensor([1, 2])})))
    assert isinstance(reply, Reply)
    assert (reply.up.client, reply.up.samples, reply.up.losses, reply.up.seconds) == (3, 5, {"ce": 0.1}, 2.5)
    assert torch.equal(reply.up.tensors["classes"], torch.tensor([1, 4]))
    assert reply.up.notes.keys() == {"u"}
    assert reply.memory.keys() == {"model/own"}
    assert torch.equal(reply.hits["all"], torch.tensor([1, 2]))


def test_a_failure_arrives_with_its_reason() -> None:
    assert unpack_result(pack_result(Failure(2, "out of «memory»"))) == Failure(2, "out of «memory»")
