from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import cafedcl.device.capture as module
from cafedcl.device.capture import CHAIN, WARM_UP, repeat


@pytest.mark.parametrize("times", [0, 1, 7, 50])
def test_on_a_host_a_step_is_taken_so_many_times(times: int) -> None:
    count = torch.zeros(1)
    repeat(lambda: count.add_(1), times, torch.device("cpu"))
    assert count.item() == times


@pytest.mark.parametrize("times", [0, 1, 2, 11, 12, 13, 22, 105])
def test_plain_and_replayed_steps_are_so_many_together(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """With a device that is not there: a capture does nothing but remember the work, as a real one
    does.
    """
    taken: list[str] = []
    captured: list[int] = []

    def capture(work: Callable[[], None], _stream: object) -> SimpleNamespace:
        captured.append(len(taken))

        def replay() -> None:
            before = len(taken)
            work()
            taken[before:] = ["replayed"] * (len(taken) - before)

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "_side_stream", lambda _device: Mock())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    repeat(lambda: taken.append("plain"), times, torch.device("cuda"))
    assert len(taken) == times
    assert taken.count("replayed") == max(0, times - WARM_UP) // CHAIN * CHAIN
    assert len(captured) == (times >= WARM_UP + CHAIN)
    assert all(number >= WARM_UP for number in captured), "a capture is warmed up"
