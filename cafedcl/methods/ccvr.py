"""CCVR (Luo et al., NeurIPS 2021): the head is calibrated on features drawn from Gaussians."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cafedcl.config.options import option
from cafedcl.core.contract import Claims, Enrolment, Field, Up, Visit
from cafedcl.core.tensors import FEATURES, Tensors, under
from cafedcl.methods._server_head import ServerHead, trained_head
from cafedcl.models.base import Network


@dataclass(frozen=True)
class CCVROptions:
    """The number of features is FL-bench's; the settings for training the head are ours."""

    features: int = option(200, "features drawn per class", low=1, high=100_000)
    epochs: int = option(10, "epochs of the head on the features", low=1, high=100_000)
    lr: float = option(0.01, "learning rate of the head", above=0.0)
    batch: int = option(32, "batch size of the head", low=1, high=65_536)


class CCVR(ServerHead):
    """FedAvg, whose server is scored with its head re-trained on N(μ_c, Σ_c) of every class.

    Clients send mean and covariance of the received encoder's features per class, from which those
    of all images follow exactly. The authors calibrate once, after the last round; here it is done
    in every round, on the encoder that the round began with, and for scoring only.
    """

    name = "ccvr"
    year = 2021
    Options = CCVROptions
    paper = (
        "Luo et al., No Fear of Heterogeneity: "
        "Classifier Calibration for Federated Learning with Non-IID Data"
    )
    sends = "model, means and covariances of features per class"
    predicts = "calibrated head; clients use their own"
    reveals = "covariances, whose rank tells how many images a class has"

    def start(self, model: Network) -> Tensors:
        features = torch.zeros(self.classes, self.options.features, self.dim)
        known = torch.zeros(self.classes, dtype=torch.bool)
        return {**super().start(model), FEATURES: features, "server/known": known}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        h, y = visit.embed("train", "received")
        held = visit.client.holds
        means = h.new_zeros(len(held), self.dim)
        covariances = h.new_zeros(len(held), self.dim, self.dim)
        for row, c in enumerate(held):
            part = h[y == c]
            means[row] = part.mean(0)
            away = part - means[row]
            covariances[row] = away.T @ away / max(len(part) - 1, 1)
        counts = visit.client.counts[held]
        sent = {"means": means, "covariances": covariances, "counts": counts}
        return {"classes": held, **sent}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        square = Field((self.dim, self.dim))
        return {"means": Field((self.dim,)), "covariances": square, "counts": Field(())}

    def claims(self, enrolment: Enrolment) -> Claims:
        return {"counts": (enrolment.counts, enrolment.counts)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        o = self.options
        features = state[FEATURES].clone()
        known = state["server/known"].clone()
        for c in sorted({int(label) for up in ups for label in up.tensors["classes"]}):
            mean, covariance = pooled(ups, c)
            noise = torch.randn(o.features, self.dim).to(features)
            features[c] = mean.to(features) + noise @ factor_of(covariance).T.to(features)
            known[c] = True
        head = under("model/head.", state)
        head = {name: value.to(features.device) for name, value in head.items()}
        trained = trained_head(head, features, o.epochs, o.batch, o.lr, known)
        return {FEATURES: features, "server/known": known, **trained}


def factor_of(covariance: Tensor) -> Tensor:
    """Return L with L·Lᵀ = covariance, nearly: fewer images than dimensions leave it singular."""
    ridge = 1e-4 * covariance.diagonal().mean() + 1e-8
    eye = torch.eye(len(covariance)).to(covariance)
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge * eye)
    if failed:
        # Only a malicious client sends something else; its variances alone do no harm.
        return covariance.diagonal().clamp_min(0).sqrt().diag()
    return factor  # type: ignore[no-any-return]


def pooled(ups: list[Up], label: int) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of a class over all clients' images, in float64."""
    rows = [
        (up.tensors, int((up.tensors["classes"] == label).nonzero()))
        for up in ups
        if (up.tensors["classes"] == label).any()
    ]
    n = torch.stack([sent["counts"][row] for sent, row in rows]).double()
    means = torch.stack([sent["means"][row] for sent, row in rows]).double()
    mean = n @ means / n.sum()
    away = means - mean
    scatter = away.T @ (n[:, None] * away)
    for count, (sent, row) in zip(n, rows, strict=True):
        scatter += (count - 1) * sent["covariances"][row].double()
    return mean, scatter / (n.sum() - 1).clamp_min(1)
