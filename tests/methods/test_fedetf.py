import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods.fedetf import FedETF, FedETFOptions
from cafedcl.models import Network

CLASSES, DIM = 4, 6
COUNTS = np.array([5.0, 0, 1, 30])


@pytest.fixture
def scene():
    """Features as inputs, in float64, with a scale of 3."""
    torch.manual_seed(0)
    method = FedETF(FedETFOptions(scale=3.0), CLASSES, DIM)
    network = Network(nn.Identity(), method.head()).double()
    frame = method.start(network)["anchors/frame"].double()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, DIM)), np.array([0, 3, 2, 3, 0])
    return method, network, frame, x, y, np.array([1.0, 1, 0.5, 1, 0])


def logits_by_hand(network, frame, x):
    w, b = (p.detach().numpy() for p in network.part("project").parameters())
    f = x @ w.T + b
    return 3 * (f / np.linalg.norm(f, axis=1, keepdims=True)) @ frame.numpy().T


def test_the_loss_is_balanced_softmax_of_scaled_cosines_to_the_simplex(scene, visit_with):
    method, network, frame, x, y, weight = scene
    batch = Batch(*map(torch.from_numpy, (x, y, weight)))
    visit = visit_with(COUNTS, anchors={"frame": frame})
    s = logits_by_hand(network, frame, x) + np.log(np.maximum(COUNTS, 1))
    each = np.log(np.exp(s).sum(1)) - s[range(5), y]
    loss = method.loss(network, batch, visit)["ce"]
    assert loss.item() == pytest.approx((weight * each).sum() / weight.sum(), abs=1e-10)


def test_a_class_that_the_client_lacks_counts_as_one_image_and_is_not_masked(scene, visit_with):
    method, network, frame, x, y, weight = scene
    batch = Batch(*map(torch.from_numpy, (x, y, weight)))
    losses = [
        method.loss(network, batch, visit_with(counts, anchors={"frame": frame}))["ce"].item()
        for counts in (COUNTS, np.maximum(COUNTS, 1))
    ]
    assert losses[0] == losses[1]


def test_the_classifier_is_a_simplex_in_as_many_dimensions_as_classes(scene):
    _, _, frame, *_ = scene
    expected = np.full((CLASSES, CLASSES), -1 / (CLASSES - 1))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(frame @ frame.T, expected, atol=1e-6)


def test_predictions_have_no_prior(scene):
    method, network, frame, x, *_ = scene
    with torch.no_grad():
        scores = method.scores(network, torch.from_numpy(x), {"frame": frame}, {})
    np.testing.assert_allclose(scores, logits_by_hand(network, frame, x), atol=1e-10)


def test_scale_and_projection_are_averaged_and_the_simplex_is_never_moved(tiny):
    federation = tiny("fedetf")
    before = federation.state["anchors/frame"].clone()
    record = federation.run()[-1]
    heads = {name for name in federation.task.shared() if name.startswith("head")}
    assert heads == {"head.project.weight", "head.project.bias", "head.scale.scale"}
    assert torch.equal(federation.state["anchors/frame"], before)
    assert federation.state["model/head.scale.scale"].item() != 1.0
    weights = sum(value.numel() for value in federation.task.initial.values())
    assert record.traffic["up_floats"] == 3 * weights
