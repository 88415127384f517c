"""Every way to damage a run, read by every command that reads runs: one clear line, never a
traceback, and never other numbers than those of the intact run without a word.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged import Damage, damages
from PIL import Image

from cafedcl import api
from cafedcl.report.watch import Reports

SETTINGS = {
    "model.name": "mlp",
    "model.width": 0.1,
    "train.epochs": 1,
    "engine.workers": 1,
    "store.checkpoint_every": 1,
}
COMMANDS = {
    "show": ["show", "run", "--split"],
    "show as JSON": ["show", "run", "--json"],
    "show two": ["show", "run", "other"],
    "table": ["table", "run"],
    "report": ["report", "run", "--out", "page.html"],
    "predict": ["predict", "run", "image.png"],
}
UNSEEN = {"config.toml: a method that nobody knows"}
"""What a reader cannot tell from a sound run: the method may be somebody's own, on another machine.
"""
DAMAGES = {name: damage for name, damage in damages() if name not in UNSEEN}

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    api.run("cafedcl", clients=3, rounds=3, device="cpu", settings=SETTINGS, out=folder / "run")
    shutil.copytree(folder / "run", folder / "other")
    Image.new("L", (8, 8), 90).save(folder / "image.png")
    return folder


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What is printed and shown for the intact run; the first test fills it."""
    return {}


@pytest.fixture
def copied(intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def call(invoke: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "200")
    return invoke


def numbers(out: str) -> list[str]:
    """Return what is printed, without the line about the machine."""
    return [line for line in out.splitlines() if ", torch " not in line]


def data_of(page: str) -> Any:
    """Return the data of a page, or None for one that says why there are none."""
    found = re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1]) if found else None


def test_there_are_enough_damages() -> None:
    assert len(DAMAGES) >= 80


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_run_is_named_or_read_right(
    damage: Damage, call: Call, copied: Path, expected: dict[str, Any]
) -> None:
    if not expected:
        for name, words in COMMANDS.items():
            code, out, err = call(*words)
            assert (code, err) == (0, "")
            expected[name] = numbers(out)
        expected["page"] = data_of(Reports([copied], 1).build())
        assert expected["page"]["problems"] == []
    damage(copied)
    for name, words in COMMANDS.items():
        code, out, err = call(*words)
        lines = err.splitlines()
        if code:
            assert (code, out) == (2, ""), name
            assert re.match(r"error: (\w+ )*\(?run[:/]", lines.pop()), name
        elif not lines and not re.search(r"(unfinished|damaged|failed): run", out):
            assert name == "report" or numbers(out) == expected[name], name
        assert all(line.startswith("warning: run") for line in lines), name
    page = Reports([copied], 1).build()
    shown = data_of(page)
    if shown is None:
        assert "Nothing to show yet" in page
    elif not shown["problems"] and shown["runs"][0]["state"] == "finished":
        assert shown["groups"] == expected["page"]["groups"]


@pytest.mark.parametrize("command", ["show", "table", "report", "figures"])
@pytest.mark.usefixtures("copied")
def test_every_command_says_that_the_file_of_the_data_is_missing(
    command: str, invoke: Call
) -> None:
    Path("run/data.safetensors").unlink()
    code, _, err = invoke(command, "run")
    assert code == 0
    assert err.startswith("warning: run/data.safetensors: damaged: No such file")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def zero_first_line(file: Path) -> None:
    first, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(bytes(len(first)) + b"\n" + rest)


def spoil_last_line(file: Path) -> None:
    *before, last, _ = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*before, bytes(len(last)), b""]))


@pytest.mark.parametrize("command", ["show", "table", "report"])
@pytest.mark.parametrize(
    ("spoil", "resumable"),
    [
        (Path.unlink, False),
        (lambda file: file.write_bytes(b""), False),
        (zero, False),
        (zero_first_line, False),
        (spoil_last_line, True),
    ],
    ids=["missing", "empty", "zeros", "a first line of zeros", "a last line of zeros"],
)
@pytest.mark.usefixtures("copied")
def test_the_advice_about_damaged_metrics_helps(
    command: str, spoil: Callable[[Path], Any], resumable: bool, invoke: Call
) -> None:
    spoil(Path("run/metrics.jsonl"))
    code, _, said = invoke(command, "run")
    assert code == 2
    *_, advised = re.findall("`(cafedcl .*)`", said)
    expected = "resume run" if resumable else "run run/config.toml --out NEW"
    assert advised == f"cafedcl {expected}"
    assert invoke(*advised.split()[1:], "--quiet")[0] == 0
