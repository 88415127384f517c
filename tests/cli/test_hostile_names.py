"""Names of classes, clients, data sets, files and runs that look like markup, code or control
sequences: every command prints them as they are, and none of them acts.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cafedcl.report import figures

CLASSES = ["[/]", "[red]a", "<script>alert(1)</script>", "a & b", "@style@", "$x_{", "\x1b[31mred"]
SMALL = [
    *("--rounds", "1", "--device", "cpu", "--set", "train.epochs=1", "--set", "engine.workers=1"),
    *("--set", "model.name=mlp", "--set", "model.width=0.1"),
]
FOLDER = "[bold]my & runs[/bold]"
REPEATED = re.compile("-own|-mixed|-bytes|-seconds")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(invoke: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> tuple[int, str, str]:
        status, out, err = invoke(*arguments)
        assert "\x1b" not in out + err, arguments
        assert "Traceback" not in err, arguments
        return status, out, err

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of images whose classes and clients have such names, in a file with such a name."""
    draws = np.random.default_rng(0)
    rows = ["path,label,client"]
    for number in range(8 * len(CLASSES)):
        label = CLASSES[number % len(CLASSES)].replace('"', '""')
        file = tmp_path / f"[i]{number}.png"
        Image.fromarray(draws.integers(0, 255, (8, 8)).astype(np.uint8)).save(file)
        rows.append(f'{file.name},"{label}",[/] {number % 2}')
    path = tmp_path / "[red]table.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:Glyph")
def test_every_command_prints_them_as_they_are(
    call: Call, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = figures.setting_figures
    # The figures of one protocol have the names of all; those of curves have none of a class.
    monkeypatch.setattr(
        figures,
        "setting_figures",
        lambda group: ((it, one) for it, one in whole(group) if not REPEATED.search(it)),
    )
    name = table.name
    code, out, err = call("split", "--data", name, "--figure", "split.png")
    assert code == 0, err
    assert out.startswith(name)
    code, out, err = call("run", "--data", name, *SMALL, "--out", FOLDER)
    assert code == 0, err
    assert f"written to {FOLDER}" in out
    _, out, _ = call("show", FOLDER, "--split")
    assert "[/]" in out
    assert "[red]" in out
    code, out, err = call("table", FOLDER)
    assert code == 0, err
    assert name in out
    for form in ("markdown", "latex", "csv"):
        assert call("table", FOLDER, "--format", form)[0] == 0
    code, out, err = call("report", FOLDER, "--out", "[/]page.html")
    assert code == 0, err
    assert "written: [/]page.html" in out
    page = (table.parent / "[" / "]page.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert call("figures", FOLDER, "--out", "[/]figures", "--format", "svg")[0] == 0
    assert len(list((table.parent / "[" / "]figures").iterdir())) >= 10
    code, out, err = call("predict", FOLDER, "[i]0.png")
    assert code == 0, err
    assert out.splitlines()[1].startswith(" [i]0.png")
    row = json.loads(call("predict", FOLDER, "[i]0.png", "--json")[1])
    assert row["class"] in CLASSES


@pytest.mark.parametrize("bad", ["[/]", "[red]x[/red]", "\x1b[2J", "\udcff", "<b>", "@data@"])
@pytest.mark.parametrize(
    "words",
    [
        *(("show",), ("table",), ("report",), ("figures",), ("watch",), ("resume",)),
        *(("predict", "x"), ("run", "--method"), ("run", "--data"), ("run", "--split")),
        *(("run", "--set"), ("run",), ("methods",), ("augmenters",), ("table", ".", "--format")),
        *(("compare", "--out", "o", "--methods"), ("sweep", "--grid"), ("reproduce",)),
        *(("watch", ".", "--port"), ("bench", "--tasks"), ("deploy", "status"), ()),
    ],
    ids=" ".join,
)
def test_a_mistake_with_such_a_name_is_an_error_and_no_traceback(
    words: tuple[str, ...], bad: str, call: Call
) -> None:
    code, _, err = call(*words, bad)
    assert code == 2
    assert err
    own = "error: " in err
    assert not own or len(err.splitlines()) == 1
