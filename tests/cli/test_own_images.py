"""The way of a hospital's table through the commands: names of clients and classes stay names."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

SETTINGS = (
    "train.epochs=1",
    "train.iterations=1",
    "model.name=mlp",
    "model.width=0.1",
    "engine.workers=1",
)
SMALL = ("--rounds", "1", *(word for each in SETTINGS for word in ("--set", each)))


@pytest.fixture
def hospitals(tmp_path):
    """Two hospitals with patients of two images each."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(48):
        name = f"{i}.png"
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / name)
        rows.append((name, ("melanoma", "nevus")[i // 2 % 2], ("North", "South")[i // 24], i // 2))
    path = tmp_path / "list.csv"
    pd.DataFrame(rows, columns=["path", "label", "hospital", "patient"]).to_csv(path, index=False)
    return path


def test_hospitals_keep_their_names(hospitals, invoke, monkeypatch):
    monkeypatch.chdir(hospitals.parent)
    code, out, _ = invoke("split", "--data", hospitals)
    assert code == 0
    assert "North" in out
    assert "patient" in out
    row = json.loads(invoke("split", "--data", hospitals, "--json")[1])
    assert row["client_names"] == ["North", "South"]
    # The split is exported with its names.
    assert invoke("split", "--data", hospitals, "--export", "s.safetensors")[0] == 0
    again = invoke("split", "file:s.safetensors", "--data", hospitals, "--json")[1]
    assert json.loads(again)["client_names"] == ["North", "South"]
    code, _, err = invoke("split", "--data", hospitals, "--clients", 5)
    assert code == 2
    assert "the data have 2 natural clients" in err


def test_a_client_is_named_in_commands(hospitals, invoke, monkeypatch):
    monkeypatch.chdir(hospitals.parent)
    run = ("run", "--method", "fedproto", "--data", hospitals, *SMALL, "--out", "run")
    code, out, err = invoke(*run)
    assert code == 0, err
    code, out, _ = invoke("show", "run", "--split")
    assert code == 0
    assert "North" in out
    assert invoke("report", "run")[0] == 0
    assert '"client_names":["North","South"]' in Path("report.html").read_text(encoding="utf-8")
    assert invoke("predict", "run", "0.png", "--client", "South")[0] == 0
    code, _, err = invoke("predict", "run", "0.png", "--client", "Soth")
    assert code == 2
    assert "did you mean 'South'" in err
