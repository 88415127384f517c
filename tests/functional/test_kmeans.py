import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cafedcl.functional.kmeans import ITERATIONS, STARTS, PointGroups, distinct_points, k_means

Array = npt.NDArray[np.float64]


def alone(points: Tensor, k: int) -> Tensor:
    """The centroids of one class."""
    classes, centroids = k_means(points, torch.full((len(points),), 4), torch.tensor([4]), k)
    assert classes.tolist() == [4] * len(centroids)
    assert centroids.dtype == points.dtype
    return centroids


def cost(points: Array, centroids: Array) -> float:
    return sum(min(float(((p - c) ** 2).sum()) for c in centroids) for p in points)


def best_cost(points: Array, k: int) -> float:
    """The least cost over every way to part the points into at most k groups."""
    least = math.inf
    for groups in itertools.product(range(k), repeat=len(points)):
        if groups[0] == 0:
            centroids = np.array([points[np.array(groups) == g].mean(0) for g in set(groups)])
            least = min(least, cost(points, centroids))
    return least


def ratio(points: Tensor, k: int) -> float:
    """The cost of the centroids over that of scikit-learn's."""
    from sklearn.cluster import KMeans

    theirs = KMeans(k, n_init=10, random_state=0).fit(points.numpy()).cluster_centers_
    ours, there = alone(points, k).double().numpy(), points.double().numpy()
    return cost(there, ours) / cost(there, theirs.astype(np.float64))


# how good it is


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_way_to_part_a_few_points_is_better(seed: int, k: int) -> None:
    points = np.random.default_rng(seed).normal(size=(7, 2))
    centroids = alone(torch.from_numpy(points), k)
    assert centroids.shape == (k, 2)
    assert cost(points, centroids.numpy()) == pytest.approx(best_cost(points, k), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("number", "dim", "k"), [(45, 512, 3), (45, 16, 3), (200, 8, 5)])
def test_clouds_far_apart_cost_what_they_cost_scikit_learn(
    number: int, dim: int, k: int, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    centres = 8 * torch.randn(k, dim, generator=draws)
    points = centres[torch.arange(number) % k] + torch.randn(number, dim, generator=draws)
    assert ratio(points, k) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("number", "dim", "k"), [(45, 512, 3), (45, 512, 8), (45, 16, 3), (300, 64, 3)]
)
def test_points_without_any_clouds_cost_little_more_than_with_scikit_learn(
    number: int, dim: int, k: int, seed: int
) -> None:
    assert ratio(torch.randn(number, dim, generator=torch.Generator().manual_seed(seed)), k) <= 1.02


def test_in_few_dimensions_it_is_as_good_as_scikit_learn_in_the_mean() -> None:
    ratios = [
        ratio(torch.randn(60, 4, generator=torch.Generator().manual_seed(seed)), 4)
        for seed in range(20)
    ]
    assert np.mean(ratios) <= 1.005


def test_points_far_from_zero_are_told_apart() -> None:
    points = 1000 + torch.tensor([[0.0, 0], [0, 0.5], [10, 0], [10, 0.5], [0, 20], [0, 20.5]])
    expected = [[1000.0, 1000.25], [1000.0, 1020.25], [1010.0, 1000.25]]
    np.testing.assert_allclose(sorted(alone(points, 3).tolist()), expected, atol=1e-3)


def test_centroids_of_a_case_by_hand() -> None:
    """Two clouds of three and two points, one of which occurs twice and counts twice."""
    points = torch.tensor([[0.0, 0], [0, 3], [3, 0], [100, 100], [100, 103], [100, 103]])
    np.testing.assert_allclose(sorted(alone(points, 2).tolist()), [[1, 1], [100, 102]], atol=1e-4)


