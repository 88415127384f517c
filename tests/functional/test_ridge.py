import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.core.contract import Enrolment, Up
from cafedcl.functional.ridge import (
    MOMENTS,
    balanced_lengths,
    fitted,
    moment_fields,
    moment_lengths,
    moments,
    rare_targets,
    summed,
)

CLASSES, DIM = 3, 4


def images(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(number, DIM))), torch.from_numpy(
        rng.integers(-1, CLASSES, number)
    )


@given(st.integers(1, 20), st.integers(0, 1000))
def test_moments_are_weighted_sums_over_the_images_of_a_class(number: int, seed: int) -> None:
    z, y = images(number, seed)
    weight = torch.tensor([0.5, 2.0, 0.0]).double()
    found = moments(z, y, weight)
    gram = np.zeros((DIM, DIM))
    targets = np.zeros((CLASSES, DIM))
    for point, label in zip(z.numpy(), y.tolist(), strict=True):
        if label >= 0:
            gram += float(weight[label]) * np.outer(point, point)
            targets[label] += float(weight[label]) * point
    np.testing.assert_allclose(found["gram"], gram, atol=1e-10)
    np.testing.assert_allclose(found["targets"], targets, atol=1e-10)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.floats(0.0, 1.0))
def test_targets_are_1_for_the_rarest_class_and_fall_with_the_number_of_images(
    total: list[int], gain: float
) -> None:
    found = rare_targets(torch.tensor(total).double(), gain).tolist()
    there = [n for n in total if n]
    for n, target in zip(total, found, strict=True):
        assert 0 < target <= 1
        if n:
            assert target == pytest.approx((min(there) / n) ** gain)


def test_a_target_scales_the_row_of_its_class_and_no_other() -> None:
    """Least squares are linear in what they are to give."""
    z, y = images(30, 5)
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    plain = fitted(moments(z, y, weight), 0.3)
    scaled = fitted(moments(z, y, weight, torch.tensor([1.0, 0.25, 0.5]).double()), 0.3)
    np.testing.assert_allclose(scaled, plain * torch.tensor([[1.0], [0.25], [0.5]]), atol=1e-6)


@pytest.mark.parametrize("prior", [False, True])
def test_the_classifier_has_the_least_weighted_squares_around_its_prior(prior: bool) -> None:
    """By least squares on rows that stand for the images and for the prior."""
    z, y = images(30, 5)
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    around = np.random.default_rng(1).normal(size=(CLASSES, DIM)) if prior else None
    known = y >= 0
    root = weight[y[known]].sqrt()[:, None].numpy()
    rows = np.concatenate([root * z[known].numpy(), np.sqrt(0.3) * np.eye(DIM)])
    wanted = np.concatenate(
        [
            root * np.eye(CLASSES)[y[known].numpy()],
            np.sqrt(0.3) * (np.zeros((DIM, CLASSES)) if around is None else around.T),
        ]
    )
    expected = np.linalg.lstsq(rows, wanted, rcond=None)[0].T
    given_prior = None if around is None else torch.from_numpy(around)
    np.testing.assert_allclose(fitted(moments(z, y, weight), 0.3, given_prior), expected, atol=1e-6)


def test_sums_over_clients_are_the_moments_of_all_images() -> None:
    z, y = images(12, 2)
    weight = torch.ones(CLASSES).double()
    ups = [
        Up(k, 1, moments(z[part], y[part], weight))
        for k, part in enumerate(torch.arange(12).split(5))
    ]
    whole = moments(z, y, weight)
    for name in MOMENTS:
        torch.testing.assert_close(summed(ups)[name], whole[name])


@given(st.integers(1, 40), st.integers(0, 1000))
def test_moments_of_unit_features_are_no_longer_than_their_weights_together(
    number: int, seed: int
) -> None:
    z, y = images(number, seed)
    z = z / z.norm(dim=1, keepdim=True)
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    sums = moments(z, y, weight)
    fields = moment_fields(CLASSES, DIM)
    assert fields.keys() == sums.keys() == set(MOMENTS)
    assert all(tuple(value.shape) == fields[name].shape for name, value in sums.items())
    counts = torch.bincount(y[y >= 0], minlength=CLASSES)
    most = moment_lengths((counts * weight)[None])
    assert most.keys() == set(MOMENTS)
    assert float(sums["gram"].norm()) <= float(most["gram"][0]) * (1 + 1e-12)
    assert (sums["targets"].norm(dim=1) <= most["targets"][0] * (1 + 1e-12)).all()


