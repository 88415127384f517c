"""Run folders that earlier versions wrote: they are loaded, shown, reported and resumed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import cafedcl
from cafedcl.config.format import FORMAT, upgrade
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import unpack
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.runs import resume
from cafedcl.report.runs import read_runs
from cafedcl.task.resolve import resolve

FOLDER = Path(__file__).parent / "old_runs"
OLD = sorted(FOLDER.glob("format_*/*"))
RESUMED = [path for path in OLD if path.name != "fixed-anchors"]


def test_there_are_folders_of_every_format_before_this_one() -> None:
    assert {path.parent.name for path in OLD} == {f"format_{n}" for n in range(1, FORMAT)}


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_an_old_run_is_loaded_and_predicts(path: Path) -> None:
    run = cafedcl.load(path)
    assert len(run.records) == 2
    assert run.config.engine.name == "cpu"
    images = np.zeros((3, 8, 8), np.uint8)
    client = 0 if path.name == "fedbn" and not run.state else None
    assert len(run.predict(images, client).names) == 3


def test_an_old_run_that_would_go_on_differently_is_refused(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(FOLDER / "format_1" / "fixed-anchors", tmp_path / "run"))
    with pytest.raises(CafedclError, match="synthetic images counted differently"):
        resume(copy, warn=lambda message: None)


@pytest.mark.parametrize("path", RESUMED, ids=lambda path: path.name)
def test_an_old_run_is_resumed_to_the_same_end(path: Path, tmp_path: Path) -> None:
    """The last round is done again; on another processor it may differ in its last bits."""
    copy = tmp_path / "run"
    shutil.copytree(path, copy)
    last = copy / "checkpoints" / "000002.safetensors"
    expected, _ = unpack(last.read_bytes())
    last.unlink()
    resume(copy, warn=lambda message: None)
    found, header = unpack(last.read_bytes())
    assert header["round"] == 2
    # Own models are scored in one more way since format 3.
    added = {f"own/prior/{what}" for what in ("score", "accuracy", "recall")}
    assert found.keys() == expected.keys() | added
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
        )
    scores = [[line["own"]["accuracy"] for line in RunFolder(f).metrics()] for f in (path, copy)]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)


def test_old_runs_are_reported() -> None:
    summary = read_runs([FOLDER])
    assert {run.state for run in summary.runs} == {"finished"}
    fixed = "cafedcl:fixed-anchors"
    assert sorted(run.method for run in summary.runs) == [
        "cafedcl",
        "cafedcl:best",
        "cafedcl:best",
        fixed,
        f"{fixed}+mixup",
        "fedbn",
    ]


def test_the_preset_best_of_format_2_is_todays_fixed_anchors() -> None:
    config = RunFolder.open(FOLDER / "format_2" / "best").config()
    assert config.method.name == "cafedcl:fixed-anchors"
    assert upgrade({"format": FORMAT, "method": {"name": "cafedcl:best"}}) == {
        "method": {"name": "cafedcl:best"}
    }


def test_the_preset_best_of_format_3_had_no_distillation() -> None:
    folder = FOLDER / "format_3" / "without-distillation"
    assert "lam_distill" not in (folder / "config.toml").read_text(encoding="utf-8")
    assert RunFolder.open(folder).config().method.options.lam_distill == 0
    best = {"name": "cafedcl:best", "tau": 0.5}
    options = resolve(upgrade({"format": 3, "method": dict(best)})).method.options
    assert (options.tau, options.rare_gain, options.lam_distill) == (0.5, 0.0, 0.0)
    assert (options.calibrate, options.weights) == (0.5, "confidence")
    recorded = {**best, "rare_gain": 0.3, "lam_distill": 1.0}
    options = resolve(upgrade({"format": 3, "method": dict(recorded)})).method.options
    assert (options.rare_gain, options.lam_distill) == (0.3, 1.0)
    # A run of then and one of today are runs of the same options, so they share a row of a table.
    other = upgrade({"format": 3, "method": {"name": "cafedcl"}})["method"]
    today = resolve({"method": {"name": "cafedcl"}}).to_plain()["method"]
    assert len(other) == 4
    assert other.items() <= today.items()
    assert upgrade({"format": 3, "method": {"name": "fedavg"}}) == {"method": {"name": "fedavg"}}
    assert resolve(upgrade({"method": dict(best)}, default=FORMAT)).method.options.lam_distill > 0


def test_the_preset_best_of_format_4_had_a_class_prior_and_weights_by_confidence() -> None:
    recorded = RunFolder.open(FOLDER / "format_4" / "with-class-prior").config().method.options
    assert (recorded.calibrate, recorded.smoothing, recorded.weights) == (0.5, 1.0, "confidence")
    # A results file lists only what differs from the preset of its time.
    listed = {"name": "cafedcl:best", "weights": "counts"}
    options = resolve(upgrade({"format": 4, "method": dict(listed)})).method.options
    assert (options.calibrate, options.smoothing, options.weights) == (0.5, 1.0, "counts")
    assert (options.own_classes, options.lam_distill) == ("all", 3.0)
    today = resolve(upgrade({"method": dict(listed)}, default=FORMAT)).method.options
    assert (today.calibrate, today.own_classes, today.weights) == (0.0, "held", "counts")


def test_an_engine_keeps_its_meaning() -> None:
    for old, device, new in [
        ("eager", "cpu", "cpu"),
        ("eager", "cuda:0", "reference"),
        ("graphs", "cuda:0", "cuda"),
        ("flower", "cpu", "flower"),
    ]:
        tables = {"engine": {"name": old, "device": device}}
        assert upgrade(tables)["engine"]["name"] == new


def test_a_folder_of_a_later_version_is_refused_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(OLD[0], tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(f"format = {FORMAT + 1}\n" + config.read_text())
    with pytest.raises(CafedclError, match=f"reads up to {FORMAT}; update cafedcl"):
        RunFolder.open(tmp_path / "run").config()
