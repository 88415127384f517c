"""CAFedCL's options, and what follows from them alone.

Where the paper leaves a point open, an option chooses between readings of it, and ``literal`` is
its exact wording. docs/cafedcl.md explains every reading and why the default was chosen.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cafedcl.config.options import option
from cafedcl.core.contract import Averages, ClassMeans, Client, Enrolment, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.functional import confidence as conf
from cafedcl.functional import contrast
from cafedcl.models.base import Network

WEIGHTS = ("confidence", "uniform", "counts", "inverse-variance")
"""The kinds of client weights."""
READ_LITERALLY = ("geo", "geo_reduction", "align", "align_norm", "prototype", "missing", "unseen")
"""The options that the preset ``literal`` sets to the paper's wording."""
PRESETS: dict[str, dict[str, Any]] = {
    "literal": {**dict.fromkeys(READ_LITERALLY, "literal"), "epsilon": 1e-8},
    "no-geo": {"lam_geo": 0.0},
    "no-confagg-uniform": {"weights": "uniform"},
    "no-confagg-counts": {"weights": "counts"},
    "inverse-variance": {"weights": "inverse-variance"},
    "fixed-anchors": {"anchors": "fixed"},
    "best": {
        "anchors": "fixed",
        "tau": 0.3,
        "lam_align": 0.0,
        "lam_geo": 0.0,
        "inference": "fitted",
        "rare_gain": 0.3,
        "lam_distill": 3.0,
        "weights": "uniform",
        "own_classes": "held",
        "train.optimizer": "sgd",
        "train.lr": 0.025,
        "train.momentum": 0.5,
        "server.optimizer": "momentum",
        "server.momentum": 0.8,
    },
}
"""``best`` scored highest on held-out images of two data sets, among as many candidates as every
other method had (experiments/tuning_long_tail.toml, then tuning_long_tail_2.toml). ``lam_distill``
was then chosen among four values (tuning_distill.toml), and the class prior and weights by
confidence were dropped (tuning_prior.toml). ``own_classes`` was not compared there.
"""


