import os
from contextlib import suppress

import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.device.choose import choose_device, missing_device


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:99", "this machine cannot use it"),
        ("xpu:7", "this machine cannot use it"),
        ("nonsense", "there is no such device; auto, cpu, cuda, "),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(name: str, words: str) -> None:
    with pytest.raises(CafedclError, match=f"engine.device = '{name}': {words}"):
        choose_device(name)


@pytest.mark.parametrize(
    "words", ["out of memory", "CUDA-capable device(s) is/are busy or unavailable"]
)
def test_a_device_that_others_take_is_not_called_unusable(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(f"CUDA error: {words}\nmore lines")

    monkeypatch.setattr("cafedcl.device.choose.torch.zeros", full)
    monkeypatch.setattr("cafedcl.device.choose.time.sleep", lambda _: None)
    with pytest.raises(CafedclError, match=r"other programs take all of it: CUDA error: .*--jobs"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("words", "trials"), [("busy or unavailable", 3), ("out of memory", 3), ("invalid device", 1)]
)
def test_only_a_device_that_others_take_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, words: str, trials: int
) -> None:
    tried: list[str] = []
    waited: list[float] = []

    def open_at_the_third_trial(*_: object, device: torch.device) -> None:
        tried.append(device.type)
        if len(tried) < 3:
            raise RuntimeError(f"CUDA error: {words}")

    monkeypatch.setattr("cafedcl.device.choose.torch.zeros", open_at_the_third_trial)
    monkeypatch.setattr("cafedcl.device.choose.time.sleep", waited.append)
    with suppress(CafedclError):
        choose_device("cuda")
    assert tried == ["cuda"] * trials
    assert len(waited) == trials - 1


@pytest.mark.parametrize(("given", "expected"), [(None, "32"), ("4", "4")])
def test_a_gpu_takes_work_from_all_its_queues_unless_it_was_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    choose_device("cpu")
    assert os.environ.get(name) == given
    choose_device("auto")
    assert os.environ[name] == expected


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [
        ("auto", 0, None),
        ("cpu", 0, None),
        ("cuda", 1, None),
        ("cuda:1", 2, None),
        ("cuda", 0, "this machine has no cuda device"),
        ("cuda:1", 1, "this machine has 1 cuda device"),
        ("cuda:2", 2, "this machine has 2 cuda devices"),
        ("xpu", 1, "this machine has no xpu device"),
        ("gpu", 1, "there is no such device; auto, cpu, "),
    ],
)
def test_why_a_device_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, why: str | None
) -> None:
    monkeypatch.setattr("cafedcl.device.choose.torch.cuda.device_count", lambda: number)
    found = missing_device(name)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(why)
