import numpy as np
import pytest
import torch
from torch import nn

import cafedcl
from cafedcl.core.contract import Batch
from cafedcl.methods.fedrod import FedRoD, FedRoDOptions
from cafedcl.models import Network

CLASSES, DIM = 4, 5
COUNTS = np.array([5.0, 0, 1, 30])


class Scene:
    """Features as inputs, in float64."""

    def __init__(self, visit_with, **options):
        torch.manual_seed(0)
        self.method = FedRoD(FedRoDOptions(**options), CLASSES, DIM)
        self.network = Network(nn.Linear(DIM, DIM), self.method.head()).double()
        rng = np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(5, DIM)), np.array([0, 3, 2, 3, 0])
        self.weight = np.array([1.0, 1, 0.5, 1, 0])
        self.batch = Batch(*map(torch.from_numpy, (self.x, self.y, self.weight)))
        self.visit = visit_with(COUNTS)

    def heads(self):
        """Return the outputs of the generic and of the personal head, by hand."""
        w = {name: value.numpy() for name, value in self.network.state_dict().items()}
        h = self.x @ w["encoder.weight"].T + w["encoder.bias"]
        names = ("generic", "personal")
        return [h @ w[f"head.{n}.weight"].T + w[f"head.{n}.bias"] for n in names]

    def ce(self, logits):
        each = np.log(np.exp(logits).sum(1)) - logits[range(5), self.y]
        return (self.weight * each).sum() / self.weight.sum()


@pytest.mark.parametrize(("absent", "lowest"), [("mask", 0.0), ("floor", 1.0)])
def test_the_generic_head_learns_by_balanced_softmax_and_the_personal_one_what_is_left(
    visit_with, absent, lowest
):
    scene = Scene(visit_with, absent=absent)
    generic, personal = scene.heads()
    terms = scene.method.loss(scene.network, scene.batch, scene.visit)
    with np.errstate(divide="ignore"):
        prior = np.log(np.maximum(COUNTS, lowest))
    assert terms["generic"].item() == pytest.approx(scene.ce(generic + prior), abs=1e-10)
    assert terms["personal"].item() == pytest.approx(scene.ce(generic + personal), abs=1e-10)


@pytest.mark.parametrize(
    ("term", "moved"),
    [("generic", {"encoder", "head.generic"}), ("personal", {"head.personal"})],
)
def test_each_term_moves_its_own_part_only(visit_with, term, moved):
    scene = Scene(visit_with)
    scene.method.loss(scene.network, scene.batch, scene.visit)[term].backward()
    touched = {
        name.rpartition(".")[0]
        for name, p in scene.network.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert touched == moved


def test_the_server_predicts_by_the_generic_head_and_a_client_by_the_sum(visit_with):
    scene = Scene(visit_with)
    generic, personal = scene.heads()
    x = torch.from_numpy(scene.x)
    with torch.no_grad():
        kept = scene.method.remember(scene.network, scene.visit)
        np.testing.assert_allclose(scene.method.scores(scene.network, x, {}, {}), generic)
        own = scene.method.scores(scene.network, x, {}, kept)
    np.testing.assert_allclose(own, generic + personal)


def test_personal_heads_stay_with_their_clients_and_the_server_has_a_score(tiny):
    federation = tiny("fedrod", federation__participation=1.0)
    records = federation.run()
    assert not any("personal" in name for name in federation.state)
    heads = [memory["model/head.personal.weight"] for memory in federation.memories.values()]
    assert len(heads) == 5
    assert not torch.equal(heads[0], heads[1])
    assert all(record.server is not None for record in records)
    assert records[-1].own["client_mean"] > records[-1].server["client_mean"]


def test_a_saved_run_predicts_by_the_server_and_by_each_client(tmp_path):
    settings = {"model.name": "mlp", "train.epochs": 1}
    flags = {"rounds": 2, "clients": 3, "engine": "reference", "device": "cpu"}
    run = cafedcl.run(method="fedrod", out=tmp_path / "run", settings=settings, **flags)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    loaded = cafedcl.load(run.path)
    assert len(loaded.predict(images).labels) == 4
    assert len(loaded.predict(images, client=1).labels) == 4
