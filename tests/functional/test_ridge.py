import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.core.contract import Up
from cafedcl.functional.ridge import MOMENTS, fitted, moment_fields, moments, summed

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
    counts = torch.bincount(y[y >= 0], minlength=CLASSES)
    sums = moments(z, y, 1 / counts.clamp_min(1).double())
    fields = moment_fields(CLASSES, DIM, norm=float(CLASSES))
    assert fields.keys() == sums.keys() == set(MOMENTS)
    for name, value in sums.items():
        assert tuple(value.shape) == fields[name].shape
        assert float(value.norm(dim=-1).max()) <= fields[name].norm * (1 + 1e-12)
