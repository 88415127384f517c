import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Up
from cafedcl.methods.ccvr import CCVR, CCVROptions, factor_of, pooled
from cafedcl.models import Network

CLASSES, DIM = 3, 4


def reply_of(client, h, y, visit_with):
    """Return what a client with these features sends."""
    counts = torch.bincount(y, minlength=CLASSES).double()
    visit = visit_with(counts, embed=lambda part, weights: (h, y))
    method = CCVR(CCVROptions(), CLASSES, DIM)
    sent, _ = method.summarize(Network(nn.Identity(), nn.Linear(DIM, CLASSES)), visit)
    return Up(client, len(y), sent)


def clients():
    """Two clients: class 0 at both, a single image of class 1, class 2 at nobody."""
    rng = np.random.default_rng(0)
    parts = [(7, [0] * 6 + [1]), (5, [0] * 5)]
    return [(torch.from_numpy(rng.normal(size=(n, DIM))), torch.tensor(y)) for n, y in parts]


def test_means_and_covariances_of_clients_give_those_of_all_images(visit_with):
    parts = clients()
    ups = [reply_of(k, h, y, visit_with) for k, (h, y) in enumerate(parts)]
    assert [up.tensors["classes"].tolist() for up in ups] == [[0, 1], [0]]
    everything = np.concatenate([h[y == 0].numpy() for h, y in parts])
    mean, covariance = pooled(ups, 0)
    np.testing.assert_allclose(mean, everything.mean(0), atol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(everything.T), atol=1e-12)
    _, single = pooled(ups, 1)
    assert not single.any()


def test_features_are_drawn_of_these_moments_and_classes_nobody_has_are_left_out(visit_with):
    torch.manual_seed(0)
    parts = clients()
    ups = [reply_of(k, h, y, visit_with) for k, (h, y) in enumerate(parts)]
    method = CCVR(CCVROptions(features=4000, epochs=1), CLASSES, DIM)
    network = Network(nn.Identity(), nn.Linear(DIM, CLASSES))
    head = {f"model/head.{name}": value for name, value in network.head.state_dict().items()}
    state = {**method.start(network), **head}
    after = method.update(state, ups)
    assert after["server/known"].tolist() == [True, True, False]
    assert not after["server/features"][2].any()
    mean, covariance = pooled(ups, 0)
    drawn = after["server/features"][0].double().numpy()
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.15)
    # Nothing is known of class 2, so the head starts from the model's and only lowers it.
    assert after["anchors/bias"][2] < state["model/head.bias"][2]


def test_the_server_is_scored_with_its_head_and_clients_with_their_own(tiny):
    federation = tiny("ccvr")
    record = federation.run()[-1]
    plain = tiny("fedavg")
    same = plain.run()[-1]
    assert record.own == same.own
    for name in plain.state:
        assert torch.equal(federation.state[name], plain.state[name])
    weights = [federation.state[n] for n in ("anchors/weight", "model/head.weight")]
    assert not torch.equal(*weights)


def test_what_travels_are_moments_of_the_classes_that_a_client_has(tiny):
    federation = tiny("ccvr")
    weights = sum(value.numel() for value in federation.task.initial.values())
    dim = federation.method.dim
    assert federation.step().traffic["up_floats"] == 3 * (weights + 2 * (dim * dim + dim + 1))


def test_a_singular_covariance_can_be_drawn_from(visit_with):
    h = torch.zeros(3, DIM).double()
    method = CCVR(CCVROptions(features=5, epochs=1), CLASSES, DIM)
    network = Network(nn.Identity(), nn.Linear(DIM, CLASSES))
    head = {f"model/head.{name}": value for name, value in network.head.state_dict().items()}
    state = {**method.start(network), **head}
    after = method.update(state, [reply_of(0, h, torch.tensor([1, 1, 1]), visit_with)])
    assert after["server/features"].abs().max() == pytest.approx(0, abs=1e-3)


def test_what_is_no_covariance_does_not_end_the_run():
    wrong = torch.tensor([[1.0, 9.0], [9.0, -4.0]]).double()
    np.testing.assert_allclose(factor_of(wrong), [[1, 0], [0, 0]])
    right = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double()
    np.testing.assert_allclose(factor_of(right) @ factor_of(right).T, right, atol=1e-3)