def test_moments_of_equal_features_are_just_as_long() -> None:
    z = torch.tensor([[0.6, 0.8, 0.0, 0.0]]).double().expand(5, DIM)
    sums = moments(z, torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0.5, 2.0, 1.0]).double())
    most = moment_lengths(torch.tensor([[1.0, 6.0, 0.0]]).double())
    torch.testing.assert_close(sums["gram"].norm(), most["gram"][0])
    torch.testing.assert_close(sums["targets"].norm(dim=1), most["targets"][0])


def test_the_lengths_of_balanced_moments_follow_from_enrolment() -> None:
    counts = torch.tensor([[3, 0, 1], [1, 0, 1]])
    zeros = torch.zeros_like(counts)
    most = balanced_lengths(Enrolment(counts, zeros, counts.amax(0), counts.sum(0)))
    torch.testing.assert_close(most["targets"], torch.tensor([[0.75, 0.0, 0.5], [0.25, 0.0, 0.5]]))
    torch.testing.assert_close(most["gram"], torch.tensor([1.25, 0.75]))


# docs/theory.md, "The fitted classifier"


def balanced(z: torch.Tensor, y: torch.Tensor, classes: int = CLASSES) -> torch.Tensor:
    """The weights under which every class counts the same."""
    return 1 / torch.bincount(y[y >= 0], minlength=classes).clamp_min(1).to(z)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 1000))
def test_the_division_among_clients_does_not_change_the_classifier(
    number: int, clients: int, seed: int
) -> None:
    z, y = images(number, seed)
    weight = balanced(z, y)
    owners = torch.from_numpy(np.random.default_rng(seed).integers(0, clients, number))
    ups = [Up(k, 1, moments(z[owners == k], y[owners == k], weight)) for k in range(clients)]
    anchors = torch.eye(CLASSES, DIM).double()
    torch.testing.assert_close(
        fitted(summed(ups), 0.1, anchors), fitted(moments(z, y, weight), 0.1, anchors)
    )


@given(st.integers(1, 5), st.integers(0, CLASSES - 1), st.integers(0, 1000))
def test_a_class_counts_the_same_however_frequent_it_is(times: int, chosen: int, seed: int) -> None:
    z, y = images(20, seed)
    more = torch.cat([torch.arange(20), *[torch.nonzero(y == chosen)[:, 0]] * times])
    anchors = torch.eye(CLASSES, DIM).double()
    found = [
        fitted(moments(a, b, balanced(a, b)), 0.1, anchors) for a, b in ((z, y), (z[more], y[more]))
    ]
    torch.testing.assert_close(found[0], found[1])


@given(st.floats(1e-3, 10), st.integers(0, 1000))
def test_features_on_their_anchors_give_the_anchors_back(ridge: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    anchors = torch.from_numpy(np.linalg.qr(rng.normal(size=(DIM, CLASSES)))[0].T)
    y = torch.from_numpy(rng.permutation([0, 0, 0, 0, 1, 1, 2]))
    z = anchors[y]
    found = fitted(moments(z, y, balanced(z, y)), ridge, anchors)
    torch.testing.assert_close(found, anchors.float())


def test_a_linear_distortion_misleads_the_anchors_and_not_the_fit() -> None:
    """All features are drawn towards the first anchor, until it is the nearest to all of them."""
    anchors = torch.eye(CLASSES, DIM).double()
    distortion = torch.eye(DIM).double()
    distortion[0] += 2
    y = torch.tensor([0, 1, 1, 2])
    z = anchors[y] @ distortion.T
    z = z / z.norm(dim=1, keepdim=True)
    assert (z @ anchors.T).argmax(1).tolist() == [0, 0, 0, 0]
    found = fitted(moments(z, y, balanced(z, y)), 1e-6, anchors).double()
    assert (z @ found.T).argmax(1).tolist() == y.tolist()


def test_a_class_without_images_keeps_its_anchor_where_no_other_class_is() -> None:
    """The other two classes lie on the first two axes, with a weight of 1 along each."""
    anchors = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0.6, 0.8, 0]]).double()
    z = anchors[:2]
    y = torch.tensor([0, 1])
    ridge = 0.25
    found = fitted(moments(z, y, balanced(z, y)), ridge, anchors)[2]
    shrunk = 0.6 * ridge / (1 + ridge)
    torch.testing.assert_close(found, torch.tensor([0.0, shrunk, 0.8, 0.0]))


@given(st.integers(3, 30), st.integers(0, 1000))
def test_what_a_client_adds_has_the_trace_of_its_shares(number: int, seed: int) -> None:
    z, y = images(number, seed)
    z = z / z.norm(dim=1, keepdim=True)
    mine = slice(0, number // 2)
    shares = [int((y[mine] == c).sum()) / max(int((y == c).sum()), 1) for c in range(CLASSES)]
    added = moments(z[mine], y[mine], balanced(z, y))["gram"]
    assert float(added.trace()) == pytest.approx(sum(shares), abs=1e-9)
