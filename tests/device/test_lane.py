import time

import pytest
import torch

from cafedcl.device.lane import Lane, to_host


@pytest.fixture
def lane() -> Lane:
    return Lane(torch.device("cpu"))


def test_a_capture_runs_before_and_the_work_once_and_returns_what_repeats_the_work(
    lane: Lane,
) -> None:
    called = []
    repeat = lane.capture(lambda: called.append("work"), lambda: called.append("before"))
    assert called == ["before", "work"]
    repeat()
    repeat()
    assert called == ["before", "work", "work", "work"]


def test_a_capture_needs_nothing_before_it(lane: Lane) -> None:
    counter = torch.zeros(1)
    repeat = lane.capture(lambda: counter.add_(1))
    repeat()
    assert counter.tolist() == [2]


def test_a_capture_reads_its_tensors_anew_every_time(lane: Lane) -> None:
    given, found = torch.ones(3), torch.zeros(3)
    repeat = lane.capture(lambda: found.copy_(2 * given))
    given.fill_(5)
    assert found.tolist() == [2, 2, 2]
    repeat()
    assert found.tolist() == [10, 10, 10]


def test_what_goes_wrong_in_a_capture_is_raised(lane: Lane) -> None:
    with pytest.raises(ZeroDivisionError):
        lane.capture(lambda: 1 // 0)


def test_marks_measure_the_time_between_them(lane: Lane) -> None:
    began = time.perf_counter()
    first = lane.mark()
    time.sleep(0.05)
    second = lane.mark()
    took = time.perf_counter() - began
    first.wait()
    second.wait()
    assert 0.05 <= second.seconds_since(first) <= took
    assert second.seconds_since(second) == 0


def test_work_inside_a_lane_is_plain_work(lane: Lane) -> None:
    values = {"a": torch.arange(3.0)}
    lane.follow()
    with lane.on():
        values["a"] += 1
    lane.hand_over(values.values())
    assert values["a"].tolist() == [1, 2, 3]


def test_to_host_gives_the_same_values_on_the_host() -> None:
    given = {"a": torch.arange(4.0), "b": torch.tensor([True, False])}
    found = to_host(given)
    assert found.keys() == given.keys()
    for name, value in given.items():
        assert found[name].device.type == "cpu"
        assert torch.equal(found[name], value)
