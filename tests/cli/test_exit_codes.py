"""Every command that fails says why in one line on standard error, and its status is not 0."""

import errno
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cafedcl import api
from cafedcl.core.errors import CafedclError

SETTINGS = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1, "engine.workers": 1}

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, one whose rounds were all skipped, a damaged one, and none."""
    made = tmp_path_factory.mktemp("runs")
    whole = {"clients": 2, "rounds": 1, "device": "cpu"}
    api.run("fedavg", out=made / "good", settings=SETTINGS, **whole)
    never = {**SETTINGS, "federation.drop": ["0:0,1"]}
    with pytest.raises(CafedclError, match="has learned nothing"):
        api.run("fedavg", out=made / "skipped", settings=never, **whole)
    shutil.copytree(made / "good", made / "damaged")
    (made / "damaged" / "metrics.jsonl").write_text("[]\n")
    (made / "empty").mkdir()
    (made / "file").write_text("text")
    return made


@pytest.fixture
def call(invoke: Call, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Call:
    monkeypatch.chdir(folder)
    return invoke


@pytest.mark.parametrize("command", ["show", "table", "report", "figures"])
@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("nowhere", "nowhere: there is no such folder"),
        ("file", "file: there is no such folder"),
        ("empty", "empty: "),
        ("damaged", "damaged/metrics.jsonl, line 1: it is not the record of a round"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line(
    command: str, run: str, said: str, call: Call
) -> None:
    code, out, err = call(command, run)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["table", "report", "figures"])
def test_nothing_to_show_is_one_line(command: str, call: Call, folder: Path) -> None:
    code, out, err = call(command, "skipped", "damaged")
    assert (code, out) == (2, "")
    assert err.startswith("error: no run has a scored round to show (skipped: failed: all 1 rounds")
    assert len(err.splitlines()) == 1
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_bad_run_does_not_hide_the_others(command: str, call: Call, tmp_path: Path) -> None:
    out_words = ["--out", str(tmp_path / "r.html")] if command == "report" else []
    code, out, err = call(command, ".", *out_words)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "damaged: damaged: damaged/metrics.jsonl, line 1: it is not the record" in words
    assert "failed: skipped: all 1 rounds were skipped" in words


def test_beside_csv_the_notes_are_on_standard_error(call: Call) -> None:
    code, out, err = call("table", ".", "--format", "csv")
    assert code == 0
    assert "damaged: damaged: damaged/metrics.jsonl, line 1: it is not the record" in err
    assert "failed: skipped: all 1 rounds were skipped" in err
    assert "damaged/" not in out


def test_a_table_without_any_score_of_these_models_is_one_line(call: Call, tmp_path: Path) -> None:
    own_only = tmp_path / "fedproto"
    api.run("fedproto", out=own_only, settings=SETTINGS, clients=2, rounds=1, device="cpu")
    code, out, err = call("table", str(own_only), "--protocol", "server")
    assert (code, out) == (2, "")
    assert err == (
        "error: --protocol server: no run has a score of the server's model; try --protocol own\n"
    )


def test_several_runs_are_shown_without_the_damaged_one(call: Call) -> None:
    code, out, err = call("show", "good", "damaged", "--json")
    assert code == 0
    assert len(out.splitlines()) == 1
    assert err.startswith("warning: damaged/metrics.jsonl, line 1")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "nowhere", "x.png"),
        ("predict", "good", "nowhere.png"),
        ("predict", "good", "file"),
        ("predict", "skipped", "x.png"),
        ("resume", "nowhere"),
        ("resume", "empty"),
        ("resume", "skipped"),
        ("watch", "nowhere"),
        ("compare", "--resume", "empty"),
        ("compare", "--methods", "nobody", "--out", "o"),
        ("sweep", "--resume", "empty"),
        ("run", "file"),
        ("run", "nowhere.toml"),
        ("run", "--out", "good"),
        ("split", "perhaps"),
        ("methods", "nobody"),
        ("augmenters", "nobody"),
        ("bench", "--tasks", "nobody"),
        ("reproduce", "nobody"),
        ("report", "good", "--out", "file/page.html"),
        ("figures", "good", "--out", "file/figures"),
        ("deploy", "status", "empty"),
        ("deploy", "server", "empty"),
        ("deploy", "site", "empty"),
        ("deploy", "run", "empty"),
        ("deploy", "init", "good", "--site", "a"),
    ],
    ids=" ".join,
)
def test_every_command_fails_in_one_line(words: tuple[str, ...], call: Call) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("show", LONG),
        ("resume", LONG),
        ("report", LONG),
        ("table", LONG),
        ("figures", LONG),
        ("watch", LONG, "--port", "0"),
        ("report", "good", "--out", f"{LONG}.html"),
        ("run", "--out", LONG),
        ("predict", LONG, "x.png"),
        ("predict", "good", LONG),
        ("compare", "--resume", LONG),
        ("reproduce", f"{LONG}.toml"),
        ("deploy", "site", LONG),
        ("deploy", "init", LONG, "--site", "a"),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_one_line(words: tuple[str, ...], call: Call) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {LONG}")
    assert "File name too long" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out"),
        ("compare", "--methods", "fedavg", "--out"),
        ("figures", "good", "--out"),
        ("deploy", "init", "--site", "a"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("target", ["nothing", "link"])
def test_a_link_that_leads_nowhere_is_called_so(
    target: str,
    words: tuple[str, ...],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").symlink_to(folder / "good")
    (tmp_path / "link").symlink_to(target)
    code, out, err = call(*words, "link")
    assert (code, out) == (2, "")
    assert err.startswith("error: link: cannot be written: it is a broken link; remove")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("run", "--out", ""), "--out"),
        (("run", ""), "[CONFIG.toml]"),
        (("show", "good", ""), "RUN…"),
        (("report", "good", "--out="), "--out"),
        (("deploy", "init", "", "--site", "a"), "FOLDER"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    words: tuple[str, ...], name: str, call: Call
) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err == f"error: {name}: the path is empty; give the path of a file or folder\n"


@pytest.mark.parametrize("command", ["show", "resume", "table"])
def test_a_folder_that_may_not_be_entered_is_one_line(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("cafedcl.core.errors.INSTALLED", ("/",))
    monkeypatch.setattr(Path, "stat", refuse)
    code, out, err = call(command, "good")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: good(/config\.toml)?: Permission denied\n", err)


OWN_METHOD = """
from cafedcl.methods.fedavg import FedAvg