def test_three_clouds_give_their_three_means() -> None:
    rng = np.random.default_rng(0)
    clouds = [5 * centre + rng.normal(size=(20, 4)) for centre in np.eye(4)[:3]]
    found = alone(torch.from_numpy(np.concatenate(clouds)).float(), 3).numpy()
    expected = np.array([cloud.mean(0) for cloud in clouds])
    order = [int(np.linalg.norm(found - mean, axis=1).argmin()) for mean in expected]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found[order], expected, atol=1e-5)


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 5), st.integers(1, 4))
def test_once_settled_centroids_are_the_means_of_the_points_nearest_to_them(
    seed: int, number: int, dim: int, k: int
) -> None:
    """In float64, so that no point is nearest to another centroid by rounding alone."""
    points = np.random.default_rng(seed).normal(size=(number, dim))
    found = alone(torch.from_numpy(points), k).numpy()
    assert len(found) == min(k, number)
    nearest = ((points[:, None] - found) ** 2).sum(2).argmin(1)
    for c in range(len(found)):
        if (nearest == c).any():
            np.testing.assert_allclose(found[c], points[nearest == c].mean(0), atol=1e-9)


# fewer points than centroids


def test_one_sample_is_its_own_centroid() -> None:
    point = torch.tensor([[1.0, -2.0, 0.5]])
    assert torch.equal(alone(point, 3), point)


def test_fewer_samples_than_k_are_all_centroids() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    np.testing.assert_allclose(
        sorted(alone(points, 5).tolist()), sorted(points.tolist()), atol=1e-6
    )


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_identical_samples_have_one_centroid(value: float) -> None:
    points = torch.full((6, 3), value)
    found = alone(points, 3)
    assert found.shape == (1, 3)
    np.testing.assert_allclose(found, points[:1], atol=1e-6)


def test_two_distinct_values_among_many_samples_have_two_centroids() -> None:
    points = torch.tensor([[0.0, 1.0]] * 5 + [[2.0, 2.0]] * 3)[
        torch.tensor([0, 5, 1, 6, 2, 3, 7, 4])
    ]
    np.testing.assert_allclose(
        sorted(alone(points, 3).tolist()), [[0.0, 1.0], [2.0, 2.0]], atol=1e-6
    )


def test_samples_that_differ_in_the_last_bit_do_not_fail() -> None:
    points = torch.full((6, 2), 0.7)
    points[0, 0] = torch.nextafter(points[0, 0], torch.tensor(1.0))
    points[1, 1] = torch.nextafter(points[1, 1], torch.tensor(0.0))
    found = alone(points, 3)
    assert 1 <= len(found) <= 3
    np.testing.assert_allclose(found, points[: len(found)], atol=1e-5)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40
    )
)
def test_a_class_has_as_many_centroids_as_distinct_points_at_most_k(
    drawn: list[tuple[int, int, int]],
) -> None:
    z, y = torch.tensor([row[:2] for row in drawn]).float(), torch.tensor([row[2] for row in drawn])
    held = y.unique()
    classes, centroids = k_means(z, y, held, 4)
    expected = {c: len({row[:2] for row in drawn if row[2] == c}) for c in held.tolist()}
    assert classes.tolist() == [c for c, number in expected.items() for _ in range(min(4, number))]
    for c, number in expected.items():
        mine = centroids[classes == c]
        assert len(mine.round(decimals=3).unique(dim=0)) == min(4, number)


# all classes at once


def crowd() -> Iterator[tuple[int, Tensor]]:
    """Classes of very different sizes; one is a single point, one is one point over and over."""
    draws = torch.Generator().manual_seed(3)
    for c, number in ((0, 30), (1, 1), (3, 200), (6, 7), (7, 2)):
        yield c, 5 * c + torch.randn(number, 8, generator=draws)
    yield 9, torch.ones(12, 8)


def mixed() -> tuple[Tensor, Tensor, Tensor]:
    z, y = (
        torch.cat([z for _, z in crowd()]),
        torch.cat([torch.full((len(z),), c) for c, z in crowd()]),
    )
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    return z[order], y[order], torch.tensor([c for c, _ in crowd()])


