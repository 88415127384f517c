"""Classifiers that are fitted to the features of one trained encoder in different ways."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import heads
import numpy as np
import pytest
import torch
from heads import Features


def some_features(counts: list[int], dim: int = 6) -> Features:
    """Unit features around a direction per class."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(counts)), counts)
    z = np.eye(len(counts), dim)[y] + 0.7 * rng.standard_normal((len(y), dim))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return Features(torch.from_numpy(z), torch.from_numpy(y))


@pytest.mark.parametrize(("gain", "weight"), [(0.0, 0.1), (0.5, 0.01)])
def test_the_classifier_is_the_least_squares_fit(gain: float, weight: float) -> None:
    counts = [40, 10, 5]
    trained = some_features(counts)
    anchors = np.eye(3, 6)
    share = 1 / np.array(counts)[trained.y]
    targets = np.eye(3)[trained.y] * (min(counts) / np.array(counts)[trained.y, None]) ** gain
    # All images of a class weigh 1 together; λ pulls the classifier to the anchors.
    left = np.concatenate([np.sqrt(share)[:, None] * trained.z.numpy(), weight**0.5 * np.eye(6)])
    right = np.concatenate([np.sqrt(share)[:, None] * targets, weight**0.5 * anchors.T])
    expected = np.linalg.lstsq(left, right, rcond=None)[0].T
    found = heads.classifier(trained, torch.from_numpy(anchors), gain, weight)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_a_score_is_the_mean_recall_of_the_classes_that_there_are() -> None:
    trained = some_features([30, 30, 30])
    anchors = torch.eye(3, 6)
    # Of class 0 one of two images is right, of class 1 both are, and of class 2 there is none.
    other = Features(torch.eye(6).double()[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 1]))
    assert heads.score(trained, other, anchors, 0.0) == 75.0


def test_mean_scores_are_those_of_an_images_own_class() -> None:
    trained = some_features([50, 50, 50])
    anchors = torch.eye(3, 6)
    found = heads.mean_scores(trained, trained, anchors)
    w = heads.classifier(trained, anchors, 0.0, heads.USUAL_RIDGE)
    expected = [(trained.z[trained.y == c] @ w[c]).mean() for c in range(3)]
    assert found == pytest.approx([float(value) for value in expected], abs=1e-3)
    only = Features(trained.z[:50], trained.y[:50])
    assert heads.mean_scores(trained, only, anchors)[1:] == [None, None]


def test_what_the_file_has_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heads.GrowingResult, "executor", ThreadPoolExecutor)
    monkeypatch.setattr(
        heads,
        "settings_of",
        lambda scale, known=heads.settings_of: dict([*known(scale).items()][:1]),
    )
    file = tmp_path / "heads.json"
    words = ["heads.py", "--scale", "smoke", "--device", "cpu", "--jobs", "1", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "1"])
    heads.main()
    first = json.loads(file.read_text())
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "2", "--features", str(tmp_path / "z")])
    heads.main()
    rows = json.loads(file.read_text())["runs"]
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0] == first["runs"][0]
    said = capsys.readouterr().out
    assert "| setting | η = 0 | η = 0.05 |" in said
    assert "| setting | 0 turns | 2 turns |" in said
    assert rows[0]["by_turns"]["0"][0] == rows[0]["by_gain"][str(heads.USUAL_GAIN)]
    (kept,) = (tmp_path / "z").iterdir()
    with np.load(kept) as arrays:
        trained, held_out = (
            Features(
                torch.from_numpy(arrays[f"z_{it}"]).double(), torch.from_numpy(arrays[f"y_{it}"])
            )
            for it in ("train", "held_out")
        )
        anchors = torch.from_numpy(arrays["anchors"])
    # Half precision may change the class of an image.
    again = heads.score(trained, held_out, anchors, 0.1)
    assert again == pytest.approx(rows[1]["by_gain"]["0.1"], abs=1.0)
