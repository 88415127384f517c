from pathlib import Path

import pytest

import cafedcl


@pytest.mark.usefixtures("shared_processes")
def test_methods_are_compared_from_python_and_finished_runs_are_kept(tmp_path: Path) -> None:
    settings = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1, "train.iterations": 1}
    given = {"clients": 2, "rounds": 1, "settings": settings, "jobs": 1, "devices": ["cpu"]}
    table = cafedcl.compare(["fedavg"], tmp_path / "study", **given)
    assert list(table["method"]) == ["fedavg"]
    assert {"accuracy_mean", "balanced_mean", "worst_class_mean", "recall[0]"} <= set(table)
    before = sorted(tmp_path.rglob("metrics.jsonl"))
    times = [file.stat().st_mtime_ns for file in before]
    cafedcl.compare(["fedavg"], tmp_path / "study", **given)
    assert [file.stat().st_mtime_ns for file in before] == times
    page = cafedcl.report(tmp_path / "study", tmp_path / "page.html")
    assert "<title>cafedcl" in page.read_text()
