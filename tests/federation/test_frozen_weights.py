"""Weights that nobody trains are stored once, never sent, and the same at every time and place."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import StopAfter, result, tables
from typer.testing import CliRunner

from cafedcl import api
from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import digest, pack, unpack
from cafedcl.federation.checkpoint import Checkpoint
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.build import build
from cafedcl.task.resolve import resolve

HEAD = {"head.weight", "head.bias"}


def frozen_tables(method: str = "fedavg", **engine: Any) -> dict[str, dict[str, Any]]:
    asked = tables(method)
    asked["model"]["freeze"] = "all"
    asked["engine"] |= engine
    return asked


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    api.start(resolve(frozen_tables()), path, ())
    return path


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    api.start(resolve(frozen_tables()), path, [StopAfter(2)])
    return path


def test_only_what_is_trained_is_sent_and_kept_in_the_servers_state() -> None:
    with Federation(resolve(frozen_tables())) as federation:
        record = federation.step()
        sent = {name.removeprefix("model/") for name in federation.state}
        assert sent == HEAD
        numbers = sum(value.numel() for value in federation.state.values())
        clients = 2
        assert record.traffic["down_floats"] == record.traffic["up_floats"] == clients * numbers


def test_a_client_keeps_no_copy_of_frozen_weights() -> None:
    with Federation(resolve(frozen_tables("local"))) as federation:
        federation.step()
        assert not federation.task.has_server_model
        for memory in federation.memories.values():
            assert {name.removeprefix("model/") for name in memory} == HEAD


def test_a_loaded_run_predicts_with_the_frozen_weights(finished: Path) -> None:
    loaded = api.load(finished)
    _, initial, _ = build(resolve(frozen_tables()), loaded.shape, len(loaded.names))
    state = loaded.network().state_dict()
    assert any(name.startswith("encoder.") for name in state)
    for name, value in initial.state_dict().items():
        assert torch.equal(value, state[name]) == (name not in HEAD), name
    saved = Checkpoint.read(RunFolder.open(finished).checkpoint_file(3))
    assert not any("encoder" in name for name in saved.tensors)


def test_a_resumed_run_ends_with_the_same_bits(finished: Path, interrupted: Path) -> None:
    api.resume(interrupted, warn=lambda _: None)
    assert result(interrupted) == result(finished)


def test_a_run_of_an_earlier_version_has_them_in_its_checkpoints(
    finished: Path, interrupted: Path
) -> None:
    folder = RunFolder.open(interrupted)
    frozen = folder.frozen()
    file = folder.checkpoint_file(2)
    saved = Checkpoint.read(file)
    saved.tensors.update({f"state/model/{name}": value for name, value in frozen.items()})
    saved.write(file)
    (interrupted / "frozen.safetensors").unlink()
    data = interrupted / "data.safetensors"
    tensors, header = unpack(data.read_bytes())
    del header["frozen"]
    del header["digest"]
    data.write_bytes(pack(tensors, header))
    api.resume(interrupted, warn=lambda _: None)
    assert result(interrupted) == result(finished)
    assert RunFolder.open(interrupted).frozen().keys() == frozen.keys()


def test_a_run_is_not_resumed_with_other_frozen_weights(interrupted: Path) -> None:
    frozen = RunFolder.open(interrupted).frozen()
    name = min(frozen)
    other = {**frozen, name: frozen[name] + 1}
    (interrupted / "frozen.safetensors").write_bytes(pack(other, {"digest": digest(other)}))
    with pytest.raises(CafedclError, match=f"frozen weights of the encoder 'mlp'.*'{name}'"):
        api.resume(interrupted)


def zeroed(content: bytes) -> bytes:
    return content[:-64] + bytes(64)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _: b"no weights", r"damaged: .*; restore it"),
        (zeroed, "damaged: its content does not match its digest; restore it"),
        (None, "it is missing; restore it"),
    ],
    ids=["nothing", "zeros", "missing"],
)
def test_frozen_weights_that_are_lost_or_damaged_are_named(
    finished: Path, tmp_path: Path, damage: Callable[[bytes], bytes] | None, said: str
) -> None:
    path = Path(shutil.copytree(finished, tmp_path / "run"))
    file = path / "frozen.safetensors"
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    for use in (api.load, api.resume):
        with pytest.raises(CafedclError, match=rf"frozen\.safetensors: {said}"):
            use(path)


def test_a_refused_resume_leaves_the_run_as_it_was(finished: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(finished, tmp_path / "run"))
    before = (path / "config.toml").read_bytes()
    (path / "frozen.safetensors").unlink()
    done = CliRunner().invoke(app, ["resume", str(path), "--rounds", "5"])
    assert done.exit_code != 0
    assert (path / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    "engine", [{"name": "cpu", "workers": 1}, {"name": "cuda", "device": "cpu"}]
)
def test_every_engine_trains_on_frozen_weights(engine: dict[str, Any]) -> None:
    with Federation(resolve(frozen_tables())) as expected:
        expected.step()
    with Federation(resolve(frozen_tables(**engine))) as federation:
        assert not federation.step().failed
        for name, value in expected.state.items():
            assert torch.allclose(federation.state[name], value, atol=1e-5), name
