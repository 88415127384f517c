"""The experiment on privacy: its settings, its result file, its tables on the page."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import privacy
import pytest
from privacy_figure import draw

from cafedcl.task.resolve import gather

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def test_every_setting_is_one_that_there_is() -> None:
    for data, job in privacy.JOBS.items():
        for method, options in privacy.METHODS.items():
            for limit in privacy.LIMITS.values():
                noisy = {**job.settings, **options, **limit, **privacy.PRIVATE}
                settings = [f"{name}={json.dumps(value)}" for name, value in noisy.items()]
                base = method.partition(",")[0]
                gather(method=base, data=data, split=job.split, settings=settings)


def test_only_what_is_missing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[privacy.Key] = []

    def run_one(data: str, folder: str, key: privacy.Key) -> dict[str, Any]:
        assert (data, folder) == ("digits", "")
        asked.append(key)
        scores = dict.fromkeys(privacy.SCORES, 0.5)
        found = {**key._asdict(), **scores, "recall": [1.0, 0.2, 0.4]}
        return {**found, "epsilon": 3.0} if key.noise else found

    there = run_one("digits", "", privacy.Key("noise", "fedavg", 0.0, "none", 0))
    asked.clear()
    file = tmp_path / "privacy-digits.json"
    file.write_text(json.dumps({"data": "digits", "runs": [there]}))
    monkeypatch.setattr(privacy, "RESULTS", tmp_path)
    monkeypatch.setattr(privacy, "run_one", run_one)
    monkeypatch.setattr(privacy, "rarest", lambda data, folder: [1, 2])
    monkeypatch.setattr(privacy, "mean_weight", lambda data, folder, method: 0.5)
    monkeypatch.setattr(privacy.GrowingResult, "executor", ThreadPoolExecutor)
    monkeypatch.setattr(sys, "argv", ["privacy.py", "--seeds", "1"])
    privacy.main()
    assert len(asked) == len(set(privacy.keys("digits", 1))) - 1
    assert len(privacy.results("digits").rows) == len(asked) + 1
    printed = capsys.readouterr().out
    assert "| method | ε = ∞ | ε = 3.0 |" in printed
    # The mean recall of classes 1 and 2.
    assert "| fedavg | 30.0 | 30.0 |" in printed


def test_the_tables_of_the_page_are_those_of_the_result_file() -> None:
    result = privacy.results("digits")
    assert privacy.noise_table(result, "balanced") in PAGE
    assert privacy.noise_table(result, "client_std") in PAGE
    assert privacy.rare_table(result) in PAGE
    assert privacy.release_table(result) in PAGE


def test_the_rarest_classes_are_those_with_the_fewest_images() -> None:
    """Of a long tail, the last ones."""
    assert privacy.rarest("digits", "") == [8, 9]
    assert privacy.results("digits").content["rarest"] == [8, 9]


def test_the_figure_is_drawn_from_the_result_file(tmp_path: Path) -> None:
    draw({"digits": privacy.results("digits")}, tmp_path / "privacy.svg")
    text = (tmp_path / "privacy.svg").read_text()
    assert "recall of the two rarest classes" in text
    assert "digits, %" in text


def test_the_weights_on_the_page_are_those_of_the_result_file() -> None:
    weights = privacy.results("digits").content["weights"]
    words = (
        f"clients weigh {weights['cafedcl, confidence']} on average "
        f"(counts: {weights['cafedcl, counts']}, uniform: {weights['cafedcl, uniform']:g})"
    )
    assert words in PAGE
    assert f"clients weigh {weights['cafedcl, confidence of present classes']}." in PAGE
