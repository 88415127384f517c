import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from comparing import Notes
from typer.testing import CliRunner

from cafedcl import api
from cafedcl.cli.compare import compare
from cafedcl.compare.jobs import RunOutcome, RunSpec
from cafedcl.compare.run import end
from cafedcl.terminal.streams import NoReaderError


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(compare)
    made.callback()(lambda: None)
    return made


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app(), ["compare", *map(str, arguments)])


def test_the_command_lists_failures_and_its_status_is_one(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BROKEN", "cafedcl/s0")
    out = tmp_path / "out"
    asked = [
        "--methods",
        "fedavg,cafedcl",
        "--rounds",
        3,
        "--out",
        out,
        "--jobs",
        2,
        "--devices",
        "cpu",
    ]
    done = call(*asked, "--quiet")
    assert done.exit_code == 1
    assert f"failed: {out}/digits/auto/cafedcl/s0: on fire" in done.stderr
    assert f"failed runs: 1; try them again with: cafedcl compare --resume {out}" in done.stderr
    assert done.stdout == ""
    monkeypatch.delenv("STUB_BROKEN")
    again = call("--resume", out, "--json", "--devices", "cpu")
    assert again.exit_code == 0, again.output
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == [
        "skipped",
        "finished",
    ]
    assert "holds another plan (seeds is 1 there and 2 here)" in str(
        call(*asked, "--seeds", 2).exception
    )
    assert "--resume: the folder holds the plan" in str(
        call("--resume", out, "--rounds", 3).exception
    )
    assert "there is no plan to resume" in str(call("--resume", tmp_path).exception)
    assert "--out: name the folder" in str(call("--methods", "fedavg").exception)


def test_a_split_that_the_data_do_not_allow_is_refused_before_any_run(
    stub: Notes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = ["--methods", "fedavg", "--rounds", 3, "--out", out, "--devices", "cpu", "--quiet"]
    done = call(*asked, "--splits", "iid", "--splits", "natural")
    assert "digits, natural: split.kind = natural: the data set 'digits' has no clients" in str(
        done.exception
    )
    assert not (out / "compare.toml").exists()
    assert call(*asked, "--splits", "iid").exit_code == 0


@pytest.mark.parametrize("why", [KeyboardInterrupt, NoReaderError])
def test_an_interrupted_command_says_how_to_go_on(
    stub: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: type[BaseException]
) -> None:
    def interrupt(*_: object) -> list[RunOutcome]:
        raise why

    monkeypatch.setattr("cafedcl.compare.run.run_all", interrupt)
    done = call("--methods", "fedavg", "--out", tmp_path / "out", "--devices", "cpu")
    assert done.exit_code == 130
    assert (
        f"interrupted; saved. Resume with: cafedcl compare --resume {tmp_path}/out" in done.stderr
    )


@pytest.mark.slow
@pytest.mark.usefixtures("shared_processes")
def test_a_run_of_a_comparison_is_the_single_run(tmp_path: Path) -> None:
    """To the last bit, also where a process has executed another run before."""
    settings = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    asked = [
        "--methods",
        "fedavg,fedproto",
        "--splits",
        "iid",
        "--first-seed",
        3,
        "--clients",
        3,
        "--rounds",
        2,
        "--jobs",
        1,
    ]
    done = call(*asked, *words, "--out", tmp_path / "out", "--devices", "cpu")
    assert done.exit_code == 0, done.output
    assert "2/2" in done.stdout
    assert "Acc." in done.stdout
    settings["engine.workers"] = 1
    for method in ("fedavg", "fedproto"):
        alone = api.run(
            method, split="iid", clients=3, rounds=2, seed=3, device="cpu", settings=settings
        )
        there = api.load(tmp_path / "out" / "digits" / "iid" / method / "s3")
        for line in [*there.records, *alone.records]:
            line.pop("seconds")
        assert there.records == json.loads(json.dumps(alone.records))
        assert there.state.keys() == alone.state.keys()
        for name, value in alone.state.items():
            assert torch.equal(there.state[name], value), name
        kept = {client: memory for client, memory in alone.memories.items() if memory}
        assert there.memories.keys() == kept.keys()
        for client, memory in kept.items():
            for name, value in memory.items():
                assert torch.equal(there.memories[client][name], value), name


def test_a_run_that_cannot_be_resumed_is_to_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = RunSpec(tmp_path, "s0", (), 1)
    for error, told in (("the run cannot be resumed; restore it", True), ("on fire", False)):
        with pytest.raises(SystemExit):
            end([RunOutcome(job, "failed", error)], "repeat the command")
        assert ("is trained again once you remove its folder" in capsys.readouterr().err) is told