@dataclass(frozen=True)
class CAFedCLOptions:
    """The paper's values where it gives them: λ_geo = 1, γ = 0.6, β = 0.5, w = (0.4, 0.3, 0.3)."""

    tau: float = option(0.1, "temperature τ of the image-to-prototype loss", above=0.0)
    lam_align: float = option(0.1, "weight λ_align of the alignment loss", low=0.0)
    align_warmup: int = option(10, "rounds over which λ_align rises linearly from 0", low=0)
    lam_geo: float = option(1.0, "weight λ_geo of the geometry loss", low=0.0)
    margin: float = option(1.0, "margin m of the geometry loss", low=0.0, high=2.0)
    gamma: float = option(0.6, "weight γ of a synthetic image in n_eff", low=0.0, high=1.0)
    beta: float = option(0.5, "β in conf_val = exp(−β u)", low=0.0)
    w: tuple[float, float, float] = option(
        (0.4, 0.3, 0.3), "weights of conf_data, conf_gen, conf_val", low=0.0
    )
    clip: tuple[float, float] = option(
        (0.05, 1.0), "minimum and maximum of a class's confidence", low=0.0, high=1.0
    )
    geo: str = option(
        "batch",
        "which prototypes the geometry loss pushes apart",
        choices=("batch", "cross", "server", "literal"),
        advanced=True,
    )
    geo_reduction: str = option(
        "mean",
        "geometry loss over pairs: their mean or their sum (literal)",
        choices=("mean", "literal"),
        advanced=True,
    )
    prior: str = option(
        "margin",
        "what the geometry loss asks for: a margin (Eq. 15), orthogonal prototypes or a simplex",
        choices=("margin", "orthogonal", "simplex"),
        advanced=True,
    )
    features: str = option(
        "literal",
        "which features to use: after the last ReLU (literal), before it, or projected",
        choices=("literal", "pre-relu", "projected"),
        advanced=True,
    )
    align: str = option(
        "batch",
        "which prototype the alignment loss uses: of the batch, each sample, or of all batches of "
        "the epoch so far (literal)",
        choices=("batch", "sample", "literal"),
        advanced=True,
    )
    align_norm: str = option(
        "unit",
        "alignment loss of the unit local prototype or the raw one (literal)",
        choices=("unit", "literal"),
        advanced=True,
    )
    prototype: str = option(
        "mean-of-units",
        "client prototype: mean of unit features, unit mean, or mean of raw features (literal)",
        choices=("mean-of-units", "unit", "literal"),
        advanced=True,
    )
    prototype_of: str = option(
        "real",
        "whether synthetic images, weighted by γ, count in prototypes",
        choices=("real", "augmented"),
        advanced=True,
    )
    calibrate: float = option(
        0.0,
        "κ: add κ·log of the class's share in the client's data to logits, in training and in "
        "the client's own model",
        low=0.0,
    )
    smoothing: float = option(
        0.0,
        "images added to every class before the share of `calibrate` is computed (additive "
        "smoothing); 0: classes that the client lacks are left out",
        low=0.0,
    )
    own_classes: str = option(
        "all",
        "what a client's own model may predict: all classes, or only those that the client has "
        "training images of (held)",
        choices=("all", "held"),
        advanced=True,
    )
    lam_distill: float = option(
        0.0,
        "weight of feature distillation, which keeps the direction of each image's feature close "
        "to that under the received model",
        low=0.0,
    )
    classifier: str = option(
        "literal",
        "no classifier head (literal), or one trained with cross-entropy",
        choices=("literal", "ce"),
        advanced=True,
    )
    inference: str = option(
        "anchors",
        "how to classify: by global anchors, the client's own prototypes, or the head; fitted: the "
        "server's model by a linear classifier that is fitted in closed form to all clients' "
        "features, with the same weight for every class, and clients by the anchors",
        choices=("anchors", "own", "head", "fitted"),
        advanced=True,
    )
    ridge: float = option(
        0.003,
        "how much the anchors count in the fitted classifier; all images of a class count 1",
        above=0.0,
        advanced=True,
    )
    rare_gain: float = option(
        0.0,
        "exponent η of the fitted classifier's targets: an image of a class with n_c images is to "
        "score (n_min / n_c)^η, so rare classes score higher; 0: all score alike",
        low=0.0,
        high=1.0,
        advanced=True,
    )
    init: str = option(
        "orthonormal", "anchors before the first round", choices=("orthonormal", "simplex", "means")
    )
    anchors: str = option(
        "averaged",
        "whether anchors are averaged in every round or stay fixed",
        choices=("averaged", "fixed"),
    )
    momentum: float = option(
        0.0, "share of the old anchor kept in every update", low=0.0, high=1.0, advanced=True
    )
    data_scale: str = option(
        "max",
        "conf_data is n_eff divided by its maximum over clients, its sum over clients, the "
        "client's own total, or n_eff + half",
        choices=("max", "sum", "own", "saturating"),
        advanced=True,
    )
    half: float = option(
        10.0, "n_eff at which the saturating conf_data is 1/2", above=0.0, advanced=True
    )
    missing: str = option(
        "renormalise",
        "confidence of classes without synthetic images: renormalise the other weights, or "
        "conf_gen = 0 (literal)",
        choices=("renormalise", "literal"),
        advanced=True,
    )
    uncertainty: str = option(
        "entropy",
        "uncertainty u: entropy, negative log-likelihood, 1 − p_y (doubt), or error rate",
        choices=("entropy", "nll", "doubt", "error"),
        advanced=True,
    )
    judged: str = option(
        "trained",
        "which model to measure u with: after or before local training",
        choices=("trained", "received"),
        advanced=True,
    )
    unvalidated: float = option(
        1.0, "u of a class without validation images", low=0.0, advanced=True
    )
    absent: str = option(
        "mask",
        "classes a client lacks: do not send them, or send zeros (literal)",
        choices=("mask", "literal"),
        advanced=True,
    )
    unseen: str = option(
        "keep",
        "anchor of a class that no client reported: keep it, or set it to 0 (literal)",
        choices=("keep", "literal"),
        advanced=True,
    )
    epsilon: float = option(
        0.0,
        "ε in the denominators of Eqs. 10 and 12 (paper: a small constant)",
        low=0.0,
        advanced=True,
    )
    encoder_weight: str = option(
        "raw",
        "compute Conf_k from clipped confidences (raw) or from the weights α",
        choices=("raw", "alpha"),
        advanced=True,
    )
    conf_over: str = option(
        "literal",
        "average confidence over all classes (literal) or only those present",
        choices=("literal", "present"),
        advanced=True,
    )
    weights: str = option("confidence", "how the server weights clients", choices=WEIGHTS)

    def contradiction(self) -> str | None:
        """Return why the options contradict each other, or None."""
        if abs(sum(self.w) - 1) > 1e-6:
            return f"w = {list(self.w)}: its three numbers must sum to 1"
        if self.clip[0] > self.clip[1]:
            return f"clip = {list(self.clip)}: the first number must not be the larger one"
        if self.inference == "head" and self.classifier != "ce":
            return "inference = head: there is no head; set method.classifier = 'ce'"
        if self.inference == "head" and self.own_classes == "held":
            return "inference = head: its own models predict all classes; set own_classes = 'all'"
        if self.anchors == "fixed" and self.init == "means":
            return (
                "anchors = fixed, init = means: no class would ever have an anchor, so nothing "
                "would be trained; set method.init = 'orthonormal' or 'simplex'"
            )
        if self.lam_distill and self.features == "pre-relu":
            return (
                "lam_distill > 0: features = pre-relu has no distillation; set method.features = "
                "'literal' or 'projected'"
            )
        readings = (self.prototype, self.prototype_of)
        if self.weights == "inverse-variance" and readings != ("mean-of-units", "real"):
            return (
                "weights = inverse-variance: it reads the variance from the length of a mean of "
                "unit features of real images; set method.prototype = 'mean-of-units' and "
                "method.prototype_of = 'real'"
            )
        return None


