"""The claims of docs/theory.md on a loop that equalises recalls.

Where recalls are needed in closed form, an image of class y scores μ_{y,c} and Gumbel noise for
class c. Then it is classified as c with the probability softmax(μ_y + b)_c, whose derivative in b_c
is at most 1/4.
"""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import recall_loop
import torch
from hypothesis import given
from hypothesis import strategies as st

SEEDS = st.integers(0, 10_000)


def closed_form(means: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    weights = np.exp(means + offsets)
    return np.diagonal(weights) / weights.sum(1)


def some_means(seed: int, classes: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 2 * np.eye(classes) + rng.normal(size=(classes, classes))


def width(differences: np.ndarray) -> float:
    return float(differences.max() - differences.min())


def equal_recalls(means: np.ndarray) -> np.ndarray:
    """The offsets with equal recalls, by a loop of its own with a large rate."""
    offsets = np.zeros(len(means))
    for _ in range(3_000):
        found = closed_form(means, offsets)
        offsets = offsets - 2 * (found - found.mean())
    return offsets


@cache
def solved(seed: int) -> tuple[np.ndarray, np.ndarray]:
    means = some_means(seed)
    return means, closed_form(means, equal_recalls(means))


@given(SEEDS)
def test_a_higher_offset_raises_its_own_recall_and_no_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(60, 4)))
    y = torch.from_numpy(rng.integers(0, 4, 60))
    c = int(rng.integers(4))
    raised = torch.zeros(4).double()
    raised[c] = float(rng.exponential())
    before, after = (recall_loop.recalls(scores + by, y) for by in (torch.zeros(4), raised))
    there = ~before.isnan()
    change = (after - before)[there]
    own = torch.arange(4)[there] == c
    assert (change[own] >= 0).all()
    assert (change[~own] <= 0).all()
    everywhere = recall_loop.recalls(scores + 0.25, y)
    torch.testing.assert_close(everywhere, before, equal_nan=True)


@pytest.mark.parametrize("seed", range(4))
def test_recalls_are_those_of_the_closed_form(seed: int) -> None:
    """Without this, the tests below would be about another loop."""
    means, rng = some_means(seed), np.random.default_rng(seed)
    y = np.repeat(np.arange(4), 40_000)
    scores = means[y] + rng.gumbel(size=(len(y), 4))
    offsets = rng.normal(size=4)
    found = recall_loop.recalls(torch.from_numpy(scores + offsets), torch.from_numpy(y))
    np.testing.assert_allclose(found, closed_form(means, offsets), atol=0.02)


@pytest.mark.parametrize("rate", [0.1, 1.0, 3.9])
@pytest.mark.parametrize("seed", range(4))
def test_every_turn_comes_closer_to_equal_recalls(seed: int, rate: float) -> None:
    means = some_means(seed)
    goal = equal_recalls(means)
    offsets = np.random.default_rng(seed).normal(size=4)
    away = [width(offsets - goal)]
    for _ in range(2_000):
        found = torch.from_numpy(closed_form(means, offsets))
        offsets = recall_loop.moved(torch.from_numpy(offsets), found, rate).numpy()
        away.append(width(offsets - goal))
    assert all(after <= before + 1e-12 for before, after in pairwise(away))
    assert away[-1] < 1e-3
    assert width(closed_form(means, offsets)) < 1e-3


@given(SEEDS, SEEDS)
def test_no_other_offsets_have_a_better_worst_class(problem: int, other: int) -> None:
    means, best = solved(problem % 5)
    assert width(best) < 1e-6
    offsets = 2 * np.random.default_rng(other).normal(size=4)
    assert closed_form(means, offsets).min() <= best.max() + 1e-9


def test_the_price_is_paid_in_mean_recall() -> None:
    """Two classes look the same, so one of two is right at best; the third could be recalled."""
    means = np.array([[0.0, 3.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 6.0]])
    free = closed_form(means, np.zeros(3))
    equal = closed_form(means, equal_recalls(means))
    assert equal.min() > free.min()
    assert equal.mean() < free.mean()


@given(SEEDS)
def test_the_spread_between_clients_is_that_of_recalls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(5), 7)
    found = rng.random(5)
    variance = found @ np.cov(shares.T, bias=True) @ found
    spread = recall_loop.spread(torch.from_numpy(found), torch.from_numpy(shares))
    assert spread == pytest.approx(variance**0.5, abs=1e-9)
    assert recall_loop.spread(torch.full((5,), 0.6).double(), torch.from_numpy(shares)) < 1e-9


def test_a_class_without_validation_images_keeps_its_offset() -> None:
    found = torch.tensor([0.2, float("nan"), 0.6]).double()
    offsets = recall_loop.moved(torch.zeros(3).double(), found, 0.5)
    np.testing.assert_allclose(offsets, [0.1, 0.0, -0.1])


def test_turns_on_images_equalise_their_recalls() -> None:
    means, rng = some_means(1), np.random.default_rng(0)
    y = np.repeat(np.arange(4), 2_000)
    scores = torch.from_numpy(means[y] + rng.gumbel(size=(len(y), 4)))
    labels = torch.from_numpy(y)
    widths = []
    for turns in (0, 3, 30, 300):
        offsets = recall_loop.offsets_after(scores, labels, turns)
        widths.append(width(recall_loop.recalls(scores + offsets, labels).numpy()))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.02
