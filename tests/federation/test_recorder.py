import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_and_resume
import pytest
import torch

from cafedcl import api
from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.recorder import Recorder
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.resolve import resolve

Content = tuple[list[dict[str, Any]], dict[str, bytes], dict[str, bytes]]


def config(rounds: int = 4, method: str = "cafedcl") -> Config:
    tables: dict[str, Any] = {
        "method": {"name": method},
        "model": {"name": "mlp", "width": 0.1},
        "train": {"epochs": 1, "iterations": 2},
        "federation": {"clients": 4, "rounds": rounds},
        "engine": {"workers": 1},
        "store": {"checkpoint_every": 2},
    }
    return resolve(tables)


def content(folder: Path) -> Content:
    """All that a finished run holds, less the seconds: metrics, weights and evaluations."""
    run = RunFolder.open(folder)
    lines = [{**line, "seconds": None} for line in run.metrics()]
    tensors, _ = unpack(run.checkpoints()[0].read_bytes())
    tables = {file.name: file.read_bytes() for file in (folder / "evaluations").iterdir()}
    return lines, {name: value.numpy().tobytes() for name, value in tensors.items()}, tables


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Content]:
    """What a method's run holds that was never interrupted; each is trained once."""
    runs: dict[str, Content] = {}

    def train(method: str = "cafedcl") -> Content:
        if method not in runs:
            folder = tmp_path_factory.mktemp("whole") / method
            api.start(config(method=method), folder, ())
            runs[method] = content(folder)
        return runs[method]

    return train


class Interrupt(Callback):
    """Presses Ctrl-C in the middle of a round."""

    def __init__(self, when: int) -> None:
        self.when = when

    def client_done(self, federation: Federation, client: int, failure: object) -> None:
        if federation.round == self.when and client == 2:
            raise KeyboardInterrupt


def test_a_run_folder_holds_what_it_takes_to_resume_report_and_repeat(tmp_path: Path) -> None:
    run = api.start(config(), tmp_path / "run", (), ["cafedcl", "run"])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config() == run.config
    assert run.config.engine.device == "cpu", "every auto is settled"
    assert [line["round"] for line in folder.metrics()] == list(range(4))
    assert {
        "participants",
        "failed",
        "traffic",
        "server",
        "own",
        "seconds",
        "loss",
    } <= folder.metrics()[0].keys()
    about = folder.environment()
    assert about["command"] == ["cafedcl", "run"]
    assert about["packages"]["torch"] == torch.__version__
    known, header = folder.data()
    assert known["counts"].shape == (4, 10)
    assert header["names"] == [str(n) for n in range(10)]
    tables, _ = unpack((tmp_path / "run" / "evaluations" / "000003.safetensors").read_bytes())
    assert tables["server/confusion"].sum() == 359
    assert tables["own/all/recall"].shape == tables["notes/confidence"].shape == (4, 10)
    assert [file.name for file in folder.checkpoints()] == [
        "000004.safetensors",
        "000002.safetensors",
    ]


def test_the_config_in_the_folder_repeats_the_run(tmp_path: Path) -> None:
    api.start(config(2), tmp_path / "first", ())
    api.start(RunFolder.open(tmp_path / "first").config(), tmp_path / "second", ())
    assert content(tmp_path / "first") == content(tmp_path / "second")


