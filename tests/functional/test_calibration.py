import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cafedcl.functional.calibration import (
    BINS,
    calibration_error,
    fit_temperature,
    reliability,
)


def test_a_reliability_diagram_counts_images_confidence_and_right_predictions_per_bin() -> None:
    p = torch.tensor([[0.9, 0.1], [0.92, 0.08], [0.42, 0.58], [1.0, 0.0]])
    bins = reliability(p, torch.tensor([0, 1, 1, 0]))
    assert bins.shape == (BINS, 3)
    assert bins[13].tolist() == pytest.approx([2, 1.82, 1])
    assert bins[8].tolist() == pytest.approx([1, 0.58, 1])
    assert bins[14].tolist() == pytest.approx([1, 1, 1])
    assert calibration_error(bins) == pytest.approx((0.82 + 0.42 + 0.0) / 4)


def test_nothing_tested_has_no_calibration_error() -> None:
    assert calibration_error(torch.zeros(BINS, 3)) is None


@pytest.mark.parametrize("factor", [0.25, 1.0, 6.0])
def test_the_temperature_undoes_a_factor_of_the_scores(factor: float) -> None:
    """Labels are drawn from the softmax of the scores, so that these are calibrated."""
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(2 * rng.normal(size=(4000, 5)))
    y = torch.from_numpy(np.array([rng.choice(5, p=row) for row in scores.softmax(1).numpy()]))
    found = fit_temperature(factor * scores, y)
    assert found == pytest.approx(factor, rel=0.08)
    losses = [
        float(F.cross_entropy(factor * scores / (found * near), y)) for near in (0.95, 1.0, 1.05)
    ]
    assert losses[1] == min(losses)


def test_a_class_that_cannot_be_predicted_does_no_harm() -> None:
    scores = torch.tensor([[3.0, 0.0, -torch.inf], [0.0, 2.0, -torch.inf], [1.0, 0.0, -torch.inf]])
    assert 0.01 < fit_temperature(scores, torch.tensor([0, 1, 1])) < 100


def test_a_few_images_that_are_all_right_do_not_make_predictions_certain() -> None:
    """Of n images without an error, the mean confidence is (n + 1) / (n + 2)."""
    scores = torch.tensor([[3.0, 0.0, -torch.inf], [0.0, 3.0, -torch.inf]]).repeat(4, 1)
    found = fit_temperature(scores, torch.tensor([0, 1]).repeat(4))
    assert float((scores / found).softmax(1).max(1).values.mean()) == pytest.approx(9 / 10)
