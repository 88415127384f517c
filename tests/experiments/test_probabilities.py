"""The page on using a model tells what the result file holds."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

HOME = Path(__file__).parents[2]
COLUMNS = (
    "balanced",
    "accuracy",
    "probable_balanced",
    "probable_accuracy",
    "ece",
    "calibrated_ece",
)


@pytest.fixture(scope="module")
def scores():
    """Scores of all seeds in %, by method and column."""
    file = HOME / "experiments" / "results" / "probabilities.json"
    found = {}
    for run in json.loads(file.read_text(encoding="utf-8"))["runs"]:
        mine = found.setdefault(run["method"], {name: [] for name in COLUMNS})
        for name in COLUMNS:
            mine[name].append(100 * run["server"][name])
    return found


@pytest.fixture(scope="module")
def section():
    page = (HOME / "docs" / "using.md").read_text(encoding="utf-8")
    return page.partition("### Which class to take")[2].partition("\n## ")[0]


def test_the_table_on_the_page_is_the_result_files(scores, section):
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) == len(scores) == 4
    for label, *cells in rows:
        mine = scores[label.strip().strip("`")]
        shown = [f"{mean(mine[name]):.1f} ± {stdev(mine[name]):.1f}" for name in COLUMNS]
        assert [cell.strip() for cell in cells] == shown


def test_the_words_below_it_are_true(scores, section):
    ours = {name: mean(values) for name, values in scores["cafedcl:best"].items()}
    text = " ".join(section.split())
    assert f"finds {ours['balanced']:.0f} % of the lesions of a kind" in text
    assert f"right in {ours['probable_accuracy']:.0f} % of all cases" in text
    assert f"it finds only {ours['probable_balanced']:.0f} %" in text
    best = max(
        max(mean(mine["accuracy"]), mean(mine["probable_accuracy"])) for mine in scores.values()
    )
    assert "half a point less than the best" in text
    assert 0.25 < best - ours["probable_accuracy"] < 0.75
    assert ours["balanced"] == max(mean(mine["balanced"]) for mine in scores.values())
    for mine in scores.values():
        assert mean(mine["calibrated_ece"]) < mean(mine["ece"])
