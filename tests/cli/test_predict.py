"""`cafedcl predict` and `export`, on one run that is trained once."""

import csv
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save

from cafedcl import api
from cafedcl.core.tensors import pack_with_digest, unpack_checked
from cafedcl.data import Dataset

Call = Callable[..., tuple[int, str, str]]
FIELDS = {"image", "class", "probability", "similarity", "unusual", "strangeness"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Path:
    """A run, a folder of six digits, a black image and a broken file."""
    folder = tmp_path_factory.mktemp("predict")
    settings = {"model.name": "mlp", "train.epochs": 2, "engine.workers": 1}
    api.run("cafedcl", clients=4, rounds=4, settings=settings, out=folder / "run")
    (folder / "photos" / "more").mkdir(parents=True)
    for number, image in enumerate(digits.train_x[:6, 0].numpy()):
        place = folder / "photos" / ("more" if number % 2 else ".") / f"{number}.png"
        Image.fromarray(image).save(place)
    Image.new("L", (8, 8)).save(folder / "black.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def call(home: Path, invoke: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "160")
    return invoke


def test_the_table_tells_class_probability_and_where_probabilities_come_from(call: Call) -> None:
    code, out, err = call("predict", "run", "photos/0.png")
    assert (code, err) == (0, "")
    head, image, calibrated, confidence = out.splitlines()
    assert head.split() == ["image", "class", "probability", "similarity"]
    assert image.split()[:2] == ["photos/0.png", "0"]
    assert "validation images, which clients held out of their training images" in calibrated
    assert "no test image was used" in calibrated
    assert confidence.startswith("mean training confidence of these classes, not of the images: ")


def test_folders_are_searched_and_json_has_every_probability(call: Call) -> None:
    code, out, _ = call("predict", "run", "photos", "--json", "--top", 3)
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert sorted(Path(row["image"]).name for row in rows) == [f"{i}.png" for i in range(6)]
    for row in rows:
        assert row.keys() == FIELDS | {"top", "probabilities"}
        chances = row["probabilities"]
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        best = sorted(chances, key=lambda name: -chances[name])[:3]
        assert [each["class"] for each in row["top"]] == best
        assert row["probability"] == chances[row["class"]]
    code, out, _ = call("predict", "run", "photos", "--json", "--decide-by", "probability")
    for row in map(json.loads, out.splitlines()):
        assert row["probability"] == max(row["probabilities"].values())
    code, _, err = call("predict", "run", "photos", "--decide-by", "luck")
    assert (code, err.count("\n")) == (2, 1)
    assert "score" in err
    assert "probability" in err


def test_a_class_that_is_not_the_most_probable_one_is_explained(call: Call, home: Path) -> None:
    shutil.copytree(home / "run", home / "skewed")
    (file,) = sorted((home / "skewed" / "evaluations").iterdir())[-1:]
    tables, header = unpack_checked(file.read_bytes())
    favoured = torch.full((10,), -50.0)
    favoured[9] = 50.0
    tables["calibration/server/prior"] = favoured
    file.write_bytes(pack_with_digest(tables, header))
    _, out, _ = call("predict", "skewed", "photos/0.png", "--top", 2)
    assert out.splitlines()[1].split()[:3] == ["photos/0.png", "0", "0.000"]
    assert "1 image has another class than the most probable one" in out
    _, out, _ = call("predict", "skewed", "photos/0.png", "--decide-by", "probability")
    assert out.splitlines()[1].split()[:3] == ["photos/0.png", "9", "1.000"]
    assert "most probable one" not in out


def test_one_broken_file_does_not_stop_the_others(call: Call) -> None:
    code, out, err = call("predict", "run", "photos/0.png", "broken.png", "black.png", "--json")
    assert code == 1
    assert err == "warning: broken.png: not an image that can be read; it is left out\n"
    first, second, failed = (json.loads(line) for line in out.splitlines())
    assert (first["image"], second["image"]) == ("photos/0.png", "black.png")
    assert failed == {"image": "broken.png", "error": "not an image that can be read"}


def test_a_black_image_is_unlike_anything_seen_in_training(call: Call) -> None:
    _, out, _ = call("predict", "run", "black.png", "photos", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["image"] for row in rows if row["unusual"]} == {"black.png"}
    assert rows[0]["strangeness"] > 1
    assert "unusual: unlike the training images" in call("predict", "run", "black.png")[1]


def test_csv_has_a_column_per_class_and_names_what_failed(call: Call, home: Path) -> None:
    code, out, _ = call("predict", "run", "photos", "broken.png", "--out", "found/all.csv")
    assert code == 1
    assert out == "written: found/all.csv (6 images)\n"
    rows = list(csv.DictReader(io.StringIO((home / "found" / "all.csv").read_text())))
    assert len(rows) == 7
    assert float(rows[0]["p[0]"]) == pytest.approx(float(rows[0]["probability"]))
    assert rows[-1]["error"] == "not an image that can be read"
    assert call("predict", "run", "photos", "--format", "csv")[1].startswith("image,class,")


def test_a_file_of_an_unknown_kind_is_refused(call: Call) -> None:
    code, _, err = call("predict", "run", "photos", "--out", "found.xlsx")
    assert code == 2
    assert ".csv or .json is expected" in err


def zipped(name: str) -> bytes:
    """Return a zip archive with one file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, "content")
    return made.getvalue()


FOREIGN = {
    "own.csv": b"file,label,site\na.png,scratch,lyon\n",
    "own.npz": zipped("x.npy"),
    "own.docx": zipped("[Content_Types].xml"),
    "own.safetensors": save({"weight": torch.zeros(2)}, {"format": "pt"}),
}
REPLACING = {
    "predict run photos --format csv --out": "file of predictions",
    "predict run photos --format json --out": "file of predictions",
    "export run --to safetensors --out": "model for safetensors",
    "export run --to torch --out": "model for torch",
    "split iid --data digits --export": "saved split",
}


@pytest.mark.parametrize("words", REPLACING)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_ones_own_is_never_replaced(
    call: Call, home: Path, name: str, words: str
) -> None:
    (home / name).write_bytes(FOREIGN[name])
    code, _, err = call(*words.split(), name)
    assert code == 2
    other = f" {name}: it exists and is no {REPLACING[words]}; choose another name\n"
    assert err.endswith(
        (other, f" {name}: a file for torch must not end with .safetensors; rename it\n")
    )
    assert (home / name).read_bytes() == FOREIGN[name]


def test_a_split_replaces_splits_but_no_model_and_no_file_of_a_run(call: Call, home: Path) -> None:
    for name in ("a.split", "a.csv"):
        for _ in range(2):
            assert call("split", "iid", "--data", "digits", "--export", name)[0] == 0
    assert call("export", "run", "--to", "safetensors", "--out", "a.safetensors")[0] == 0
    for name, why in (("a.safetensors", "no saved split"), ("run/data.safetensors", "of the run")):
        before = (home / name).read_bytes()
        code, _, err = call("split", "iid", "--data", "digits", "--export", name)
        assert (code, why in err) == (2, True), err
        assert (home / name).read_bytes() == before
    code, _, err = call("export", "run", "--to", "safetensors", "--out", "a.split")
    assert (code, "no model for safetensors" in err) == (2, True)


def test_an_empty_folder_is_named(call: Call, home: Path) -> None:
    (home / "empty").mkdir(exist_ok=True)
    code, _, err = call("predict", "run", "empty")
    assert code == 2
    assert err.startswith("error: empty: there are no images in this folder: no DICOM, and no name")


def test_a_model_is_exported_with_its_card(call: Call, home: Path) -> None:
    code, out, _ = call("export", "run", "--to", "safetensors", "--out", "files/digits.safetensors")
    assert code == 0
    assert out.startswith("written: files/digits.safetensors (")
    card = (home / "files" / "digits.md").read_text()
    assert "| accuracy |" in card
    assert "## Licence" in card
    (home / "files" / "digits.md").write_text(card.replace("## Licence", "## Our licence"))
    _, out, _ = call("export", "run", "--to", "safetensors", "--out", "files/digits.safetensors")
    assert "files/digits.new.md" in out
    assert "files/digits.md was not replaced" in out


def test_an_unknown_format_is_refused(call: Call) -> None:
    code, _, err = call("export", "run", "--to", "onx")
    assert code == 2
    assert "onnx" in err
    assert len(err.splitlines()) == 1


def test_a_client_without_a_model_of_its_own_is_refused(call: Call) -> None:
    code, _, err = call("export", "run", "--to", "torch", "--client", 1)
    assert code == 2
    assert "this run stores no model of its own for it" in err
    assert "store.own=true" in err


def test_hidden_and_system_folders_hold_no_images(call: Call, home: Path, tmp_path: Path) -> None:
    for name in (".thumbnails", "__MACOSX", "@eaDir"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "small.png")
    Image.new("L", (8, 8)).save(tmp_path / "one.png")
    code, out, _ = call("predict", "run", str(tmp_path), "--json")
    assert code == 0
    assert [json.loads(line)["image"] for line in out.splitlines()] == [str(tmp_path / "one.png")]


def test_a_folder_that_nobody_may_read_is_not_left_out_without_a_word(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.scandir

    def scandir(folder: str) -> object:
        if str(folder).endswith("ward"):
            raise PermissionError(13, "Permission denied", str(folder))
        return original(folder)

    (tmp_path / "ward").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "one.png")
    monkeypatch.setattr(os, "scandir", scandir)
    code, _, err = call("predict", "run", str(tmp_path))
    assert code == 2
    assert f"{tmp_path / 'ward'}: cannot be read: Permission denied" in err


def test_a_file_name_that_is_not_utf8_can_be_written(call: Call, tmp_path: Path) -> None:
    image = tmp_path / "L\udce4sion.png"
    try:
        Image.new("L", (8, 8)).save(image)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    code, _, _ = call("predict", "run", str(tmp_path), "--out", str(tmp_path / "found.csv"))
    assert code == 0
    assert "L\ufffdsion.png" in (tmp_path / "found.csv").read_text(encoding="utf-8")


def test_a_table_is_not_written_to_a_file_as_something_else(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "found.csv"
    code, _, err = call("predict", "run", "black.png", "--format", "table", "--out", str(out))
    assert code == 2
    assert "a table is only printed; use --format csv or json" in err
    assert not out.exists()


@pytest.mark.parametrize("name", ["card.md", "model.onnx"])
def test_an_export_has_the_ending_of_its_format(name: str, call: Call, tmp_path: Path) -> None:
    code, _, err = call("export", "run", "--to", "safetensors", "--out", str(tmp_path / name))
    assert code == 2
    assert f"a file for safetensors must not end with {Path(name).suffix}" in err
    assert not (tmp_path / name).exists()


def test_the_name_of_the_file_says_the_format(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    assert call("export", "run", "--out", str(out))[0] == 0
    assert b"probabilities" in out.read_bytes()[:2000]
    assert load_file(out)


def test_a_model_that_has_learned_nothing_is_not_exported(call: Call, tmp_path: Path) -> None:
    shutil.copytree("run", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"status": "ok"', '"status": "skipped"'))
    out = tmp_path / "model.safetensors"
    code, _, err = call("export", str(tmp_path / "run"), "--out", str(out))
    assert code == 2
    assert "the model has learned nothing" in err
    assert not out.exists()


def test_a_model_whose_metrics_are_damaged_is_described_by_its_own_round(
    call: Call, tmp_path: Path
) -> None:
    shutil.copytree("run", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([lines[0], "{bad\n", *lines[2:]]))
    cards = []
    for run in ("run", str(tmp_path / "run")):
        out = tmp_path / f"{len(cards)}.safetensors"
        code, _, err = call("export", run, "--out", out)
        assert code == 0
        cards.append(out.with_suffix(".md").read_text())
    assert "metrics.jsonl, line 2: it is not JSON; the metrics from there to round 4" in err
    tables = [[line for line in card.splitlines() if line.startswith("|")] for card in cards]
    assert tables[0] == tables[1]
    metrics.unlink()
    code, _, err = call("predict", tmp_path / "run", "photos/0.png")
    assert code == 0
    assert "0 of 4 rounds are there" in err


@pytest.mark.parametrize(
    "name",
    ["config.toml", "metrics.jsonl", "data.safetensors", "checkpoints/000004.safetensors", "lock"],
)
def test_no_file_of_a_run_is_overwritten(call: Call, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree("run", tmp_path / "run"))
    before = (run / name).read_bytes()
    for words in (
        ["export", run, "--to", "safetensors", "--out", run / name],
        ["predict", run, "photos/0.png", "--format", "csv", "--out", run / name],
    ):
        code, _, err = call(*map(str, words))
        assert code == 2
        assert f"it is a file of the run in {run}; choose another name" in err
    assert (run / name).read_bytes() == before


def test_every_row_of_the_csv_has_all_columns(call: Call) -> None:
    code, out, _ = call("predict", "run", "photos", "broken.png", "--format", "csv")
    assert code == 1
    head, *rows = csv.reader(io.StringIO(out))
    assert len(rows) == 7
    assert {len(row) for row in rows} == {len(head)}
    (broken,) = [row for row in rows if row[0] == "broken.png"]
    assert set(broken[head.index("error") + 1 :]) == {""}


def test_two_formats_are_refused(call: Call) -> None:
    code, out, err = call("predict", "run", "photos", "--json", "--format", "csv")
    assert (code, out) == (2, "")
    assert "--json, --format csv: they say different things" in err


def test_a_model_is_calibrated_on_images_of_ones_own(
    call: Call, home: Path, digits: Dataset
) -> None:
    mine = ("--calibrate", "digits")
    _, before, _ = call("predict", "run", "photos", "--json", "--top", 10)
    code, out, err = call("predict", "run", "photos", "--json", "--top", 10, *mine)
    assert (code, err) == (0, "")
    rows = [[json.loads(line) for line in text.splitlines()] for text in (before, out)]
    assert [row["class"] for row in rows[0]] == [row["class"] for row in rows[1]]
    assert [row["probability"] for row in rows[0]] != [row["probability"] for row in rows[1]]
    _, out, _ = call("predict", "run", "photos/0.png", *mine)
    assert "calibrated on the 359 labelled images that you gave" in out
    code, _, err = call("predict", "run", "photos/0.png", *mine, "--all-images")
    assert code == 2
    assert "digits: the model was trained on these images" in err
    np.savez(home / "copy.npz", x=digits.train_x[:, 0].numpy(), y=digits.train_y.numpy())
    copy = ("--calibrate", "copy.npz", "--all-images")
    _, out, _ = call("predict", "run", "photos/0.png", *copy)
    assert f"calibrated on the {len(digits.train_y)} labelled images that you gave" in out
    code, out, err = call("predict", "run", "photos/0.png", "--all-images")
    assert (code, out) == (2, "")
    assert err == "error: --all-images: of which data? add --calibrate DATA\n"
    code, _, _ = call("export", "run", *mine, "--to", "torch", "--out", "own.pt2")
    assert code == 0
    card = Path("own.md").read_text(encoding="utf-8")
    assert "calibrated on 359 labelled images that were given after" in card


def test_images_of_8_bits_are_remarked_on_if_those_of_training_had_more(
    invoke: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "own" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 4000, (8, 8)).astype(np.uint16)
        Image.fromarray(pixels).save(place / f"{number}.png")
    settings = {"engine.workers": 1, "model.name": "mlp", "data.window": "0,4000"}
    api.run("fedavg", data=tmp_path / "own", clients=2, rounds=1, settings=settings, out="run")
    Image.new("L", (8, 8)).save("shallow.png")
    code, _, err = invoke("predict", "run", "own/a", "shallow.png")
    assert code == 0
    assert "1 image has 8 bits per pixel, such as shallow.png" in err
    assert "this run has a window for images with more: 0 is black and 4000 white" in err
    assert [str(it) for it in api.load("run").predict(["own/a", "shallow.png"]).shallow] == [
        "shallow.png"
    ]
    assert invoke("predict", "run", "own/a")[2] == ""
