"""Bounded contributions, their sums, and the noise for them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.functional.private_sums import (
    BoundedPart,
    Contributions,
    capped_weights,
    clipped,
    next_clip,
    system_normal,
)

LAYOUT = Contributions({"update": BoundedPart(3, 0.7, 0.6), "weight": BoundedPart(1, 1.0, 0.4)})
NUMBERS = st.floats(-1e30, 1e30, allow_nan=False)


@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS)
def test_no_contribution_is_longer_than_one(update, weight):
    vector = LAYOUT.vector({"update": torch.tensor(update), "weight": torch.tensor([weight])})
    assert float(vector.norm()) <= 1 + 1e-12


def test_a_contribution_within_its_bounds_is_summed_as_it_is():
    values = {"update": torch.tensor([0.3, -0.2, 0.1]), "weight": torch.tensor([0.5])}
    sums = LAYOUT.sums(LAYOUT.vector(values) + LAYOUT.vector(values))
    torch.testing.assert_close(sums["update"], 2 * values["update"].double())
    torch.testing.assert_close(sums["weight"], 2 * values["weight"].double())


def test_a_longer_part_is_clipped_without_turning():
    sums = LAYOUT.sums(
        LAYOUT.vector({"update": torch.tensor([3.0, 0.0, 4.0]), "weight": torch.tensor([9.0])})
    )
    torch.testing.assert_close(sums["update"], 0.7 * torch.tensor([0.6, 0.0, 0.8]).double())
    assert float(sums["weight"]) == pytest.approx(1.0)


def test_a_part_with_a_larger_share_has_less_noise_in_its_own_unit():
    assert LAYOUT.deviation("update", 2.0) == pytest.approx(2.0 * 0.7 / math.sqrt(0.6))
    assert LAYOUT.deviation("weight", 2.0) == pytest.approx(2.0 / math.sqrt(0.4))


def test_rows_are_clipped_one_by_one():
    rows = torch.tensor([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.1, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(clipped(rows, 1.0), expected)


def test_weights_count_up_to_the_largest_one():
    weights = capped_weights(torch.tensor([-1.0, 0.0, 25.0, 50.0, 1e9]), 50.0)
    assert weights.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_the_clipping_length_moves_towards_the_quantile():
    assert next_clip(2.0, 0.5, 0.5) == 2.0
    assert next_clip(2.0, 0.9, 0.5) == pytest.approx(2.0 * math.exp(-0.2 * 0.4))
    # A noisy share may lie outside of 0 and 1.
    assert next_clip(2.0, -7.0, 0.5) == pytest.approx(2.0 * math.exp(0.2 * 0.5))


def test_numbers_of_the_operating_system_are_normal_and_never_the_same():
    draws = system_normal(100_000)
    assert abs(draws.mean()) < 0.02
    assert draws.std() == pytest.approx(1.0, abs=0.02)
    assert np.mean(np.abs(draws) < 1) == pytest.approx(0.6827, abs=0.01)
    assert np.mean(np.abs(draws) > 3) == pytest.approx(0.0027, abs=0.001)
    assert not np.intersect1d(draws, system_normal(100_000)).size
