import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.functional import robust

SEEDS = st.integers(0, 1000)


def points(seed: int, rows: int = 7, width: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, width)))


@given(SEEDS, st.integers(1, 9))
def test_the_median_is_numpys(seed, rows):
    values = points(seed, rows)
    np.testing.assert_allclose(robust.middle(values), np.median(values, 0))


@given(SEEDS, st.integers(3, 9), st.sampled_from([0.0, 0.1, 0.2, 0.4]))
def test_a_trimmed_mean_leaves_out_the_share_on_both_sides(seed, rows, share):
    values = points(seed, rows)
    cut = int(np.ceil(share * rows - 1e-9))
    ordered = np.sort(values.numpy(), 0)
    expected = np.median(ordered, 0) if 2 * cut >= rows else ordered[cut : rows - cut].mean(0)
    np.testing.assert_allclose(robust.trimmed_mean(values, share), expected)


@given(SEEDS, st.integers(3, 9))
def test_no_point_near_the_geometric_median_is_closer_to_all(seed, rows):
    values = points(seed, rows).numpy()
    centre = robust.geometric_median(torch.from_numpy(values)).numpy()

    def total(at):
        return np.linalg.norm(values - at, axis=1).sum()

    random = np.random.default_rng(seed)
    for _ in range(20):
        assert total(centre) <= total(centre + 0.01 * random.normal(size=3)) + 1e-6


def test_vectors_longer_than_the_median_are_clipped_to_it():
    lengths = torch.tensor([1.0, 2.0, 3.0, 100.0, 0.0])
    assert robust.clip_factors(lengths, 1.0).tolist() == pytest.approx([1, 1, 2 / 3, 0.02, 1])
    assert robust.clip_factors(lengths, 50.0).tolist() == [1] * 5


@given(SEEDS)
def test_points_are_pulled_in_to_the_median_distance_and_the_others_stay(seed):
    values = points(seed, 8).float()
    values[0] += 100
    centre = robust.geometric_median(values.double())
    distances = np.linalg.norm(values.double() - centre, axis=1)
    pulled = robust.pulled_in(values, 2.0)
    after = np.linalg.norm(pulled.double() - centre, axis=1)
    assert (after <= 2 * np.median(distances) * (1 + 1e-5)).all()
    near = torch.from_numpy(distances <= 2 * np.median(distances))
    assert torch.equal(pulled[near], values[near])


def test_of_two_points_nobody_knows_which_is_wrong():
    values = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    assert torch.equal(robust.pulled_in(values, 1.0), values)


def test_krum_takes_the_row_with_the_nearest_neighbours():
    values = torch.tensor([[0.0], [1.0], [1.1], [1.3], [50.0], [60.0]])
    scores = []
    for i in range(6):
        squared = sorted(float(values[i] - values[j]) ** 2 for j in range(6) if j != i)
        scores.append(sum(squared[: 6 - 2 - 2]))
    assert robust.krum_scores(values, 2).tolist() == pytest.approx(scores, rel=1e-4)
    assert robust.krum(values, 0.3, multi=False) == [int(np.argmin(scores))]
    assert robust.krum(values, 0.3, multi=True) == [0, 1, 2, 3]


@given(SEEDS)
def test_the_overlap_of_two_clients_is_that_of_their_class_shares(seed):
    counts = np.random.default_rng(seed).integers(0, 4, (5, 3))
    counts[0] = 7
    found = robust.label_overlap(torch.from_numpy(counts)).numpy()
    for i in range(5):
        for j in range(5):
            shares = [counts[k] / max(counts[k].sum(), 1) for k in (i, j)]
            expected = 0 if i == j else np.sqrt(shares[0] * shares[1]).sum()
            assert found[i, j] == pytest.approx(expected, abs=1e-12)


def test_agreement_is_the_mean_cosine_with_those_who_have_the_same_classes():
    cosines = torch.tensor([[1.0, 0.5, -1.0], [0.5, 1.0, 0.2], [-1.0, 0.2, 1.0]]).double()
    overlap = torch.tensor([[0.0, 0.9, 0.1], [0.9, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
    agreement, has_peers = robust.peer_agreement(cosines, overlap)
    assert agreement[:2].tolist() == pytest.approx([0.9 * 0.5 - 0.1, 0.5])
    assert has_peers.tolist() == [True, True, False]


@given(SEEDS)
def test_a_cross_checked_claim_is_bounded_by_the_agreement_with_the_others(seed):
    random = np.random.default_rng(seed)
    honest = np.array([1.0, 0, 0]) + 0.05 * random.normal(size=(6, 3))
    honest /= 1.01 * np.linalg.norm(honest, axis=1, keepdims=True)
    liar = random.normal(size=3)
    liar *= random.uniform() / np.linalg.norm(liar)
    vectors = torch.from_numpy(np.vstack([honest, liar]))
    claims = torch.ones(7).double()
    low = torch.full((7,), 0.1).double()
    high = torch.full((7,), 0.9).double()
    found = robust.cross_checked(claims, low, high, vectors).numpy()
    assert (found[:6] > 0.1 + 0.8 * 0.9).all()
    # The reference lies among the honest ones, so the liar's agreement is about its first number.
    assert found[6] == pytest.approx(0.1 + 0.8 * max(0, liar[0]), abs=0.12)


def test_honest_claims_and_those_of_two_holders_stay():
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    claims = torch.tensor([0.2, 0.5, 0.9])
    zeros = torch.zeros(3)
    assert torch.equal(robust.cross_checked(claims, zeros, torch.ones(3), vectors), claims)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert torch.equal(
        robust.cross_checked(claims[:2], zeros[:2], torch.ones(2), opposite), claims[:2]
    )


@pytest.mark.parametrize("shape", [(6,), (3, 2), (1, 3, 2)])
def test_points_may_have_any_shape(shape):
    """A matrix is one point: the median of its numbers is that of the flattened matrix."""
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 6)))
    points[8] *= 50
    median = robust.geometric_median(points.view(9, *shape))
    assert torch.equal(median.flatten(), robust.geometric_median(points))
    pulled = robust.pulled_in(points.view(9, *shape), 2.0)
    assert torch.equal(pulled.flatten(1), robust.pulled_in(points, 2.0))
    assert float((pulled[8] - median).norm()) < 0.2 * float((points[8] - median.flatten()).norm())


def test_the_median_of_equal_matrices_is_that_matrix():
    matrix = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 8)))
    assert torch.allclose(robust.geometric_median(matrix.expand(5, 8, 8)), matrix)
