import dataclasses
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.data.shards import save_shards
from cafedcl.task.build import prepare, settle_split
from cafedcl.task.checks import check_schedule
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


def small(**sections: dict[str, object]) -> Config:
    """Four clients with equal parts of the digits, on a CPU."""
    usual: dict[str, dict[str, object]] = {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp", "width": 0.1},
        "split": {"kind": "iid"},
        "engine": {"device": "cpu"},
        "federation": {"clients": 4, "rounds": 2},
    }
    for name, table in sections.items():
        usual[name] = {**usual.get(name, {}), **table}
    return resolve(usual)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"federation": {"drop": ["99:0"]}},
            'federation.drop: "99:0": there is no round 99; rounds are counted from 0 here, and',
        ),
        ({"federation": {"drop": ["2:0"]}}, "there is no round 2"),
        ({"federation": {"drop": ["-1:0"]}}, "there is no round -1"),
        (
            {"federation": {"drop": ["0:0,4"]}},
            "there is no client 4; clients are counted from 0, and the last one is 3",
        ),
        ({"federation": {"drop": ["0:-1"]}}, "there is no client -1"),
        ({"federation": {"drop": ["0"]}}, 'is not "round:client,client"'),
        (
            {"train": {"crop": 64}},
            "train.crop = 64: the padding must be smaller than the images, which have 8×8 pixels; "
            "use at most 7",
        ),
        ({"train": {"crop": 8}}, "use at most 7"),
        (
            {"federation": {"min_replies": 5}},
            "federation.min_replies = 5: only 4 of 4 clients take part in a round",
        ),
        ({"data": {"images": 1}}, "data.images = 1: the 10 classes need at least one image each"),
        (
            {"data": {"images": 12}, "federation": {"clients": 100}},
            "split: 10 images are too few for 100 clients",
        ),
        (
            {"split": {"ir": 1e6}},
            "split.ir = 1e\\+06: class '.' would keep no image; use at most",
        ),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(sections, words) -> None:
    with pytest.raises(CafedclError, match=words):
        prepare(small(**sections))


def test_the_largest_crop_and_the_last_round_are_accepted() -> None:
    prepare(small(train={"crop": 7}, federation={"drop": ["1:3"], "min_replies": 4}))


@pytest.fixture
def six_owners(digits: Dataset) -> Dataset:
    return dataclasses.replace(digits, owners=torch.arange(len(digits.train_y)) % 6)


def test_natural_clients_are_as_many_as_there_are(six_owners: Dataset) -> None:
    natural = {"kind": "auto"}
    for clients in (0, 6):
        setup = prepare(small(federation={"clients": clients}, split=natural), six_owners)
        assert setup.config.federation.clients == 6
        assert setup.config.split.kind == "natural"
    with pytest.raises(
        CafedclError, match=r"federation.clients = 3: the data have 6 natural clients; leave"
    ):
        prepare(small(federation={"clients": 3}, split=natural), six_owners)
    with pytest.raises(
        CafedclError, match=r"6 natural clients; if .* put them back; otherwise leave"
    ):
        prepare(small(federation={"clients": 7}, split=natural), six_owners)


def test_one_class_is_nothing_to_learn(digits: Dataset) -> None:
    only = dataclasses.replace(
        digits,
        names=digits.names[:1],
        train_y=torch.zeros_like(digits.train_y),
        test_y=torch.zeros_like(digits.test_y),
    )
    with pytest.raises(CafedclError, match="only one class, '0', so there is nothing to learn"):
        prepare(small(split={"kind": "iid"}), only)


def test_a_file_says_how_many_clients_there_are(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.safetensors"
    _, shards = settle_split(small(), digits)
    save_shards(shards, digits.train_y, path)
    file = {"kind": "file", "file": str(path)}
    assert prepare(small(federation={"clients": 0}, split=file)).config.federation.clients == 4
    with pytest.raises(CafedclError, match=r"federation.clients = 3: the file has 4; leave the"):
        prepare(small(federation={"clients": 3}, split=file))


def test_a_path_below_the_home_folder_is_recorded_in_full(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed must find its files again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "own.npz", x=digits.train_x[:, 0].numpy(), y=digits.train_y.numpy())
    own = {"name": "~/own.npz"}
    setup = prepare(small(data=own))
    assert setup.config.data.name == str(tmp_path / "own.npz")
    shards = setup.task.clients.shards
    save_shards(shards, setup.task.clients.data.train_y, tmp_path / "split.safetensors")
    file = {"kind": "file", "file": "~/split.safetensors"}
    again = prepare(small(data=own, split=file))
    assert again.config.split.file == str(tmp_path / "split.safetensors")
    assert torch.equal(again.counts, setup.counts)
    with pytest.raises(CafedclError, match="~nobody-here/x: this home folder is not known"):
        prepare(small(data=own, split={**file, "file": "~nobody-here/x"}))


def test_an_option_that_natural_clients_do_not_use_is_refused(six_owners: Dataset) -> None:
    with pytest.raises(CafedclError, match=r"split.alpha = 0.5: the split 'natural' does not use"):
        prepare(small(federation={"clients": 0}, split={"kind": "auto", "alpha": 0.5}), six_owners)


def test_a_model_without_weights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\n\n\ndef make(shape, width):\n    return torch.nn.Flatten()\n"
    (tmp_path / "weightless.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = resolve({"model": {"name": "weightless:make"}, "method": {"name": "cafedcl"}})
    with pytest.raises(CafedclError, match="model 'weightless:make': it has no weights"):
        prepare(config)


def test_a_model_without_stages_is_refused_before_a_method_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from torch import nn\n\ndef make(shape, width):\n    return "
    code += "nn.Sequential(nn.Flatten(), nn.Linear(64, 8))\n"
    (tmp_path / "stageless.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = resolve({"model": {"name": "stageless:make"}, "method": {"name": "fedrcl"}})
    with pytest.raises(CafedclError, match=r"'stageless:make': it has no stages, .*cafedcl\.ext"):
        prepare(config)
