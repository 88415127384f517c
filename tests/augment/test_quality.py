import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.augment.quality import COLLAPSE, COPIES, FINE, measure_quality

MADE = torch.Generator().manual_seed(0)


def images(number: int) -> torch.Tensor:
    return torch.rand(number, 1, 4, 4, generator=MADE)


def scores(number: int, middle: float = 0.0) -> torch.Tensor:
    return middle + torch.randn(number, generator=MADE)


def test_a_generator_as_good_as_the_data_scores_near_one() -> None:
    found = measure_quality(images(400), scores(400), images(400), scores(400))
    assert found.quality > 0.9
    assert found.diversity == pytest.approx(1.0, abs=0.05)
    assert found.nearest == pytest.approx(1.0, abs=0.05)
    assert found.verdict == FINE


def test_the_numbers_are_those_of_their_definitions() -> None:
    made = torch.tensor([[0.0], [1.0], [5.0]])
    real = torch.tensor([[0.0], [2.0]])
    found = measure_quality(made, torch.tensor([0.0, 1.0, 2.0]), real, torch.tensor([1.0, 3.0]))
    auc = (0 + 0.5 + 1) / 6
    assert found.score == pytest.approx(sum(1 / (1 + math.exp(-v)) for v in (0.0, 1.0, 2.0)) / 3)
    assert found.diversity == pytest.approx(((1 + 5 + 4) / 3) / 2)
    assert found.nearest == pytest.approx(((0 + 1 + 3) / 3) / 2)
    assert found.quality == pytest.approx((1 - abs(2 * auc - 1)) * 1.0 * (4 / 3 / 2))


@pytest.mark.parametrize("apart", [-10.0, 10.0])
def test_images_that_are_told_from_held_out_ones_score_low_either_way(apart: float) -> None:
    """Below: they look made. Above: the discriminator knows its training images, and takes these
    for them.
    """
    found = measure_quality(images(200), scores(200, apart), images(200), scores(50))
    assert found.quality < 0.01
    assert found.verdict == FINE


def test_a_collapsed_generator_scores_low_and_is_called_so() -> None:
    found = measure_quality(
        images(1).expand(100, -1, -1, -1) + 0.01 * images(100),
        scores(100),
        images(100),
        scores(100),
    )
    assert found.quality < 0.1
    assert found.verdict == COLLAPSE


def test_a_generator_that_repeats_its_training_images_scores_low_and_is_called_so() -> None:
    real = images(50)
    found = measure_quality(real.repeat(2, 1, 1, 1) + 1e-3, scores(100), real, scores(100))
    assert found.quality < 0.1
    assert found.verdict == COPIES


def test_nan_is_a_collapse() -> None:
    assert (
        measure_quality(images(4) * torch.nan, scores(4), images(4), scores(4)).verdict == COLLAPSE
    )


@given(st.integers(2, 20), st.integers(2, 20), st.integers(1, 10), st.floats(-5, 5))
def test_quality_is_a_share(made: int, real: int, held: int, apart: float) -> None:
    found = measure_quality(images(made), scores(made, apart), images(real), scores(held))
    assert 0 <= found.quality <= 1
    assert 0 <= found.score <= 1
