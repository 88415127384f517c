import math

import numpy as np
import pytest
import torch
from torch import nn

from cafedcl.core.contract import Batch
from cafedcl.methods import checked
from cafedcl.methods.fedvls import FedVLS, FedVLSOptions
from cafedcl.models import Network

CLASSES = 4


class Scene:
    """Logits are W·x with W the identity now, and another matrix in the received model."""

    def __init__(self, visit_with, counts):
        rng = np.random.default_rng(0)
        self.x, self.y = 2 * rng.normal(size=(6, CLASSES)), np.array([0, 3, 3, 0, 3, 1])
        self.weight = np.array([1.0, 1, 1, 1, 1, 0])
        self.counts = np.array(counts, dtype=float)
        self.network = Network(nn.Identity(), nn.Linear(CLASSES, CLASSES)).double()
        with torch.no_grad():
            self.network.head.weight.copy_(torch.eye(CLASSES))
            self.network.head.bias.zero_()
        self.old = rng.normal(size=(CLASSES, CLASSES))
        received = {"head.weight": torch.from_numpy(self.old), "head.bias": torch.zeros(4).double()}
        self.visit = visit_with(self.counts, received=received)

    def terms(self, **options):
        method = FedVLS(FedVLSOptions(**options), CLASSES, CLASSES)
        self.leaf = torch.from_numpy(self.x.copy()).requires_grad_()
        batch = Batch(self.leaf, torch.from_numpy(self.y), torch.from_numpy(self.weight))
        return checked.loss(method, self.network, batch, self.visit)


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


def test_the_three_terms_are_those_of_the_authors_code(visit_with):
    scene = Scene(visit_with, [4, 0, 0, 12])
    share = scene.counts / 16
    prior = np.log(share + 1e-9)
    real = range(5)  # the last image is padding
    ce = np.mean([-np.log(softmax(scene.x[i] + prior)[scene.y[i]]) for i in real])
    vacant = []
    for i in real:
        teacher, student = (
            softmax(each[[1, 2]]) for each in (scene.x[i] @ scene.old.T, scene.x[i])
        )
        vacant.append((teacher * np.log(teacher / student)).sum())
    suppress = 0.0
    for c in range(CLASSES):
        exponents = [
            0.0 if scene.y[i] == c else scene.x[i, c] - prior[c] - math.log(CLASSES) for i in real
        ]
        suppress += share[c] * math.log(np.mean(np.exp(exponents)))
    terms = scene.terms(lam=0.3, suppress=0.02)
    assert terms["ce"].item() == pytest.approx(ce, abs=1e-9)
    assert terms["vacant"].item() == pytest.approx(0.3 * np.mean(vacant), abs=1e-9)
    assert terms["suppress"].item() == pytest.approx(0.02 * suppress, abs=1e-9)


def test_the_distillation_moves_absent_classes_only(visit_with):
    scene = Scene(visit_with, [4, 0, 0, 12])
    scene.terms()["vacant"].backward()
    assert scene.leaf.grad[:, [0, 3]].abs().max() == 0
    assert scene.leaf.grad[:5, [1, 2]].abs().min() > 1e-6


def test_a_client_with_all_classes_has_nothing_to_distil(visit_with):
    scene = Scene(visit_with, [4, 1, 2, 12])
    vacant = scene.terms()["vacant"]
    vacant.backward()
    assert vacant.item() == 0
    assert not scene.leaf.grad.any()


def test_defaults_are_those_of_the_readme():
    assert FedVLSOptions() == FedVLSOptions(lam=0.1, suppress=0.005)
