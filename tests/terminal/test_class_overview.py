import io

import numpy as np
import pytest
from rich.console import Console

from cafedcl.report.class_scores import summarise_classes
from cafedcl.terminal.class_overview import class_lines, compared_classes, full_scores
from cafedcl.terminal.overview import comparison_table, overview

COUNTS = np.ones((2, 3), int)
NAMES = ["nevus", "melanoma", "vascular"]
ONE = summarise_classes(
    {"server/confusion": np.array([[90, 0, 0], [9, 0, 0], [3, 0, 0]])}, COUNTS, NAMES
)
FAIR = summarise_classes(
    {"server/confusion": np.array([[60, 20, 10], [3, 6, 0], [1, 0, 2]])}, COUNTS, NAMES
)


def line(number: int, accuracy: float, balanced: float) -> dict[str, object]:
    return {
        "round": number,
        "status": "ok",
        "failed": [],
        "server": {"accuracy": accuracy, "balanced": balanced, "client_std": 0.1},
        "own": None,
        "traffic": {"up_bytes": 1000, "down_bytes": 3000},
        "seconds": {"train": 1.5},
    }


def drawn(*parts: object, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_a_run_shows_recalls_skew_and_a_warning() -> None:
    text = " ".join(drawn(*class_lines(ONE, "server")).split())
    assert "recall per class: nevus 100.0, melanoma 0.0, vascular 0.0" in text
    assert "the largest class has 30 times as many test images" in text
    assert "warning: the server's model predicts almost only the class 'nevus'" in text
    assert class_lines(None, "server") == []


def test_the_best_round_of_skewed_labels_is_by_balanced_accuracy() -> None:
    lines = [line(0, 0.9, 0.33), line(1, 0.7, 0.66), line(2, 0.8, 0.5)]
    assert "best round 2 (by balanced accuracy)" in drawn(overview("a", lines, 3, {}, classes=FAIR))
    assert "best round 1: " in drawn(overview("a", lines, 3, {}))


@pytest.mark.parametrize("width", [80, 140])
def test_a_comparison_has_balanced_accuracy_and_the_worst_class_at_every_width(width) -> None:
    runs = [("fedavg", [line(0, 0.88, 0.333)]), ("cafedcl", [line(0, 0.67, 0.667)])]
    table = comparison_table(runs, width, [ONE, FAIR])
    text = drawn(table, width=width)
    assert max(map(len, text.splitlines())) <= width
    rows = {row.split()[0]: row.split() for row in text.splitlines() if row.strip()}
    assert rows["fedavg"][1:4] == ["88.0", "33.3", "0.0"]
    assert rows["cafedcl"][1:4] == ["67.0", "66.7", "66.7"]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_numbers_are_never_cut_however_long_a_methods_name_is(width: int) -> None:
    name = "cafedcl:no-confagg-counts+mixup"
    text = drawn(comparison_table([(name, [line(0, 0.88, 0.333)])], width, [ONE]), width=width)
    assert "…" not in text
    (row,) = [row for row in text.splitlines() if row.strip().startswith(name)]
    assert row.split()[1:4] == ["88.0", "33.3", "0.0"]


def test_a_comparison_names_the_model_that_predicts_one_class() -> None:
    text = drawn(*compared_classes(["fedavg", "cafedcl"], [ONE, FAIR], "server", 80))
    assert "warning: fedavg: " in text
    assert "warning: cafedcl" not in text
    assert "melanoma" in text
    assert "by balanced accuracy" in " ".join(text.split())


def test_recalls_of_many_long_names_are_never_cut() -> None:
    names = [f"a very long name of class {i}" for i in range(12)]
    one = summarise_classes({"server/confusion": np.eye(12, dtype=int)}, np.ones((1, 12)), names)
    text = drawn(*compared_classes(["cafedcl:no-geo"], [one], "server", 80))
    assert text.count("100.0") == 12
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_scores_of_the_last_round_are_shown_where_they_are() -> None:
    assert full_scores(line(0, 0.5, 0.5), "server") == []
    scored = {"server": {"auroc": 0.91, "ece": 0.1, "auprc": None}}
    assert "AUROC 91.0  calibration error 10.0" in str(full_scores(scored, "server")[0])
