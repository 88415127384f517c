import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cafedcl.functional.calibration import (
    BINS,
    calibration_error,
    fit_calibration,
    fitted_calibration,
    log_frequencies,
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
    found, prior = fit_calibration(factor * scores, y, log_frequencies(torch.full((5,), 9)))
    assert found == pytest.approx(factor, rel=0.08)
    assert prior.abs().max() < 1e-12, "all classes are equally common"
    losses = [
        float(F.cross_entropy(factor * scores / (found * near), y)) for near in (0.95, 1.0, 1.05)
    ]
    assert losses[1] == min(losses)


@pytest.mark.parametrize("impossible", [-torch.inf, -1e9])
def test_a_class_that_cannot_be_predicted_changes_nothing(impossible: float) -> None:
    """Methods give such a class minus infinity, or a score far below every other."""
    draws = np.random.default_rng(0)
    y = torch.from_numpy(draws.integers(0, 2, 200))
    two = torch.from_numpy(draws.normal(size=(200, 2))) + 2 * torch.eye(2)[y]
    three = torch.cat([two, torch.full((200, 1), impossible)], 1)
    expected, prior_of_two = fit_calibration(two, y, torch.tensor([-0.5, -1.0]))
    found, prior = fit_calibration(three, y, torch.tensor([-0.5, -1.0, -5.0]))
    assert found == pytest.approx(expected, rel=1e-3)
    assert 0.3 < found < 3
    assert float(prior[1] - prior[0]) == pytest.approx(
        float(prior_of_two[1] - prior_of_two[0]), abs=1e-3
    )


def test_an_image_of_a_class_that_cannot_be_predicted_is_left_out() -> None:
    scores = torch.tensor([[3.0, 0.0, -1e9], [0.0, 2.0, -1e9], [1.0, 0.0, -1e9]])
    y = torch.tensor([0, 1, 0])
    more = torch.cat([scores, torch.tensor([[2.0, 1.0, -1e9]])])
    labels = torch.cat([y, torch.tensor([2])])
    one, other = (fit_calibration(*it, torch.zeros(3)) for it in ((scores, y), (more, labels)))
    assert one.temperature == other.temperature
    counts = torch.tensor([2, 1, 0])
    assert fitted_calibration(more, labels, counts)["images"].tolist() == [3]
    nothing = fitted_calibration(scores, torch.full((3,), 2), counts)
    assert nothing["images"].tolist() == [0]
    assert nothing["temperature"].tolist() == [1.0]


def test_a_few_images_that_are_all_right_do_not_make_predictions_certain() -> None:
    """Of n images without an error, the mean confidence is (n + 1) / (n + 2)."""
    scores = torch.tensor([[3.0, 0.0, -torch.inf], [0.0, 3.0, -torch.inf]]).repeat(4, 1)
    found, _ = fit_calibration(scores, torch.tensor([0, 1]).repeat(4), torch.zeros(3))
    assert float((scores / found).softmax(1).max(1).values.mean()) == pytest.approx(9 / 10)


COUNTS = torch.tensor([4000, 600, 300, 100])


def skewed(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(x|c) of points on a line, four unit normal classes, and their skewed labels."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(4), COUNTS.numpy()))
    x = 1.5 * y + rng.normal(size=len(y))
    likelihood = -0.5 * (x[:, None] - 1.5 * np.arange(4)) ** 2
    return torch.from_numpy(likelihood), torch.from_numpy(y)


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_the_prior_is_added_as_far_as_the_scores_do_not_know_it(known: float) -> None:
    """By Bayes' rule, log p(c|x) is log p(x|c) + log π_c but for what all classes share."""
    likelihood, y = skewed(0)
    log_prior = (COUNTS / COUNTS.sum()).log()
    scores = 3 * (likelihood + known * log_prior)
    temperature, prior = fit_calibration(scores, y, log_frequencies(COUNTS))
    assert temperature == pytest.approx(3, rel=0.1)
    missing = (1 - known) * (log_prior - log_prior.mean())
    assert prior.tolist() == pytest.approx(missing.tolist(), abs=0.35)


def test_balanced_scores_have_calibrated_probabilities_on_other_images_too() -> None:
    likelihood, y = skewed(1)
    temperature, prior = fit_calibration(likelihood, y, log_frequencies(COUNTS))
    scores, labels = skewed(2)
    with_prior = (scores / temperature + prior).softmax(1)
    without = scores.softmax(1)
    assert calibration_error(reliability(with_prior, labels)) < 0.02
    assert calibration_error(reliability(without, labels)) > 0.05
    right = [float((p.argmax(1) == labels).double().mean()) for p in (with_prior, without)]
    assert right[0] > right[1] + 0.03


def test_no_other_temperature_or_weight_near_the_fitted_ones_is_better() -> None:
    likelihood, y = skewed(3)
    log_prior = log_frequencies(COUNTS)
    temperature, prior = fit_calibration(2 * likelihood, y, log_prior)

    def loss(factor: float, scale: float) -> float:
        return float(F.cross_entropy(2 * likelihood / (factor * temperature) + scale * prior, y))

    around = [loss(a, b) for a in (0.98, 1.0, 1.02) for b in (0.98, 1.0, 1.02)]
    assert around[4] == min(around)


def test_frequencies_count_one_image_more_of_every_class() -> None:
    found = log_frequencies(torch.tensor([0, 3, 4])).exp()
    assert found.tolist() == pytest.approx([1 / 10, 4 / 10, 5 / 10])
