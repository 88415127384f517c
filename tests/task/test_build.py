import os
import platform

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.task.build import check_schedule, choose_device, prepare
from cafedcl.task.resolve import resolve


@pytest.mark.parametrize(
    ("machine", "model", "expected"),
    [
        ("aarch64", "mlp", "off"),
        ("x86_64", "mlp", "on"),
        ("x86_64", "cnn8", "off"),
        ("arm64", "cnn8", "off"),
    ],
)
def test_every_auto_is_settled_by_rule(
    monkeypatch: pytest.MonkeyPatch, machine: str, model: str, expected: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    config = prepare(resolve({"model": {"name": model}, "engine": {"device": "cpu"}})).config
    assert config.engine.onednn == expected
    assert (config.engine.name, config.engine.device) == ("cpu", "cpu")
    assert config.split.kind == "dirichlet"


def test_a_choice_is_kept() -> None:
    config = prepare(resolve({"engine": {"onednn": "on", "device": "cpu"}})).config
    assert config.engine.onednn == "on"
    assert config.model.name == "cnn8", "by the size of the images"


def test_settled_configs_stay_as_they_are() -> None:
    once = prepare(resolve({"engine": {"device": "cpu"}})).config
    assert prepare(once).config == once


def test_the_drop_out_schedule_is_read_by_round() -> None:
    config = resolve({"federation": {"drop": ["3:0,4", "3:1", "5:2"]}})
    assert check_schedule(config) == {3: {0, 1, 4}, 5: {2}}


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "xpu:7"])
def test_a_device_that_is_not_there_is_one_clear_line(name: str) -> None:
    with pytest.raises(CafedclError, match=f"engine.device = '{name}': this machine cannot use it"):
        choose_device(name)


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
