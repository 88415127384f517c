import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods.fedloge import FedLoGe, FedLoGeOptions, sparse_simplex
from cafedcl.models import Network

CLASSES, DIM = 4, 12


class Scene:
    """Features as inputs, in float64, with a random fixed head."""

    def __init__(self, visit_with, **options):
        torch.manual_seed(0)
        self.method = FedLoGe(FedLoGeOptions(**options), CLASSES, DIM)
        self.network = Network(nn.Linear(DIM, DIM), self.method.head()).double()
        rng = np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(5, DIM)), np.array([0, 3, 2, 3, 0])
        self.weight = np.array([1.0, 1, 0.5, 1, 0])
        self.batch = Batch(*map(torch.from_numpy, (self.x, self.y, self.weight)))
        self.fixed, self.bias = rng.normal(size=(CLASSES, DIM)), rng.normal(size=CLASSES)
        self.anchors = {"fixed": torch.from_numpy(self.fixed), "bias": torch.from_numpy(self.bias)}
        self.visit = visit_with([5.0, 0, 1, 30], anchors=self.anchors)
        self.w = {name: value.numpy() for name, value in self.network.state_dict().items()}
        self.h = self.x @ self.w["encoder.weight"].T + self.w["encoder.bias"]

    def head(self, name):
        return self.h @ self.w[f"head.{name}.weight"].T + self.w[f"head.{name}.bias"]

    def ce(self, logits):
        each = np.log(np.exp(logits).sum(1)) - logits[range(5), self.y]
        return (self.weight * each).sum() / self.weight.sum()

    def scores(self, memory):
        with torch.no_grad():
            x = torch.from_numpy(self.x)
            return self.method.scores(self.network, x, self.anchors, memory)


def test_three_heads_learn_from_the_same_batch(visit_with):
    scene = Scene(visit_with)
    terms = scene.method.loss(scene.network, scene.batch, scene.visit)
    fixed = scene.ce(scene.h @ scene.fixed.T + scene.bias)
    assert terms["fixed"].item() == pytest.approx(fixed, abs=1e-10)
    for name in ("auxiliary", "personal"):
        assert terms[name].item() == pytest.approx(scene.ce(scene.head(name)), abs=1e-10)


@pytest.mark.parametrize("term", ["fixed", "auxiliary", "personal"])
def test_the_fixed_head_trains_the_encoder_and_each_other_head_itself(visit_with, term):
    scene = Scene(visit_with)
    scene.method.loss(scene.network, scene.batch, scene.visit)[term].backward()
    touched = {
        name.rpartition(".")[0]
        for name, p in scene.network.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert touched == {"encoder" if term == "fixed" else f"head.{term}"}


def test_the_server_gives_all_rows_of_the_auxiliary_head_the_same_length(visit_with):
    scene = Scene(visit_with)
    w = scene.w["head.auxiliary.weight"]
    rows = 1.7 * w / np.linalg.norm(w, axis=1, keepdims=True)
    expected = scene.h @ rows.T + scene.w["head.auxiliary.bias"]
    np.testing.assert_allclose(scene.scores({}), expected, atol=1e-10)


def test_for_balanced_data_the_server_may_predict_by_the_fixed_head(visit_with):
    scene = Scene(visit_with, inference="fixed")
    np.testing.assert_allclose(scene.scores({}), scene.h @ scene.fixed.T + scene.bias, atol=1e-10)


def test_a_client_scales_the_auxiliary_rows_by_its_own_and_adds_its_head(visit_with):
    scene = Scene(visit_with)
    lengths = np.linalg.norm(scene.w["head.personal.weight"], axis=1)
    rows = scene.w["head.auxiliary.weight"] * lengths[:, None]
    expected = scene.h @ rows.T + scene.w["head.auxiliary.bias"] + scene.head("personal")
    kept = scene.method.remember(scene.network, scene.visit)
    np.testing.assert_allclose(scene.scores(kept), expected, atol=1e-10)


def test_the_fixed_head_is_sparse_of_one_length_and_nearly_a_simplex():
    torch.manual_seed(0)
    s = sparse_simplex(CLASSES, 40, FedLoGeOptions(steps=100)).double().numpy()
    lengths = np.linalg.norm(s, axis=1)
    assert np.mean(s == 0) == pytest.approx(0.6)
    np.testing.assert_allclose(lengths, 1.0, atol=0.2)
    cosines = (s @ s.T / lengths / lengths[:, None])[~np.eye(CLASSES, dtype=bool)]
    assert cosines.max() == pytest.approx(-1 / 3, abs=0.05)


def test_personal_heads_stay_and_the_fixed_head_is_never_moved(tiny):
    federation = tiny("fedloge")
    before = federation.state["anchors/fixed"].clone()
    records = federation.run()
    assert torch.equal(federation.state["anchors/fixed"], before)
    assert not any("personal" in name for name in federation.state)
    assert all(record.server is not None for record in records)
