"""From a hospital's folder to a model in use: the whole way, on the command line and in a notebook.

The images are like HAM10000: coloured spots of four kinds, one of them far more frequent than the
others, from three hospitals and with two images of each patient.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

Call = Callable[..., tuple[int, str, str]]
KINDS = {"nevus": 40, "melanoma": 12, "keratosis": 8, "vascular": 6}
"""Patients of each kind."""
COLOURS = {"nevus": (120, 70, 40), "melanoma": (40, 30, 30), "keratosis": (190, 160, 90)}
HOSPITALS = ("North", "South", "West")
TINY = ["model.name=mlp", "model.width=0.25", "train.epochs=2", "engine.workers=1"]


def lesion(kind: str, rng: np.random.Generator) -> Image.Image:
    """Return a spot on skin."""
    pixels = np.full((16, 16, 3), (225, 180, 160)) + rng.normal(0, 6, (16, 16, 3))
    y, x = np.mgrid[:16, :16] - rng.uniform(6, 10, (2, 1, 1))
    spot = y**2 + x**2 < rng.uniform(9, 30)
    pixels[spot] = np.array(COLOURS.get(kind, (200, 40, 60))) + rng.normal(0, 12, 3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as a table with hospitals and patients, and as folders of hospitals."""
    home = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(7)
    rows = []
    patient = 0
    for kind, patients in KINDS.items():
        for _ in range(patients):
            hospital = HOSPITALS[patient % 3]
            folder = home / "photos" / hospital / kind
            folder.mkdir(parents=True, exist_ok=True)
            for view in (1, 2):
                file = folder / f"{patient}-{view}.png"
                lesion(kind, rng).save(file)
                rows.append((str(file.relative_to(home)), kind, hospital, f"P{patient}"))
            patient += 1
    table = pd.DataFrame(rows, columns=["path", "label", "hospital", "patient"])
    table.to_csv(home / "list.csv", index=False)
    Image.new("RGB", (16, 16)).save(home / "black.png")
    (home / "broken.jpg").write_bytes(b"no image")
    return home


def test_the_whole_way_on_the_command_line(
    hospitals: Path, invoke: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(hospitals)
    monkeypatch.setenv("COLUMNS", "80")
    for data in ("list.csv", "photos"):
        code, out, _ = invoke("split", "--data", data, "--json")
        assert code == 0
        assert json.loads(out)["client_names"] == list(HOSPITALS)
    assert json.loads(invoke("split", "--data", "list.csv", "--json")[1])["group"] == "patient"
    settings = [word for setting in TINY for word in ("--set", setting)]
    for method, lr in (("fedavg", "1e-5"), ("cafedcl", "0.1")):
        words = ("run", "--method", method, "--data", "list.csv", "--rounds", 3, *settings)
        code, _, err = invoke(*words, "--set", f"train.lr={lr}", "--out", f"runs/{method}", "-q")
        assert code == 0, err
    code, out, _ = invoke("show", "runs/fedavg", "runs/cafedcl")
    assert code == 0
    assert "balanced" in out
    assert "nevus" in out
    code, out, _ = invoke("table", "runs", "--format", "csv")
    assert "recall[melanoma]" in out
    assert ",balanced," in out, "a nevus is so frequent that accuracy says little"
    assert invoke("report", "runs", "--out", "report.html")[0] == 0
    code, out, _ = invoke(
        "predict", "runs/cafedcl", "photos/West", "black.png", "broken.jpg", "--json"
    )
    assert code == 1, "one file is broken"
    rows = {row["image"]: row for row in map(json.loads, out.splitlines())}
    assert rows["black.png"]["unusual"]
    assert "error" in rows["broken.jpg"]
    assert sum("class" in row for row in rows.values()) == 45
    assert invoke("export", "runs/cafedcl", "--to", "onnx", "--out", "skin.onnx")[0] == 0
    assert "| melanoma |" in (hospitals / "skin.md").read_text()
    session = onnxruntime.InferenceSession(hospitals / "skin.onnx")
    file = next(image for image in rows if image.startswith("photos"))
    pixels = np.asarray(Image.open(file)).transpose(2, 0, 1)[None]
    chances = session.run(["probabilities"], {"images": pixels})[0][0]
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    expected = rows[file]["probabilities"]
    assert dict(zip(classes, chances, strict=True)) == pytest.approx(expected, abs=1e-4)


CELLS = [
    "import cafedcl",
    'cafedcl.split(data="list.csv", settings=SETTINGS)',
    'result = cafedcl.run("cafedcl", data="list.csv", rounds=3, settings=SETTINGS, out="book")',
    "result",
    "result.plot_confusion()",
    'result.predict("black.png").unusual',
    'result.predict("photos/North").frame().head(2)',
    'cafedcl.report("book", "book.html")',
    'repr(cafedcl.resume("book"))',
]


def test_the_whole_way_in_a_notebook(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons and exported models are in the tutorials, which are executed, too."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    # The kernel is a process of its own, which has to find this package.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    settings = dict(setting.split("=") for setting in TINY)
    settings = {name: json.loads(v) if v[0].isdigit() else v for name, v in settings.items()}
    cells = [f"SETTINGS = {settings!r}", *CELLS]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(hospitals)}}
    )
    client.execute()
    outputs = {cell["source"]: cell["outputs"] for cell in book["cells"]}

    def shown(source: str, kind: str) -> str:
        found = [each["data"][kind] for each in outputs[source] if kind in each.get("data", {})]
        assert found, f"{source}: {outputs[source]}"
        return str(found[-1])

    assert "North" in shown(CELLS[1], "text/html")
    assert "round 3 of 3" in shown(CELLS[2], "text/html"), "progress"
    assert "balanced accuracy" in shown(CELLS[3], "text/html")
    assert "<Run: cafedcl on list.csv, 3 of 3 rounds" in shown(CELLS[3], "text/plain")
    assert shown(CELLS[4], "image/png")
    assert shown(CELLS[5], "text/plain") == "[True]"
    assert "p[melanoma]" in shown(CELLS[6], "text/html")
    assert "3 of 3 rounds" in shown(CELLS[8], "text/plain")
    assert (hospitals / "book.html").stat().st_size > 100_000
