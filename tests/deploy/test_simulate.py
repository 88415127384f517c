"""A run on Flower's simulation engine, with Ray, from Python."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from comparing import wherever

pytest.importorskip("flwr")
if find_spec("ray") is None:
    # Importing it takes seconds, in every process that collects tests.
    pytest.skip("ray is not installed", allow_module_level=True)

import cafedcl
from cafedcl import api
from cafedcl.core.contract import TICKET
from cafedcl.core.errors import CafedclError
from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import resolve

SETTINGS = {
    "model.name": "net_in_this_folder:make",
    "train.epochs": 1,
    "train.iterations": 2,
    "engine.device": "cpu",
}
NET = """
from torch import nn

def make(shape, width):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU())
"""


@pytest.mark.slow
def test_a_simulation_on_flower_is_the_same_to_the_last_bit(tmp_path, monkeypatch):
    """MOON, whose clients keep a model between rounds, with a model from the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("net_in_this_folder.py").write_text(NET, encoding="utf-8")
    chosen = {"method": "moon", "clients": 3, "rounds": 2, "split": "dirichlet:1"}
    out = tmp_path / "run"
    there = cafedcl.run(**chosen, engine="flower", out=out, settings=SETTINGS)
    here = cafedcl.run(
        **chosen, engine="cpu", settings={**SETTINGS, "engine.workers": 1, "engine.stack": 1}
    )
    assert there.state.keys() == here.state.keys()
    for name, value in here.state.items():
        assert torch.equal(there.state[name], value), name
    for line, other in zip(there.records, here.records, strict=True):
        assert wherever(line) == wherever(other)
    assert {path.name for path in (out / "sites" / "memory").glob("*/*")} == {"0", "1", "2"}
    assert there.memories[0].keys() == {TICKET}


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    config = resolve(
        {"engine": {"name": "cpu", "device": "cpu", "workers": 1}, "federation": {"rounds": 1}}
    )
    config = replace(config, train=replace(config.train, epochs=1, iterations=1))
    api.start(config, tmp_path / "run", [])
    with pytest.raises(CafedclError, match="already holds a run"):
        api.start(
            replace(config, engine=replace(config.engine, name="flower")), tmp_path / "run", []
        )


def test_a_federation_on_flower_is_not_made_here():
    with pytest.raises(CafedclError, match="made by Flower's server"):
        Federation(resolve({"engine": {"name": "flower", "device": "cpu"}}))


def test_a_simulation_cannot_keep_the_keys_of_secure_sums(tmp_path):
    secure = {"kind": "clients", "secure": True}
    config = resolve({"engine": {"name": "flower"}, "privacy": secure})
    with pytest.raises(CafedclError, match="secure = true: a simulation moves clients"):
        api.start(config, tmp_path / "run", [])


def test_a_simulation_has_no_sites_with_data(tmp_path):
    with pytest.raises(CafedclError, match="use `cafedcl deploy run`"):
        api.start(
            resolve({"engine": {"name": "flower"}, "data": {"name": "sites"}}), tmp_path / "run", []
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("about", [None, "damaged", "{}"])
def test_a_run_on_flower_is_not_resumed_without_what_names_its_sites(about, tmp_path):
    """Its clients would begin without what they kept, or be looked for in a simulation."""
    config = resolve({"engine": {"name": "flower", "device": "cpu"}})
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    if about is not None:
        (tmp_path / "environment.json").write_text(about, encoding="utf-8")
    with pytest.raises(CafedclError, match=r"environment\.json: .* restore it from a backup"):
        api.resume(tmp_path)