class Mine(FedAvg):
    name = "mine"

    def update(self, state, ups):
        return state["there is no such tensor"]
"""


def test_an_error_in_a_method_of_ones_own_names_its_line(
    invoke: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it fails is at the server; clients' errors do not end a run."""
    (tmp_path / "mine_that_fails.py").write_text(OWN_METHOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    words = ["run", "--method", "mine_that_fails:Mine", "--clients", "2", "--quiet", "--out", "run"]
    for name, value in SETTINGS.items():
        words += ["--set", f"{name}={value}"]
    code, out, err = invoke(*words)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: KeyError: 'there is no such tensor' (mine_that_fails.py, line 8")
    assert "Traceback" not in err
    monkeypatch.setenv("CAFEDCL_TRACEBACK", "1")
    with pytest.raises(KeyError):
        invoke("resume", "run")


def test_an_error_in_cafedcl_itself_keeps_its_traceback(
    invoke: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("zero")

    monkeypatch.setattr("cafedcl.core.errors.INSTALLED", ("/",))
    monkeypatch.setattr("cafedcl.task.resolve.gather", broken)
    monkeypatch.setattr("cafedcl.cli.main.OWN_CODE", [])
    with pytest.raises(ZeroDivisionError):
        invoke("run")
    monkeypatch.setattr("cafedcl.cli.main.OWN_CODE", ["mine:Method"])
    code, _, err = invoke("run")
    assert code == 2
    assert "ZeroDivisionError: zero, perhaps caused by mine:Method; CAFEDCL_TRACEBACK=1" in err
