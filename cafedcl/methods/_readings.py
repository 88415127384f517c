"""CAFedCL's options. Where the paper leaves a point open, the default is our reading and
``literal`` is its letter.

docs/cafedcl.md says what each reading is and why the default was chosen.
"""

from dataclasses import dataclass
from typing import Any

from cafedcl.config.options import option

WEIGHTS = {"confidence": 1.0, "uniform": 1.0, "counts": 1e9, "inverse-variance": 1e12}
"""What may weight a client, and the largest value it may take."""
LETTER = ("geo", "geo_reduction", "align", "align_norm", "prototype", "missing", "unseen")
PRESETS: dict[str, dict[str, Any]] = {
    "literal": {**dict.fromkeys(LETTER, "literal"), "epsilon": 1e-8},
    "no-geo": {"lam_geo": 0.0},
    "no-confagg-uniform": {"weights": "uniform"},
    "no-confagg-counts": {"weights": "counts"},
    "inverse-variance": {"weights": "inverse-variance"},
    "fixed-anchors": {"anchors": "fixed"},
    "best": {"anchors": "fixed"},
}
"""``best`` is what did best on held-out images among as many candidates as every rival had
(docs/reproduction.md).
"""


@dataclass(frozen=True)
class CAFedCLOptions:
    """The paper's values where it gives them: λ_geo = 1, γ = 0.6, β = 0.5, w = (0.4, 0.3, 0.3)."""

    tau: float = option(0.1, "temperature τ of I2P", above=0.0)
    lam_align: float = option(0.1, "weight λ_align", low=0.0)
    align_warmup: int = option(10, "rounds over which λ_align rises linearly to its value", low=0)
    lam_geo: float = option(1.0, "weight λ_geo", low=0.0)
    margin: float = option(1.0, "margin m of the geometry term", low=0.0, high=2.0)
    gamma: float = option(0.6, "discount γ of synthetic samples in n_eff", low=0.0, high=1.0)
    beta: float = option(0.5, "sharpness β of conf_val", low=0.0)
    w: tuple[float, float, float] = option(
        (0.4, 0.3, 0.3), "weights of conf_data, conf_gen, conf_val", low=0.0
    )
    clip: tuple[float, float] = option(
        (0.05, 1.0), "per-class clipping of confidence", low=0.0, high=1.0
    )
    geo: str = option(
        "batch", "whose prototypes L_geo parts", choices=("batch", "cross", "server", "literal")
    )
    geo_reduction: str = option(
        "mean", "L_geo over pairs: mean, or the paper's sum", choices=("mean", "literal")
    )
    prior: str = option(
        "margin", "what L_geo asks for", choices=("margin", "orthogonal", "simplex")
    )
    features: str = option(
        "literal", "after the last ReLU, or", choices=("literal", "pre-relu", "projected")
    )
    align: str = option("batch", "prototype in L_align", choices=("batch", "sample", "literal"))
    align_norm: str = option(
        "unit",
        "L_align of unit vectors, or of the raw local prototype",
        choices=("unit", "literal"),
    )
    prototype: str = option(
        "mean-of-units", "what p_kc is", choices=("mean-of-units", "unit", "literal")
    )
    prototype_of: str = option(
        "real",
        "p_kc is the mean of real images, or of synthetic ones too, by γ",
        choices=("real", "augmented"),
    )
    calibrate: float = option(
        0.0,
        "κ: logits of I2P, and of a client's own model, get κ·log of the class's share in its data",
        low=0.0,
    )
    classifier: str = option(
        "literal", "none, or a head with cross-entropy", choices=("literal", "ce")
    )
    inference: str = option(
        "anchors", "what an image is compared with", choices=("anchors", "own", "head")
    )
    init: str = option(
        "orthonormal", "anchors of round 0", choices=("orthonormal", "simplex", "means")
    )
    anchors: str = option(
        "averaged", "anchors averaged every round, or as they began", choices=("averaged", "fixed")
    )
    momentum: float = option(0.0, "share of the old anchor kept at every update", low=0.0, high=1.0)
    data_scale: str = option(
        "max", "conf_data is n_eff over", choices=("max", "sum", "own", "saturating")
    )
    half: float = option(10.0, "n_eff at which the saturating conf_data is 1/2", above=0.0)
    missing: str = option(
        "renormalise", "conf_gen where nothing was generated", choices=("renormalise", "literal")
    )
    uncertainty: str = option("entropy", "what u is", choices=("entropy", "nll", "doubt", "error"))
    judged: str = option(
        "trained", "the model that u is measured with", choices=("trained", "received")
    )
    unvalidated: float = option(1.0, "u of a class without validation samples", low=0.0)
    absent: str = option(
        "mask", "classes a client lacks: not sent, or zeros", choices=("mask", "literal")
    )
    unseen: str = option(
        "keep", "anchor of a class nobody reported: kept, or zero", choices=("keep", "literal")
    )
    epsilon: float = option(
        0.0, "ε in the denominators of Eqs. 10 and 12 (paper: a small constant)", low=0.0
    )
    encoder_weight: str = option(
        "raw", "Conf_k from clipped confidences, or from α", choices=("raw", "alpha")
    )
    conf_over: str = option(
        "literal", "Conf_k is over all C classes, or", choices=("literal", "present")
    )
    weights: str = option("confidence", "what weights a client", choices=tuple(WEIGHTS))