def test_a_class_does_not_feel_the_others() -> None:
    z, y, held = mixed()
    classes, centroids = k_means(z, y, held, 3)
    assert classes.tolist() == [0, 0, 0, 1, 3, 3, 3, 6, 6, 6, 7, 7, 9]
    for c in held.tolist():
        torch.testing.assert_close(centroids[classes == c], alone(z[y == c], 3), atol=1e-5, rtol=0)


def test_padded_it_has_k_rows_of_every_class_and_the_same_centroids() -> None:
    """Classes 2 and 4 have no point, and points of the labels −1 and 8 belong to no class."""
    z, y, _ = mixed()
    z = torch.cat([z, torch.randn(5, 8)])
    y = torch.cat([y, torch.tensor([-1, 8, -1, -1, 8])])
    classes = torch.tensor([*range(8), 9])
    labels, padded = k_means(z, y, classes, 3, padded=True)
    assert labels.shape == (27,)
    assert padded.isfinite().all()
    expected_labels, expected = k_means(*mixed(), 3)
    assert labels[labels >= 0].tolist() == expected_labels.tolist()
    torch.testing.assert_close(padded[labels >= 0], expected, atol=1e-5, rtol=0)


def test_the_same_points_give_the_same_bits_with_any_number_of_threads() -> None:
    z, y, held = mixed()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            torch.manual_seed(threads)
            found.append(k_means(z, y, held, 3)[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_no_random_numbers_of_anybody_else_are_used() -> None:
    z, y, held = mixed()
    before = torch.get_rng_state()
    k_means(z, y, held, 3)
    assert torch.equal(before, torch.get_rng_state())


def test_distinct_points_are_parted_by_class_with_how_often_they_occur() -> None:
    z = torch.tensor([[1.0, 0], [2, 2], [1, 0], [5, 5], [1, 0], [1, 0]])
    points, times, numbers = distinct_points(
        z, torch.tensor([2, 2, 2, 7, 2, 7]), torch.tensor([2, 7])
    )
    assert numbers.tolist() == [2, 2]
    found = [
        {(*point, count) for point, count in zip(mine.tolist(), often.tolist(), strict=True)}  # type: ignore[misc]
        for mine, often in zip(points, times, strict=True)
    ]
    assert found == [{(1.0, 0.0, 3.0), (2.0, 2.0, 1.0)}, {(1.0, 0.0, 1.0), (5.0, 5.0, 1.0)}]


def test_seeds_of_a_start_are_different_points_and_never_padding() -> None:
    points, times, numbers = distinct_points(*mixed())
    seeds = PointGroups(points, times).seeds(3)
    assert seeds.shape == (len(numbers), STARTS, 3, 8)
    for mine, real, number in zip(seeds, points, numbers, strict=True):
        for start in mine[:, :number].tolist():
            assert len({tuple(seed) for seed in start}) == min(3, number)
            assert all(seed in real[:number].tolist() for seed in start)


def test_a_cluster_that_nothing_is_nearest_to_stays_where_it_was() -> None:
    scene = PointGroups(torch.tensor([[[-1.0], [1.0]]]), torch.ones(1, 2))
    costs, centres = scene.settle(
        torch.tensor([[[[-1.0], [50.0]]]]), torch.ones(1, 2, dtype=torch.bool)
    )
    assert centres.flatten().tolist() == [0.0, 50.0]
    assert costs.tolist() == [[2.0]]
    assert ITERATIONS > 1


@pytest.mark.parametrize("k", [2, 3, 8])
def test_centroids_come_in_the_same_order_when_points_move_by_a_bit(k: int) -> None:
    """Each of a class's few points is a centroid, or pairs are: many starts find the same."""
    made = torch.Generator().manual_seed(5)
    z, y = torch.rand(40, 6, generator=made), torch.arange(40) % 10
    classes, first = k_means(z, y, torch.arange(10), k)
    assert classes.tolist() == sorted(classes.tolist())
    for seed in range(5):
        moved = z * (1 + 1e-7 * torch.randn(z.shape, generator=torch.Generator().manual_seed(seed)))
        again, second = k_means(moved, y, torch.arange(10), k)
        assert torch.equal(classes, again)
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