@pytest.mark.parametrize("method", ["cafedcl", "fedproto", "local"])
# Before any checkpoint, after one, and in the last round.
@pytest.mark.parametrize("when", [0, 2, 3])
def test_an_interrupted_run_is_saved_and_resumes_bit_for_bit(
    tmp_path: Path, whole: Callable[..., Content], method: str, when: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.start(config(method=method), tmp_path / "cut", [Interrupt(when)])
    _, header = unpack(RunFolder.open(tmp_path / "cut").checkpoints()[0].read_bytes())
    assert header["round"] == when
    api.resume(tmp_path / "cut")
    assert content(tmp_path / "cut") == whole(method)


class LateInterrupt(Callback):
    """Presses Ctrl-C after the state has moved on but before the round's line is written."""

    def round_done(self, federation: Federation, record: Record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_an_interrupt_between_a_round_and_its_line_loses_neither(
    tmp_path: Path, whole: Callable[..., Content]
) -> None:
    federation, folder = Federation(config()), RunFolder.create(tmp_path / "cut")
    recorder = Recorder(folder)
    recorder.begin(federation, [])
    federation.callbacks = [LateInterrupt(), recorder]
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    recorder.save(federation)
    folder.unlock()
    assert len(folder.metrics()) == 3
    api.resume(tmp_path / "cut")
    lines, weights, _ = content(tmp_path / "cut")
    assert (lines, weights) == whole()[:2]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_one_never_killed(
    tmp_path: Path,
) -> None:
    api.start(resolve(kill_and_resume.CONFIG), tmp_path / "whole", ())
    script = [sys.executable, kill_and_resume.__file__, str(tmp_path / "killed"), "5", "7"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-10] ^= 0x40
    file.write_bytes(bytes(data))


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    tmp_path: Path, whole: Callable[..., Content], damage: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.start(config(), tmp_path / "cut", [Interrupt(3)])
    newest = RunFolder.open(tmp_path / "cut").checkpoints()[0]
    damage(newest)
    said: list[str] = []
    api.resume(tmp_path / "cut", warn=said.append)
    assert len(said) == 1
    assert newest.name in said[0]
    assert content(tmp_path / "cut") == whole()


def test_a_line_cut_off_by_a_crash_ends_the_metrics(tmp_path: Path) -> None:
    api.start(config(2), tmp_path / "run", ())
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "sta')
    assert len(RunFolder.open(tmp_path / "run").metrics()) == 2


def test_metrics_damaged_before_the_checkpoint_are_an_error_not_a_wrong_result(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.start(config(), tmp_path / "run", [Interrupt(3)])
    (tmp_path / "run" / "metrics.jsonl").write_text('{"round": 0}\n')
    with pytest.raises(CafedclError, match=r"metrics.jsonl, line 1: it has no 'status'"):
        api.resume(tmp_path / "run")


def test_an_existing_run_is_never_touched(tmp_path: Path) -> None:
    api.start(config(2), tmp_path / "run", ())
    before = content(tmp_path / "run")
    with pytest.raises(CafedclError, match=r"already holds a run \(2 rounds\).*cafedcl resume"):
        api.start(config(2), tmp_path / "run", ())
    assert content(tmp_path / "run") == before


def test_a_run_without_its_config_is_told_what_is_missing(tmp_path: Path) -> None:
    api.start(config(2), tmp_path / "run", ())
    (tmp_path / "run" / "config.toml").unlink()
    before = {it: it.stat().st_mtime_ns for it in (tmp_path / "run").rglob("*")}
    with pytest.raises(CafedclError, match=r"holds a run whose config\.toml is missing; restore"):
        api.start(config(2), tmp_path / "run", ())
    assert {it: it.stat().st_mtime_ns for it in (tmp_path / "run").rglob("*")} == before


def test_an_occupied_folder_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading data and compiling steps can take minutes."""
    (tmp_path / "thesis.tex").write_text("precious")

    def load(*_: object) -> None:
        pytest.fail("the data were loaded")

    monkeypatch.setattr("cafedcl.task.build.load_data", load)
    with pytest.raises(CafedclError, match="not an empty folder"):
        api.start(config(1), tmp_path, ())


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CafedclError, match="not an empty folder"):
        api.start(config(1), tmp_path, ())
    (tmp_path / "file").write_text("x")
    with pytest.raises(CafedclError, match="not an empty folder"):
        api.start(config(1), tmp_path / "file", ())


def test_a_run_that_died_before_it_began_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.unlock()
    (tmp_path / "run" / "config.toml.tmp").write_text("[meth")
    api.start(config(1), tmp_path / "run", ())
    assert len(RunFolder.open(tmp_path / "run").metrics()) == 1


def test_a_folder_in_use_by_another_run_is_refused(tmp_path: Path) -> None:
    """The other run is another process, which holds the lock until its input is closed."""
    path = tmp_path / "run"
    api.start(config(1), path, ())
    code = (
        "import sys; from cafedcl.federation.run_folder import RunFolder; "
        "RunFolder.open(sys.argv[1]).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(CafedclError, match="in use by another run"):
            api.resume(path)
    api.resume(path)


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_one_clear_line_and_the_run_can_be_resumed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Callable[..., Content],
    trouble: int,
) -> None:
    expected = whole()
    original, calls = os.fsync, {"left": 20}

    def fsync(descriptor: int) -> None:
        calls["left"] -= 1
        if calls["left"] < 0:
            raise OSError(trouble, os.strerror(trouble))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        CafedclError,
        match=f"cannot be written: {os.strerror(trouble)}; nothing already saved is lost",
    ):
        api.start(config(), tmp_path / "cut", ())
    monkeypatch.undo()
    api.resume(tmp_path / "cut")
    assert content(tmp_path / "cut") == expected


def test_a_digest_sees_every_change() -> None:
    from cafedcl.core.tensors import digest

    tensors = {"a": torch.arange(4.0), "b": torch.tensor([True]), "c": torch.zeros(0)}
    others = [
        {**tensors, "a": torch.tensor([0.0, 1.0, 2.0, 4.0])},
        {**tensors, "a": torch.arange(4.0).view(2, 2)},
        {**tensors, "d": torch.zeros(1)},
        {"a": tensors["a"], "b": tensors["b"]},
        {**tensors, "a": torch.arange(4)},
    ]
    assert digest(tensors) == digest(dict(reversed(tensors.items())))
    assert len({digest(tensors), *map(digest, others)}) == 6


def test_metrics_are_valid_json_without_nan(tmp_path: Path) -> None:
    api.start(config(2, "fedproto"), tmp_path / "run", ())
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} in the metrics"))


def test_a_packed_file_of_another_kind_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.start(config(), tmp_path / "run", [Interrupt(3)])
    newest = RunFolder.open(tmp_path / "run").checkpoints()[0]
    newest.write_bytes(pack({"x": torch.zeros(1)}, {"round": 3}))
    said: list[str] = []
    api.resume(tmp_path / "run", warn=said.append)
    assert "damaged" in said[0]


def test_a_run_on_another_engine_than_asked_for_says_so_and_notes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fallback may cost a large factor, so it is never silent, nor forgotten."""
    settings = {
        "model.name": "mlp",
        "model.width": 0.1,
        "train.epochs": 1,
        "engine.stack": 4,
        "engine.workers": 1,
    }
    asked: dict[str, Any] = {"augment": "mixup", "clients": 3, "rounds": 1, "settings": settings}
    api.run("fedavg", out=tmp_path / "run", **asked)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: clients train one after another, not side by side (")
    about = RunFolder(tmp_path / "run").environment()
    assert [f"warning: {message}" for message in about["notices"]] == [line]
    api.resume(tmp_path / "run", settings={"federation.rounds": 2})
    assert RunFolder(tmp_path / "run").environment() == about
