import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch, Up
from cafedcl.methods.spherefed import SphereFed, SphereFedOptions
from cafedcl.models import Network

CLASSES, DIM = 3, 5
NETWORK = Network(nn.Identity(), nn.Identity())


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture
def frame():
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, CLASSES)))
    return q.T


def test_the_loss_is_the_squared_distance_to_the_one_hot_target(visit_with, frame):
    rng = np.random.default_rng(1)
    x, y, weight = rng.normal(size=(4, DIM)), np.array([0, 2, 1, 1]), np.array([1.0, 1, 0.5, 0])
    each = np.square(unit(x) @ frame.T - np.eye(CLASSES)[y]).sum(1)
    visit = visit_with([1.0] * CLASSES, anchors={"frame": torch.from_numpy(frame)})
    batch = Batch(*map(torch.from_numpy, (x, y, weight)))
    method = SphereFed(SphereFedOptions(), CLASSES, DIM)
    loss = method.loss(NETWORK, batch, visit)["mse"].item()
    assert loss == pytest.approx((weight * each).sum() / weight.sum(), abs=1e-12)


def test_the_calibration_is_the_ridge_regression_of_all_images(visit_with):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, DIM)), rng.integers(0, CLASSES, 12)
    method = SphereFed(SphereFedOptions(ridge=0.5), CLASSES, DIM)
    ups = []
    for k, rows in enumerate((slice(0, 5), slice(5, 12))):
        part = torch.from_numpy(x[rows]), torch.from_numpy(y[rows])
        counts = np.bincount(y[rows], minlength=CLASSES).astype(float)
        visit = visit_with(counts, embed=lambda _part, _weights, part=part: part)
        ups.append(Up(k, 1, method.summarize(NETWORK, visit)[0]))
    z = unit(x)
    expected = np.linalg.solve(z.T @ z + 0.5 * np.eye(DIM), z.T @ np.eye(CLASSES)[y]).T
    np.testing.assert_allclose(method.update({}, ups)["anchors/calibrated"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("calibrate", "memory", "used"),
    [(True, {}, "calibrated"), (False, {}, "frame"), (True, {"own": torch.ones(1)}, "frame")],
)
def test_the_server_may_be_calibrated_and_clients_use_the_fixed_classifier(
    frame, calibrate, memory, used
):
    x = np.random.default_rng(3).normal(size=(4, DIM))
    anchors = {"frame": frame, "calibrated": 2 * frame[::-1]}
    method = SphereFed(SphereFedOptions(calibrate=calibrate), CLASSES, DIM)
    given = {name: torch.from_numpy(value.copy()) for name, value in anchors.items()}
    scores = method.scores(NETWORK, torch.from_numpy(x), given, memory)
    np.testing.assert_allclose(scores, unit(x) @ anchors[used].T, atol=1e-12)


def test_the_classifier_is_orthonormal_and_never_trained(tiny):
    federation = tiny("spherefed")
    frame = federation.state["anchors/frame"].clone()
    federation.run()
    assert torch.equal(federation.state["anchors/frame"], frame)
    torch.testing.assert_close(frame @ frame.T, torch.eye(10), atol=1e-5, rtol=0)
    assert not any(name.startswith("head") for name in federation.task.initial)


def test_a_matrix_that_cannot_be_inverted_raises_nothing():
    method = SphereFed(SphereFedOptions(ridge=0.5), CLASSES, DIM)
    wrong = {"gram": -0.5 * torch.eye(DIM), "targets": torch.ones(CLASSES, DIM)}
    assert not method.update({}, [Up(0, 1, wrong)])["anchors/calibrated"].isfinite().all()
