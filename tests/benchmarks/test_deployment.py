"""What a deployment costs: the table in the guide is the result file's."""

import json
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
RESULTS = json.loads(
    (HOME / "benchmarks" / "results" / "deployment.json").read_text(encoding="utf-8")
)["results"]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result["case"])
def test_the_table_shows_the_measured_numbers(result):
    lines = (HOME / "docs" / "deployment.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line.split("|") for line in lines if line.startswith("|") and result["case"] in line]
    seconds, payload, wire, ratio = (cell.strip() for cell in row[2:6])
    assert seconds == f"{result['seconds_round'] - result['seconds_training']:.1f}"
    for shown, measured in ((payload, result["payload_bytes"]), (wire, result["wire_bytes"])):
        number, unit = shown.split()
        assert float(number) == pytest.approx(measured / {"kB": 1e3, "MB": 1e6}[unit], abs=0.5)
    assert float(ratio) == pytest.approx(result["wire_bytes"] / result["payload_bytes"], abs=0.006)
