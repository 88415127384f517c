import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cafedcl.core.contract import Up
from cafedcl.methods._server_head import trained_head
from cafedcl.methods.creff import CReFF, CReFFOptions, gradient_distance
from cafedcl.models import Network

CLASSES, DIM = 3, 4
QUICK = {"features": 6, "match_steps": 60, "epochs": 40, "lr": 0.1, "batch": 8}


@pytest.fixture
def head():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(CLASSES, DIM)), rng.normal(size=CLASSES)
    return torch.from_numpy(weight), torch.from_numpy(bias)


def gradient_of(features, label, head):
    """Return the gradient of the mean cross-entropy in (W, b), by autograd, as (C, d + 1)."""
    weight, bias = (value.clone().requires_grad_() for value in head)
    labels = torch.full((len(features),), label)
    loss = F.cross_entropy(F.linear(features, weight, bias), labels)
    in_weight, in_bias = torch.autograd.grad(loss, (weight, bias))
    return torch.cat([in_weight, in_bias[:, None]], 1)


def test_clients_send_the_gradient_of_each_class_in_the_servers_head(visit_with, head):
    h = torch.from_numpy(np.random.default_rng(1).normal(size=(6, DIM)))
    y = torch.tensor([0, 2, 0, -1, 2, 2])  # −1 is padding
    asked = []

    def embed(part, weights):
        asked.append((part, weights))
        return h, y

    anchors = dict(zip(("weight", "bias"), head, strict=True))
    visit = visit_with(torch.tensor([2.0, 0, 3]).double(), anchors=anchors, embed=embed)
    method = CReFF(CReFFOptions(), CLASSES, DIM)
    sent, _ = method.summarize(Network(nn.Identity(), nn.Identity()), visit)
    assert asked == [("train", "received")]
    assert sent["classes"].tolist() == [0, 2]
    expected = torch.stack([gradient_of(h[y == c], c, head) for c in (0, 2)])
    torch.testing.assert_close(sent["gradients"], expected)


def test_gradients_are_compared_by_the_cosines_of_their_rows(head):
    rng = np.random.default_rng(2)
    features = torch.from_numpy(rng.normal(size=(CLASSES, 5, DIM)))
    wanted = torch.from_numpy(rng.normal(size=(CLASSES, CLASSES, DIM + 1)))
    found = gradient_distance(features, head, wanted)
    for c in range(CLASSES):
        one, other = gradient_of(features[c], c, head), wanted[c]
        pairs = [*zip(one[:, :-1], other[:, :-1], strict=True), (one[:, -1], other[:, -1])]
        expected = sum(1 - float(a @ b / a.norm() / b.norm()) for a, b in pairs)
        assert found[c].item() == pytest.approx(expected, abs=1e-5)


def test_the_server_matches_the_gradients_and_trains_a_head_on_its_features(head):
    torch.manual_seed(0)
    method = CReFF(CReFFOptions(**QUICK), CLASSES, DIM)
    state = method.start(Network(nn.Identity(), nn.Linear(DIM, CLASSES)))
    centres = 3 * torch.eye(CLASSES, DIM)
    before = state["anchors/weight"], state["anchors/bias"]
    # Class 1 is nobody's, and two clients have class 0.
    held = [[0], [0, 2]]
    ups = []
    for k, labels in enumerate(held):
        gradients = [gradient_of(centres[c] + 0.1 * torch.randn(8, DIM), c, before) for c in labels]
        tensors = {"classes": torch.tensor(labels), "gradients": torch.stack(gradients)}
        ups.append(Up(k, 8, tensors))
    after = method.update(state, ups)
    mean = (ups[0].tensors["gradients"][0] + ups[1].tensors["gradients"][0]) / 2
    wanted = torch.stack([mean, torch.zeros_like(mean), ups[1].tensors["gradients"][1]])
    far, near = (gradient_distance(s["server/features"], before, wanted) for s in (state, after))
    assert (near < 0.5 * far)[[0, 2]].all()
    assert torch.equal(after["server/features"][1], state["server/features"][1])
    assert not torch.equal(after["anchors/weight"], state["anchors/weight"])


def test_a_head_learns_the_features_of_the_classes_that_are_known():
    torch.manual_seed(0)
    features = 3 * torch.eye(CLASSES, DIM)[:, None] + 0.1 * torch.randn(CLASSES, 6, DIM)
    start = {"weight": torch.zeros(CLASSES, DIM), "bias": torch.zeros(CLASSES)}
    known = torch.tensor([True, False, True])
    after = trained_head(start, features, epochs=20, batch=5, lr=0.1, known=known)
    logits = F.linear(features[known].flatten(0, 1), after["anchors/weight"], after["anchors/bias"])
    assert logits.argmax(1).tolist() == [0] * 6 + [2] * 6
    assert after["anchors/bias"][1] < 0


def test_the_server_is_scored_with_its_head_and_clients_with_their_own(tiny):
    federation = tiny("creff")
    record = federation.run()[-1]
    plain = tiny("fedavg")
    same = plain.run()[-1]
    assert record.own == same.own
    assert record.server != same.server
    for name in plain.state:
        assert torch.equal(federation.state[name], plain.state[name])
    assert "server/features" not in record.tables
