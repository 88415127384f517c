"""Resuming runs whose folder was damaged or changed: the same end, or one line that says why not.

A run is never silently another one: lr, seed or data of a run cannot change between its rounds.
"""

import errno
import io
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from damaged import Damage, damages
from fault_injection import FullDisk, Pictures, install
from resuming import ROUNDS, StopAfter, result, tables
from safetensors.torch import save_file
from typer.testing import CliRunner

from cafedcl import api
from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.federation.callback import Callback
from cafedcl.federation.checkpoint import Checkpoint
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.models import build_encoder
from cafedcl.report.run_summary import read_run
from cafedcl.task.resolve import resolve


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    api.start(resolve(tables()), path, ())
    return path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    api.start(resolve(tables()), path, [StopAfter(2)])
    return path


@pytest.fixture
def copy(tmp_path: Path, finished: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def end(finished: Path) -> tuple[Any, ...]:
    """What the interrupted run must come to."""
    return result(finished, first=2)


def bytes_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


@pytest.mark.parametrize("damage", [pytest.param(how, id=name) for name, how in damages()])
def test_a_damaged_run_ends_as_a_whole_one_or_is_refused_in_one_line(
    end: tuple[Any, ...], interrupted: Path, tmp_path: Path, damage: Damage
) -> None:
    path = Path(shutil.copytree(interrupted, tmp_path / "run"))
    damage(path)
    before = bytes_of(path / "metrics.jsonl")
    try:
        api.resume(path, warn=lambda _: None)
    except CafedclError:
        assert bytes_of(path / "metrics.jsonl") == before
    else:
        assert result(path, first=2) == end


@pytest.mark.parametrize("name", ["", "evaluations", "checkpoints"])
def test_a_folder_that_cannot_be_written_is_told_before_a_round_is_trained(
    interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = Path(shutil.copytree(interrupted, tmp_path / "run"))

    def refuse(dir: Path) -> io.BytesIO:
        if dir == path / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return io.BytesIO()

    monkeypatch.setattr("cafedcl.federation.run_folder.TemporaryFile", refuse)
    monkeypatch.setattr(Federation, "step", lambda _: pytest.fail("a round was trained"))
    with pytest.raises(CafedclError, match=f"{path / name}: cannot be written: Permission denied"):
        api.resume(path)


def test_a_file_that_only_describes_a_run_does_not_block_it(
    interrupted: Path, end: tuple[Any, ...], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(interrupted, tmp_path / "run"))
    about = path / "environment.json"
    about.write_bytes(bytes(about.stat().st_size))
    done = CliRunner().invoke(app, ["resume", str(path)])
    assert done.exit_code == 0, done.output
    said = [line for line in done.stderr.splitlines() if "environment.json" in line]
    assert [line.partition(": damaged")[0] for line in said] == [f"warning: {about}"], "once"
    assert result(path, first=2) == end


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_finished_run_whose_last_checkpoint_is_lost_is_not_finished(
    copy: Path, finished: Path, how: str
) -> None:
    last = RunFolder(copy).checkpoint_file(ROUNDS)
    if how == "gone":
        last.unlink()
    else:
        last.write_bytes(last.read_bytes()[:-50])
    assert not RunFolder(copy).is_finished(ROUNDS)
    said: list[str] = []
    assert len(api.load(copy, said.append).records) == ROUNDS - 1
    assert any("this is the model after round 2 of 3" in line for line in said)
    done = CliRunner().invoke(app, ["resume", str(copy), "--quiet"])
    assert done.exit_code == 0, done.output
    assert RunFolder(copy).is_finished(ROUNDS)
    assert result(copy) == result(finished)


def test_a_damaged_line_too_many_is_removed(copy: Path, finished: Path) -> None:
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, nonsense\n')
    assert not RunFolder(copy).is_finished(ROUNDS)
    done = CliRunner().invoke(app, ["resume", str(copy), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "line 4" in done.output
    assert "what follows is removed" in done.output
    assert RunFolder(copy).is_finished(ROUNDS)
    assert result(copy) == result(finished)


def test_a_finished_run_is_left_alone(copy: Path, finished: Path) -> None:
    done = CliRunner().invoke(app, ["resume", str(copy)])
    assert "already finished" in done.output
    assert result(copy) == result(finished)


@pytest.mark.parametrize("how", ["folder", "files"])
def test_a_run_without_its_checkpoints_is_refused_and_keeps_its_metrics(
    copy: Path, how: str
) -> None:
    shutil.rmtree(copy / "checkpoints")
    if how == "files":
        (copy / "checkpoints").mkdir()
    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(CafedclError, match=r"there is no checkpoint any more; .*was changed.*NEW"):
        api.resume(copy)
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_run_whose_checkpoints_are_all_damaged_is_trained_again_to_the_same_bits(
    copy: Path, finished: Path
) -> None:
    for file in RunFolder(copy).checkpoints():
        file.write_bytes(file.read_bytes()[:-20])
    said: list[str] = []
    api.resume(copy, warn=said.append)
    assert "no checkpoint is whole; its 3 rounds are trained again" in said[-1]
    assert result(copy) == result(finished)


def test_it_is_refused_if_its_config_has_changed_meanwhile(copy: Path) -> None:
    for file in RunFolder(copy).checkpoints():
        file.write_bytes(b"")
    edit(copy, "lr = 0.1\n", "lr = 0.2\n")
    with pytest.raises(CafedclError, match=r"train.lr = 0.2, but the run was made with 0.1"):
        api.resume(copy, warn=lambda _: None)


def test_a_run_that_had_no_checkpoint_yet_begins_again_and_says_so(
    tmp_path: Path, finished: Path
) -> None:
    lasting = tables() | {"store": {"checkpoint_every": 10}}
    path = tmp_path / "run"

    class KilledError(BaseException):
        """As if killed: no checkpoint is written."""

    class Killer(Callback):
        def round_began(self, federation: Federation, clients: int) -> None:
            if federation.round == 2:
                raise KilledError

    with pytest.raises(KilledError):
        api.start(resolve(lasting), path, [Killer()])
    assert len(RunFolder(path).metrics()) == 2
    before = (path / "config.toml").read_bytes()
    for change, why in (
        (
            {"settings": {"train.lr": 0.2}},
            r"run: train.lr = 0.2, .*; leave it out, or .*=0.2 ",
        ),
        ({"rounds": 1}, r"run: federation.rounds = 1, .* for 3; the number can only be raised"),
    ):
        with pytest.raises(CafedclError, match=why):
            api.resume(path, **change)  # type: ignore[arg-type]
        assert (path / "config.toml").read_bytes() == before
    said: list[str] = []
    api.resume(path, warn=said.append)
    assert "it has no checkpoint; its 2 rounds are trained again" in said[0]
    assert result(path)[:2] == result(finished)[:2]


@pytest.mark.parametrize("event", ["round_began", "round_done"])
def test_an_error_loses_no_round_that_was_done(event: str, tmp_path: Path, finished: Path) -> None:
    lasting = tables() | {"store": {"checkpoint_every": 10}}
    path = tmp_path / "run"

    class Broken(Callback):
        def fail(self, federation: Federation, *_: object) -> None:
            if federation.round == 2:
                raise RuntimeError("a mistake in someone's code")

    setattr(Broken, event, Broken.fail)
    with pytest.raises(RuntimeError, match="a mistake in someone's code"):
        api.start(resolve(lasting), path, [Broken()])
    assert api.load(path).records[-1]["round"] == 1
    said: list[str] = []
    api.resume(path, warn=said.append)
    assert not said
    assert result(path)[:2] == result(finished)[:2]


def test_a_run_whose_checkpoints_are_all_damaged_says_so(copy: Path) -> None:
    for file in RunFolder(copy).checkpoints():
        file.write_bytes(file.read_bytes()[:-9])
    said: list[str] = []
    with pytest.raises(CafedclError, match=r"no checkpoint is whole; `cafedcl resume .*` trains"):
        api.load(copy, said.append)
    assert said
    assert all("damaged, so it is left out" in line for line in said)


def test_rounds_that_are_trained_again_are_kept_until_the_first_one_is_done(copy: Path) -> None:
    RunFolder(copy).checkpoint_file(ROUNDS).unlink()

    class Fails(Callback):
        def client_done(self, federation: Federation, client: int, failure: object) -> None:
            raise RuntimeError("the machine is broken")

    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(RuntimeError, match="broken"):
        api.resume(copy, [Fails()])
    assert (copy / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("lines", [0, 1])
def test_metrics_that_lost_their_last_line_get_it_from_the_checkpoint(
    copy: Path, finished: Path, lines: int
) -> None:
    file = copy / "metrics.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[:-1]) + whole[-1][: 40 * lines])
    api.resume(copy, warn=pytest.fail)
    assert file.read_text() == "".join(whole)
    assert result(copy) == result(finished)


def test_metrics_that_lost_more_than_their_checkpoints_have_are_an_error(copy: Path) -> None:
    file = copy / "metrics.jsonl"
    file.write_text("")
    with pytest.raises(CafedclError, match="only 0 rounds, fewer than any checkpoint has"):
        api.resume(copy, warn=lambda _: None)


def edit(path: Path, old: str, new: str) -> None:
    file = path / "config.toml"
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr = 0.1\n", "lr = 0.2\n", r"train.lr = 0.2, but the run was made with 0.1"),
        ("seed = 0\n", "seed = 1\n", r"run.seed = 1, but the run was made with 0"),
        ("clients = 2\n", "clients = 4\n", r"federation.clients = 4, .* with 2"),
        ("width = 0.1\n", "width = 0.2\n", r"model.width = 0.2, .* with 0.1"),
        ('name = "cafedcl"\n', 'name = "fedavg"\n', r"method|there is no such option"),
        ("rounds = 3\n", "rounds = 2\n", r"federation.rounds = 2, .* can only be raised"),
        ('name = "reference"\n', 'name = "flower"\n', r"engine.name = \"flower\", .* with"),
    ],
)
def test_a_changed_config_is_refused_by_the_name_of_what_changed(
    copy: Path, old: str, new: str, said: str
) -> None:
    edit(copy, old, new)
    before = (copy / "metrics.jsonl").read_bytes()
    for use in (lambda: api.runs.resume(copy), lambda: api.load(copy)):
        with pytest.raises(CafedclError, match=said):
            use()
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_an_interrupted_run_does_not_become_finished_by_fewer_rounds(
    interrupted: Path, tmp_path: Path
) -> None:
    """With as many rounds as it has done, there would be nothing left to do."""
    copy = Path(shutil.copytree(interrupted, tmp_path / "run"))
    edit(copy, "rounds = 3\n", "rounds = 2\n")
    done = CliRunner().invoke(app, ["resume", str(copy)])
    assert isinstance(done.exception, CafedclError)
    assert "federation.rounds = 2, but the run was made for 3" in str(done.exception)


@pytest.mark.parametrize("content", ["", "format = 2\n", "[method]\nname = 'cafedcl'\n"])
def test_a_config_that_is_not_whole_is_not_filled_with_defaults(copy: Path, content: str) -> None:
    (copy / "config.toml").write_text(content)
    with pytest.raises(CafedclError, match=r"config.toml: damaged: .*\[federation\] is missing"):
        api.resume(copy)


def test_a_run_can_be_extended_and_moved(copy: Path, tmp_path: Path) -> None:
    longer = tables()
    longer["federation"]["rounds"] = 5
    api.start(resolve(longer), tmp_path / "longer", ())
    changes = ["--rounds", "5", "--set", "engine.workers=1", "--set", "store.checkpoint_every=2"]
    done = CliRunner().invoke(app, ["resume", str(copy), "--quiet", *changes])
    assert done.exit_code == 0, done.output
    assert RunFolder(copy).config().federation.rounds == 5
    assert RunFolder(copy).config().store.checkpoint_every == 2
    ends = [RunFolder(path).metrics()[-1]["server"] for path in (copy, tmp_path / "longer")]
    assert ends[0] == ends[1]


def test_a_setting_that_would_change_results_is_refused_and_not_written(copy: Path) -> None:
    before = (copy / "config.toml").read_bytes()
    said = r"run: train.lr = 0.5, but the run was made with 0.1; leave it out, or .* --set train.lr"
    with pytest.raises(CafedclError, match=said):
        api.resume(copy, settings={"train.lr": 0.5})
    words = ["resume", str(copy), "--rounds", "9", "--set", "train.lr = 0.5", "--quiet"]
    refused = CliRunner().invoke(app, words).exception
    assert f"{copy}: train.lr = 0.5" in str(refused)
    assert "--set train.lr=0.5 --set federation.rounds=9 --out NEW" in str(refused)
    assert (copy / "config.toml").read_bytes() == before


def test_a_method_that_counts_on_its_number_of_rounds_cannot_be_extended(tmp_path: Path) -> None:
    api.start(resolve(tables("fedproc")), tmp_path / "run", ())
    with pytest.raises(CafedclError, match="fedproc trains differently for another number"):
        api.resume(tmp_path / "run", settings={"federation.rounds": 5})


def test_other_data_than_those_of_the_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    closed: list[Federation] = []
    monkeypatch.setattr(Federation, "close", lambda federation: closed.append(federation))

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (120, 8, 8), dtype=np.uint8)
    labels = np.arange(120) % 4
    file = tmp_path / "own.npz"
    np.savez(file, train_x=images, train_y=labels, test_x=images[:20], test_y=labels[:20])
    own = tables() | {"data": {"name": str(file)}}
    api.start(resolve(own), tmp_path / "run", [StopAfter(2)])
    np.savez(file, train_x=images // 2, train_y=labels, test_x=images[:20], test_y=labels[:20])
    assert len(closed) == 1
    with pytest.raises(CafedclError, match="is not the one that the run started with"):
        api.resume(tmp_path / "run")
    assert len(closed) == 2, "its worker processes would go on"


def test_unfinished_files_of_a_killed_process_are_removed(copy: Path) -> None:
    RunFolder(copy).checkpoint_file(ROUNDS).unlink()
    left = [copy / "config.toml.tmp", copy / "checkpoints" / "000009.safetensors.tmp"]
    for file in left:
        file.write_bytes(b"half")
    api.resume(copy, warn=lambda _: None)
    assert not any(file.exists() for file in left)


def nothing_learned(path: Path, **federation: Any) -> list[str]:
    """Run a federation in which no round counts, and return the words of the command's error."""
    settings = [f"federation.{name}={json.dumps(value)}" for name, value in federation.items()]
    words = ["--method", "fedavg", "--rounds", "2", "--clients", "3", "--out", str(path)]
    words += [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "--quiet", *words, "--set", "data.images=200"])
    assert isinstance(done.exception, CafedclError)
    return str(done.exception).split()


@pytest.mark.parametrize(
    ("federation", "why"),
    [
        ({"min_replies": 3, "dropout": 1.0}, "0 valid replies, federation.min_replies = 3"),
        ({"dropout": 1.0}, "0 valid replies"),
    ],
)
def test_a_run_that_learned_nothing_is_an_error(
    tmp_path: Path, federation: dict[str, Any], why: str
) -> None:
    said = " ".join(nothing_learned(tmp_path / "run", **federation))
    assert "no round was aggregated, so the model has learned nothing" in said
    assert why in said
    again = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--quiet"])
    assert isinstance(again.exception, CafedclError)


def start_or_resume(path: Path, method: str) -> None:
    if RunFolder(path).begun:
        api.resume(path, warn=lambda _: None)
    else:
        api.start(resolve(tables(method)), path, ())


# The calls are the same for all methods, and only what is written differs: clients with weights
# of their own, and with control variates. So the kills are spread over three methods.
@pytest.mark.parametrize(("method", "first"), [("cafedcl", 0), ("fedproto", 1), ("scaffold", 2)])
def test_a_run_killed_at_any_call_that_writes_ends_as_one_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, first: int
) -> None:
    whole = tmp_path / "whole"
    pictures = Pictures(whole, tmp_path / "killed")
    with monkeypatch.context() as patch:
        install(patch, whole, pictures)
        start_or_resume(whole, method)
    assert pictures.calls >= 60
    assert len(pictures.taken) >= 40, "as many states of the folder"
    expected = result(whole)
    for path in pictures.taken[first::3]:
        start_or_resume(path, method)
        assert result(path) == expected, f"killed at {path.name}"
        assert not list(path.glob("**/*.tmp")), f"killed at {path.name}"


def test_a_disk_that_is_full_at_any_call_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_or_resume(tmp_path / "whole", "fedavg")
    expected = result(tmp_path / "whole")
    path = tmp_path / "run"
    # Every fifth call; kills are tried at every one. A file is written by six calls, so every kind
    # of call comes up in turn, at another file each time.
    for calls in count(step=5):
        with monkeypatch.context() as patch:
            disk = FullDisk(calls)
            install(patch, path, disk)
            with suppress(CafedclError):
                start_or_resume(path, "fedavg")
        if disk.left >= 0:
            break
        assert not list(path.glob("**/*.tmp")), f"full at call {calls}"
        start_or_resume(path, "fedavg")
        assert result(path) == expected, f"full at call {calls}"
        shutil.rmtree(path)
    assert calls >= 60


def test_other_first_weights_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    encoder = build_encoder("mlp", (1, 8, 8), 0.1).state_dict()
    save_file(encoder, file)
    plan = tables()
    plan["model"]["weights"] = str(file)
    api.start(resolve(plan), tmp_path / "run", [StopAfter(2)])
    save_file({name: value + 1 for name, value in encoder.items()}, file)
    with pytest.raises(
        CafedclError, match=r"w\.safetensors: not the file that the run in .* start"
    ):
        api.resume(tmp_path / "run")
    save_file(encoder, file)
    assert len(api.resume(tmp_path / "run").records) == ROUNDS


def test_checkpoints_that_nobody_may_list_are_not_taken_for_none(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Path.iterdir

    def iterdir(folder: Path) -> Any:
        if folder.name == "checkpoints":
            raise PermissionError(13, "Permission denied", str(folder))
        return original(folder)

    before = (copy / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(CafedclError, match="run/checkpoints: cannot be read: Permission denied"):
        api.resume(copy, settings={"federation.rounds": ROUNDS + 1})
    assert (copy / "metrics.jsonl").read_bytes() == before
    assert read_run(copy).state == "finished", "its scores are shown all the same"


@pytest.mark.parametrize("defence", ["clip", "peers"])
def test_a_run_with_a_defence_goes_on_to_the_same_bits_in_whatever_order_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defence: str
) -> None:
    asked = tables("fedavg") | {"defence": {"kind": defence}}
    asked["federation"] = {"clients": 5, "rounds": ROUNDS}
    api.start(resolve(asked), tmp_path / "whole", ())
    api.start(resolve(asked), tmp_path / "stopped", [StopAfter(1)])
    read = Checkpoint.read

    def backwards(file: Path) -> Checkpoint:
        found = read(file)
        turned = dict(reversed(found.tensors.items()))
        return replace(found, tensors=turned)

    monkeypatch.setattr(Checkpoint, "read", backwards)
    seen: list[list[str]] = []

    class Order(Callback):
        def round_began(self, federation: Federation, clients: int) -> None:
            seen.append(list(federation.state))

    with Federation(resolve(asked)) as fresh:
        expected = list(fresh.state)
    api.resume(tmp_path / "stopped", [Order()], warn=lambda _: None)
    monkeypatch.undo()
    assert seen[0] == expected
    assert result(tmp_path / "stopped") == result(tmp_path / "whole")


def test_a_refused_change_leaves_a_finished_run_as_it_was(finished: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(finished, tmp_path / "run"))
    before = (path / "config.toml").read_bytes()
    for change in ("engine.device=cuda", "engine.precision=bf16"):
        done = CliRunner().invoke(app, ["resume", str(path), "--rounds", "9", "--set", change])
        assert done.exit_code != 0
        assert (path / "config.toml").read_bytes() == before


def test_a_larger_budget_lets_a_run_go_on(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"kind": "clients", "noise": 1.0, "clip": 1.0, "budget": 6.0}
    asked = tables("fedavg") | {"privacy": private}
    asked["federation"]["rounds"] = 4
    api.start(resolve(asked), tmp_path / "run", ())
    done = len(RunFolder.open(tmp_path / "run").metrics())
    assert 0 < done < 4
    for budget, rounds in (("6.5", done), ("1000", 4)):
        words = ["resume", str(tmp_path / "run"), "--set", f"privacy.budget={budget}", "-q"]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert len(RunFolder.open(tmp_path / "run").metrics()) == rounds
