import os

import pytest
import torch

from cafedcl.engine.cpu.shared_memory import SharedMemory

TENSORS = {
    "weights": torch.arange(6, dtype=torch.float32).view(2, 3),
    "turned": torch.arange(6, dtype=torch.float64).view(2, 3).T,
    "known": torch.tensor([True, False, True]),
    "classes": torch.tensor([1, 7]),
    "predicted": torch.tensor([3], dtype=torch.int16),
    "number": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
}


def test_what_was_written_is_read() -> None:
    memory = SharedMemory(4096)
    assert memory.write(TENSORS, {"client": 3, "reason": "«why»"})
    for copied in (True, False):
        tensors, header = memory.read(copied=copied)
        assert header == {"client": 3, "reason": "«why»"}
        assert list(tensors) == list(TENSORS)
        for name, value in TENSORS.items():
            assert tensors[name].dtype == value.dtype
            assert torch.equal(tensors[name], value), name


def test_a_copy_stays_when_something_else_is_written_and_a_view_does_not() -> None:
    memory = SharedMemory(4096)
    memory.write({"w": torch.ones(3)}, {})
    copy, view = memory.read(copied=True)[0]["w"], memory.read(copied=False)[0]["w"]
    memory.write({"w": torch.zeros(3)}, {})
    assert copy.tolist() == [1, 1, 1]
    assert view.tolist() == [0, 0, 0]


@pytest.mark.parametrize("numbers", [1100, 2000])
def test_what_does_not_fit_is_refused_and_leaves_what_was_there(numbers: int) -> None:
    memory = SharedMemory(4096)
    memory.write({"w": torch.ones(3)}, {"first": True})
    assert not memory.write({"w": torch.zeros(numbers)}, {})
    tensors, header = memory.read(copied=True)
    assert header == {"first": True}
    assert tensors["w"].tolist() == [1, 1, 1]


def test_a_forked_process_writes_what_this_one_reads() -> None:
    memory = SharedMemory(4096)
    pid = os.fork()
    if pid == 0:
        memory.write({"w": torch.full((2,), 5.0)}, {"from": "the child"})
        os._exit(0)
    os.waitpid(pid, 0)
    tensors, header = memory.read(copied=True)
    assert header == {"from": "the child"}
    assert tensors["w"].tolist() == [5, 5]
