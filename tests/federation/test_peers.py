"""Clients are judged by those who have the same classes, over rounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.core.tensors import Tensors
from cafedcl.federation.peers import AGREEMENT, LEAST, MEMORY, VISITS, Peers

CPU = torch.device("cpu")
TWO_GROUPS = torch.tensor([[9, 0], [8, 0], [7, 0], [6, 0], [0, 9], [0, 8], [0, 7], [0, 6]])


def two_groups(random: np.random.Generator) -> np.ndarray:
    """Updates of two groups of clients that point away from each other."""
    apart = random.normal(size=60)
    directions = np.repeat([apart, -apart], 4, axis=0)
    return directions + 0.5 * random.normal(size=(8, 60))


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from([-10.0, -1.0, -0.1]))
def test_a_liar_is_told_from_honest_clients_with_other_classes(
    seed: int, liar: int, factor: float
) -> None:
    updates = two_groups(np.random.default_rng(seed))
    updates[liar] *= factor
    peers = Peers(TWO_GROUPS, CPU)
    trusted, _ = peers.judge(list(range(8)), torch.from_numpy(updates), peers.start())
    assert (~trusted).nonzero().flatten().tolist() == [liar]


def test_the_standing_is_the_discounted_mean_of_a_clients_agreement() -> None:
    random = np.random.default_rng(0)
    peers = Peers(torch.ones(4, 3), CPU)
    kept: Tensors = peers.start()
    agreements = []
    for _ in range(3):
        updates = 1 + 0.3 * random.normal(size=(4, 20))
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        agreements.append(np.mean([unit[0] @ unit[j] for j in (1, 2, 3)]))
        _, kept = peers.judge([0, 1, 2, 3], torch.from_numpy(updates), kept)
    weights = [MEMORY**2, MEMORY, 1]
    assert float(kept[AGREEMENT][0]) == pytest.approx(np.dot(weights, agreements), rel=1e-5)
    assert float(kept[VISITS][0]) == pytest.approx(sum(weights))


def test_clients_that_take_part_rarely_are_compared_on_equal_terms() -> None:
    peers = Peers(torch.ones(5, 2), CPU)
    kept = peers.start()
    updates = torch.ones(4, 10)
    for _ in range(6):
        _, kept = peers.judge([0, 1, 2, 3], updates, kept)
    trusted, kept = peers.judge([0, 1, 2, 4], updates, kept)
    assert trusted.all()
    assert kept[AGREEMENT][4] / kept[VISITS][4] == pytest.approx(1.0)


def test_noise_is_left_out_as_it_agrees_with_nobody() -> None:
    random = np.random.default_rng(1)
    updates = 1 + 0.5 * random.normal(size=(6, 4000))
    updates[2] = random.normal(size=4000)
    peers = Peers(torch.ones(6, 2), CPU)
    trusted, _ = peers.judge(list(range(6)), torch.from_numpy(updates), peers.start())
    assert trusted.tolist() == [True, True, False, True, True, True]
    assert LEAST > 0


def test_a_client_with_classes_of_its_own_cannot_be_judged_and_is_trusted() -> None:
    counts = torch.tensor([[5, 0], [5, 0], [5, 0], [0, 5]])
    updates = torch.tensor([1.0, 1.0, 1.0, -1.0])[:, None].expand(4, 8)
    peers = Peers(counts, CPU)
    trusted, kept = peers.judge([0, 1, 2, 3], updates, peers.start())
    assert trusted.all()
    assert kept[VISITS].tolist() == [1, 1, 1, 0]


def test_where_all_disagree_nobody_is_left_out() -> None:
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1], [-1.0, 0.0]])
    peers = Peers(torch.ones(4, 2), CPU)
    trusted, _ = peers.judge([0, 1, 2, 3], updates, peers.start())
    assert trusted.all()