def averages_of(options: CAFedCLOptions) -> Averages | None:
    """Return the means that make up the server's step; None if it does anything else."""
    if options.encoder_weight != "raw" or options.epsilon or options.inference == "fitted":
        return None
    bounded = options.weights in ("confidence", "uniform")
    most = 1.0 if bounded else float("inf")
    # Fixed anchors are not a mean of what clients send.
    averaged = options.anchors == "averaged"
    return Averages(most, ClassMeans(weights="confidence", most=most) if averaged else None)


def own_prior(options: CAFedCLOptions, counts: Tensor) -> Tensor | None:
    """Return the correction added to the logits of a client's own model, or None."""
    prior = contrast.log_prior(counts, options.calibrate, options.smoothing)
    if options.own_classes == "all":
        return prior
    return (torch.zeros_like(counts) if prior is None else prior).masked_fill(counts <= 0, -1e9)


def head_parts(options: CAFedCLOptions, classes: int, dim: int) -> nn.ModuleDict:
    """Return the projection and the classifier, if there are any."""
    # Both are made in any case, so that the random weights of one do not depend on the other.
    project = nn.Linear(dim, dim)
    classify = nn.Linear(dim, classes)
    parts = nn.ModuleDict()
    if options.features == "projected":
        parts["project"] = project
    if options.classifier == "ce":
        parts["classify"] = classify
    return parts


def received_features(options: CAFedCLOptions, model: Network, x: Tensor, visit: Visit) -> Tensors:
    """Return the unit features that distillation keeps images close to; nothing without it."""
    if not options.lam_distill:
        return {}
    parts = ("project",) if options.features == "projected" else ()
    return {"received": contrast.unit(model.frozen(visit.received, x, *parts))}


def class_trust(
    options: CAFedCLOptions, client: Client, signals: Tensors, logits: Tensor, y: Tensor, p: Tensor
) -> tuple[Tensor, Tensors]:
    """Return a client's confidence in its prototypes ``p`` (Eq. 9), and its parts as notes.

    ``logits`` and ``y`` are of its validation images, ``signals`` of its tail augmentation.
    """
    o = options
    made = signals.get("synthetic")
    quality = signals.get("quality")
    n_eff = conf.effective_counts(client.counts, made, o.gamma)
    u = conf.uncertainty(logits, y, len(p), o.uncertainty, o.unvalidated)
    census = client.census
    data = conf.data_confidence(n_eff, census.most, census.total, o.data_scale, o.half)
    val = conf.validation_confidence(u, o.beta)
    blend = conf.confidence(data, val, o.w, quality, made, o.missing).clamp(*o.clip)
    trust = conf.trust(o.weights, blend, n_eff, client.counts, p)
    notes = {
        "confidence": trust,
        "confidence_data": data,
        "confidence_val": val,
        "uncertainty": u,
    }
    if quality is not None:
        notes["confidence_gen"] = quality
    return trust, notes


def trust_range(options: CAFedCLOptions, enrolment: Enrolment) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest confidence that each client can have in each class."""
    o = options
    n_eff = conf.effective_counts(enrolment.counts, enrolment.synthetic, o.gamma)
    census = enrolment.census
    data = conf.largest_data_confidence(n_eff, census.most, census.total, o.data_scale, o.half)
    most = conf.largest_confidence(data, enrolment.synthetic > 0, o.w).clamp(*o.clip)
    return conf.trust_range(o.weights, most, n_eff, enrolment.counts)
