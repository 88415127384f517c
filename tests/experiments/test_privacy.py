"""The experiment on privacy: its settings, its result file, its tables on the page."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import privacy
import pytest
from privacy_figure import draw

from cafedcl.task.resolve import gather

MEASURED = ("digits", "fashion-mnist")
SKIN = "ham10000"
PRESENT = "cafedcl, confidence of present classes"
RESULTS = Path(__file__).parents[2] / "experiments" / "results"
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


@pytest.mark.parametrize("data", [*MEASURED, SKIN])
def test_the_tables_of_the_page_are_those_of_the_result_file(data: str) -> None:
    result = privacy.results(data)
    assert privacy.noise_table(result, "balanced") in PAGE
    assert privacy.noise_table(result, "client_std") in PAGE
    assert privacy.rare_table(result) in PAGE
    assert f"results/privacy-{data}.json" in PAGE
    if data == "digits":
        assert privacy.release_table(result) in PAGE


def ahead(data: str, one: str, other: str, noise: float) -> str:
    """The balanced accuracy by which a method is ahead of another, paired by seed."""
    found: dict[str, dict[int, float]] = {one: {}, other: {}}
    for row in json.loads((RESULTS / f"privacy-{data}.json").read_text())["runs"]:
        if (row["study"], row["noise"]) == ("noise", noise) and row["method"] in found:
            found[row["method"]][row["seed"]] = 100 * row["balanced"]
    gaps = [found[one][seed] - found[other][seed] for seed in range(3)]
    middle = sum(gaps) / 3
    error = (sum((gap - middle) ** 2 for gap in gaps) / 2 / 3) ** 0.5
    return f"{middle:.1f} ± {error:.1f}"


def test_the_differences_on_the_page_are_those_of_the_result_files() -> None:
    uniform, confidence = "cafedcl, uniform", "cafedcl, confidence"
    text = " ".join(PAGE.split())
    digits, fashion = MEASURED
    for sentence in (
        f"by {ahead(digits, uniform, confidence, 2.0)} points of balanced accuracy on the digits "
        f"and by {ahead(fashion, uniform, confidence, 2.0)} on Fashion-MNIST, paired by seed",
        f"by {ahead(fashion, 'cafedcl, counts', confidence, 1.0)} points at ε = 30.1",
        f"at ε = 12.3 by {ahead(digits, uniform, PRESENT, 2.0)} and "
        f"{ahead(fashion, uniform, PRESENT, 2.0)} points",
        "at 12.3 counts are "
        + ahead(fashion, PRESENT, "cafedcl, counts", 2.0).replace(
            " ± ", " points behind (standard error "
        )
        + ")",
        f"at ε = 12.3 by {ahead(digits, uniform, 'fedavg', 2.0)} points on the digits and "
        f"{ahead(fashion, uniform, 'fedavg', 2.0)} on Fashion-MNIST",
    ):
        assert sentence in text
    for data in MEASURED:
        for noise in privacy.NOISES:
            assert float(ahead(data, uniform, "fedavg", noise).split()[0]) > 0
            assert float(ahead(data, uniform, PRESENT, noise).split()[0]) > -0.2
        for noise in (0.5, 1.0, 2.0):
            behind = float(ahead(data, confidence, "fedavg", noise).split()[0]) < 0
            assert behind == ((data, noise) != (digits, 0.5))
            fixed = float(ahead(data, "cafedcl, fixed anchors", confidence, noise).split()[0])
            assert (fixed < 0) == ((data, noise) != (digits, 2.0))
        for other in (uniform, "cafedcl, counts"):
            assert -1 < float(ahead(data, confidence, other, 0.0).split()[0]) < 1
    for noise in (0.5, 1.0):
        assert abs(float(ahead(fashion, PRESENT, "cafedcl, counts", noise).split()[0])) <= 0.1


def test_what_the_page_says_of_skin_lesions_is_in_the_result_file() -> None:
    uniform, confidence = "cafedcl, uniform", "cafedcl, confidence"
    text = " ".join(PAGE.split())
    result = privacy.results(SKIN)
    weights = result.content["weights"]
    one, two = (ahead(SKIN, uniform, confidence, noise).replace("-", "−") for noise in (2.0, 1.0))
    for sentence in (
        f"uniform weights are ahead of it by {one} points, and at 30.1 by {two}, although clients "
        f"weigh {weights[confidence]} on average with confidence and {weights[uniform]:g} with the",
        f"at 12.3 by {ahead(SKIN, uniform, 'fedavg', 2.0)} points",
    ):
        assert sentence in text
    assert weights["cafedcl, counts"] == 1
    for noise in privacy.NOISES:
        assert float(ahead(SKIN, uniform, "fedavg", noise).split()[0]) > 0
    guessing = 100 / 7

    def lead(method: str, noise: float) -> float:
        return mean(privacy.values(result, "balanced", method=method, noise=noise)) - guessing

    for method in privacy.METHODS:
        assert mean(privacy.rare_recall(result, method, 2.0)) < 2
        if method != "fedavg":
            assert lead(method, 0.0) > 1.5 * lead("fedavg", 0.0)
            assert 0.35 < lead(method, 0.5) / lead(method, 0.0) < 0.65
    assert round(mean(privacy.values(result, "accuracy", method="fedavg", noise=2.0))) == 66
    moles = [
        row["recall"][5] for row in result.rows if (row["method"], row["noise"]) == ("fedavg", 2)
    ]
    assert min(moles) > 0.99


def test_the_losses_of_rare_classes_on_the_page_are_those_of_the_result_files() -> None:
    def ratios(data: str, noise: float) -> list[float]:
        content = json.loads((RESULTS / f"privacy-{data}.json").read_text())
        runs = [row for row in content["runs"] if row["study"] == "noise"]

        def lost(method: str, classes: list[int]) -> float:
            found = {
                level: [
                    row["recall"][c]
                    for row in runs
                    if (row["method"], row["noise"]) == (method, level)
                    for c in classes
                ]
                for level in (0.0, noise)
            }
            return sum(found[0.0]) / len(found[0.0]) - sum(found[noise]) / len(found[noise])

        return [lost(it, content["rarest"]) / lost(it, list(range(10))) for it in privacy.METHODS]

    assert "2.4 to 6.2 times as many points" in PAGE
    of_cafedcl = ratios("digits", 0.5)[1:]
    assert (f"{min(of_cafedcl):.1f}", f"{max(of_cafedcl):.1f}") == ("2.4", "6.2")
    assert "every method loses 1.7 to 2.8 times as much of them" in " ".join(PAGE.split())
    of_all = ratios("fashion-mnist", 2.0)
    assert (f"{min(of_all):.1f}", f"{max(of_all):.1f}") == ("1.7", "2.8")


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
    digits, fashion = (privacy.results(data).content["weights"] for data in MEASURED)
    text = " ".join(PAGE.split())
    for sentence in (
        f"clients weigh {digits['cafedcl, confidence']} on average "
        f"(counts: {digits['cafedcl, counts']}, uniform: {digits['cafedcl, uniform']:g})",
        f"counts weigh {fashion['cafedcl, counts']} and "
        f"confidence {fashion['cafedcl, confidence']}",
        f"clients weigh {digits[PRESENT]} on the digits and {fashion[PRESENT]} on Fashion-MNIST",
    ):
        assert sentence in text
