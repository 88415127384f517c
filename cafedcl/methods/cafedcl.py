"""CAFedCL: Confidence-Aware Federated Contrastive Learning (arXiv 2603.03007), without the generator.

Where the paper leaves a point open, the option's default is our reading and ``literal`` is the paper's letter;
docs/cafedcl.md has the reasons. Equations are found by name in contrast.py, confidence.py and aggregation.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cafedcl import confidence as conf
from cafedcl import contrast
from cafedcl.aggregation import holders, mean_prototypes, no_prototypes, normalise, spread
from cafedcl.contract import Batch, Client, Field, Up, Visit
from cafedcl.contrast import unit
from cafedcl.errors import CafedclError
from cafedcl.method import Method
from cafedcl.models.base import Network
from cafedcl.options import option
from cafedcl.pack import Tensors


WEIGHTS = {"confidence": 1.0, "uniform": 1.0, "counts": 1e9, "inverse-variance": 1e12}
LETTER = "geo geo_reduction align align_norm prototype missing unseen".split()
PRESETS = {
    "literal": {**dict.fromkeys(LETTER, "literal"), "epsilon": 1e-8},
    "no-geo": {"lam_geo": 0.0},
    "uniform": {"weights": "uniform"},
    "counts": {"weights": "counts"},
    "inverse-variance": {"weights": "inverse-variance"},
    "fixed-anchors": {"anchors": "fixed"},
}


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
    w: tuple[float, float, float] = option((0.4, 0.3, 0.3), "weights of conf_data, conf_gen, conf_val", low=0.0)
    clip: tuple[float, float] = option((0.05, 1.0), "per-class clipping of confidence", low=0.0, high=1.0)
    geo: str = option("batch", "whose prototypes L_geo parts", choices=("batch", "cross", "server", "literal"))
    geo_reduction: str = option("mean", "L_geo over pairs: mean, or the paper's sum", choices=("mean", "literal"))
    features: str = option("literal", "after the last ReLU, or", choices=("literal", "pre-relu", "projected"))
    align: str = option("batch", "prototype in L_align", choices=("batch", "sample", "literal"))
    align_norm: str = option("unit", "L_align of unit prototypes, or of the raw local one", choices=("unit", "literal"))
    prototype: str = option("mean-of-units", "what p_kc is", choices=("mean-of-units", "unit", "literal"))
    classifier: str = option("literal", "none, or a head with cross-entropy", choices=("literal", "ce"))
    inference: str = option("anchors", "what an image is compared with", choices=("anchors", "own", "head"))
    init: str = option("orthonormal", "anchors of round 0", choices=("orthonormal", "simplex", "means"))
    anchors: str = option("averaged", "anchors averaged every round, or as they began", choices=("averaged", "fixed"))
    momentum: float = option(0.0, "share of the old anchor kept at every update", low=0.0, high=1.0)
    data_scale: str = option("max", "conf_data is n_eff over", choices=("max", "sum", "own", "saturating"))
    half: float = option(10.0, "n_eff at which the saturating conf_data is 1/2", above=0.0)
    missing: str = option("renormalise", "conf_gen where nothing was generated", choices=("renormalise", "literal"))
    uncertainty: str = option("entropy", "what u is", choices=("entropy", "nll", "doubt", "error"))
    judged: str = option("trained", "the model that u is measured with", choices=("trained", "received"))
    unvalidated: float = option(1.0, "u of a class without validation samples", low=0.0)
    absent: str = option("mask", "classes a client lacks: not sent, or zeros", choices=("mask", "literal"))
    unseen: str = option("keep", "anchor of a class nobody reported: kept, or zero", choices=("keep", "literal"))
    epsilon: float = option(0.0, "ε in the denominators of Eqs. 10 and 12 (paper: a small constant)", low=0.0)
    encoder_weight: str = option("raw", "Conf_k from clipped confidences, or from α", choices=("raw", "alpha"))
    conf_over: str = option("literal", "Conf_k is over all C classes, or", choices=("literal", "present"))
    weights: str = option("confidence", "what weights a client", choices=tuple(WEIGHTS))


class CAFedCL(Method):
    """L = I2P + λ_align·Align + λ_geo·Geo (Eq. 13); prototypes and encoders are averaged by confidence (Eqs. 9–12)."""

    name, year = "cafedcl", 2026
    paper = "Wu et al., Breaking the Prototype Bias Loop: Confidence-Aware Federated Contrastive Learning"
    travels, predicts = "model, prototypes, confidences", "nearest prototype (cosine)"
    Options, presets = CAFedCLOptions, PRESETS

    def __init__(self, options: CAFedCLOptions, classes: int, dim: int) -> None:
        super().__init__(options, classes, dim)
        if options.init == "simplex" and dim < classes:
            raise CafedclError(f"method.init = simplex: {classes} classes need as many features; the model gives {dim}")
        if options.inference == "head" and options.classifier != "ce":
            raise CafedclError("method.inference = head: there is no head; set method.classifier = 'ce'")

    def head(self) -> nn.Module:
        parts = {"project": nn.Linear(self.dim, self.dim), "classify": nn.Linear(self.dim, self.classes)}
        wanted = {"project": self.options.features == "projected", "classify": self.options.classifier == "ce"}
        return nn.ModuleDict({name: part for name, part in parts.items() if wanted[name]})

    def start(self) -> Tensors:
        table, o = no_prototypes(self.classes, self.dim), self.options
        if o.init != "means":
            make = contrast.simplex if o.init == "simplex" else contrast.orthonormal
            known = torch.ones_like(table["anchors/known"])
            table = {"anchors/prototypes": make(self.classes, self.dim), "anchors/known": known}
        return {**table, "server/confidence": torch.zeros(self.classes)}

    def embed(self, model: Network, x: Tensor) -> Tensor:
        h = model.pre_relu(x) if self.options.features == "pre-relu" else super().embed(model, x)
        return model.head["project"](h) if self.options.features == "projected" else h

    def scratch(self, client: Client) -> Tensors:
        return {"sums": client.counts.new_zeros(self.classes, self.dim), "counts": torch.zeros_like(client.counts)}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        o, raw = self.options, self.embed(model, batch.x)
        p, known, z = visit.anchors["prototypes"], self.known(visit), unit(raw)
        sums, counts = contrast.class_sums(z, batch.y, batch.weight, self.classes)
        q, present = unit(sums), counts > 0
        terms = {"i2p": contrast.i2p_loss(z, batch.y, batch.weight, p, known, o.tau)}
        if o.lam_align:
            warm = ((visit.round + 1) / max(o.align_warmup, 1)).clamp(max=1.0)
            terms["align"] = o.lam_align * warm * self.align(z, raw, q, present, batch, visit)
        if o.lam_geo and o.geo != "server":
            terms["geo"] = o.lam_geo * contrast.geometry(o.geo, q, present, p, known, o.margin, o.geo_reduction)
        if o.classifier == "ce":
            terms["ce"] = contrast.cross_entropy(model.head["classify"](raw), batch.y, batch.weight)
        return terms

    def align(self, z: Tensor, raw: Tensor, q: Tensor, present: Tensor, batch: Batch, visit: Visit) -> Tensor:
        """Return Eq. 14 in the chosen reading."""
        o, p, known = self.options, visit.anchors["prototypes"], self.known(visit)
        if o.align == "sample":
            weight = batch.weight if known is None else batch.weight * known[batch.y]
            return contrast.sample_align_loss(z, batch.y, weight, p)
        points = raw if o.align_norm == "literal" else z
        if o.align == "literal":
            q, counts = contrast.running_means(points, batch.y, batch.weight, visit.scratch)
            present = counts > 0
        elif o.align_norm == "literal":
            sums, counts = contrast.class_sums(points, batch.y, batch.weight, self.classes)
            q = sums / counts.clamp_min(1e-12)[:, None]
        return contrast.align_loss(q if o.align_norm == "literal" else unit(q), p, present if known is None else present & known)

    def known(self, visit: Visit) -> Tensor | None:
        """Return which anchors there are; None where all are there from the start, which spares the masks."""
        return visit.anchors["known"] if self.options.init == "means" else None

    def prototypes(self, visit: Visit) -> Tensor:
        """Return Eq. 1 on the client's real training data."""
        z, y = visit.embed("train", "trained")
        means, _ = contrast.class_means(z if self.options.prototype == "literal" else unit(z), y, self.classes)
        return unit(means) if self.options.prototype == "unit" else means

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        o, client, p = self.options, visit.client, self.prototypes(visit)
        made, quality = visit.signals.get("synthetic"), visit.signals.get("quality")
        n_eff = conf.effective_counts(client.counts, made, o.gamma)
        z, y = visit.embed("validation", o.judged)
        logits = contrast.cosine_logits(unit(z), visit.anchors["prototypes"], visit.anchors["known"], o.tau)
        u = conf.uncertainty(logits, y, self.classes, o.uncertainty, o.unvalidated)
        data = conf.data_confidence(n_eff, client.most, client.total, o.data_scale, o.half)
        val = conf.validation_confidence(u, o.beta)
        trust = {
            "confidence": lambda: conf.confidence(data, val, o.w, quality, made, o.missing).clamp(*o.clip),
            "uniform": lambda: torch.ones_like(data),
            "counts": lambda: n_eff,
            "inverse-variance": lambda: conf.inverse_variance(n_eff, p),
        }[o.weights]()
        sent = client.holds if o.absent == "mask" else torch.arange(self.classes, device=p.device)
        notes = {"confidence": trust, "confidence_data": data, "confidence_val": val, "uncertainty": u}
        notes |= {} if quality is None else {"confidence_gen": quality}
        return {"classes": sent, "prototypes": p[sent], "confidence": trust[sent]}, notes

    def fields(self) -> dict[str, Field]:
        bound = float("inf") if self.options.prototype == "literal" else 1.0 + 1e-4
        trust = Field((), 0.0, WEIGHTS[self.options.weights])
        return {"prototypes": Field((self.dim,), -bound, bound), "confidence": trust}

    def remember(self, model: Network, visit: Visit) -> Tensors:
        return {"prototypes": self.prototypes(visit)} if self.options.inference == "own" else {}

    def weigh(self, ups: list[Up]) -> Tensor:
        o, held = self.options, holders(ups, self.classes)
        trust = spread(ups, "confidence", self.classes).double().cpu()
        trust = normalise(trust) * held if o.encoder_weight == "alpha" else trust
        over = "present" if o.weights == "uniform" else o.conf_over
        return normalise(conf.client_confidence(trust, held, over), o.epsilon)

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        o, old = self.options, state["anchors/prototypes"]
        trust = spread(ups, "confidence", self.classes).double()
        alpha, seen = normalise(trust, o.epsilon), trust.sum(0) > 0
        kept = torch.where(seen, (alpha * trust).sum(0).float(), state["server/confidence"])
        if o.anchors == "fixed":
            return {"server/confidence": kept}
        fresh = unit(mean_prototypes(spread(ups, "prototypes", self.classes), alpha, seen, old))
        fresh = unit((1 - o.momentum) * fresh + o.momentum * old) if o.momentum else fresh
        fresh = contrast.separate(fresh, seen, o.margin) if o.geo == "server" and o.lam_geo else fresh
        table = torch.where(seen[:, None], fresh, old if o.unseen == "keep" else torch.zeros_like(old))
        known = {"anchors/known": state["anchors/known"] | seen}
        return {"anchors/prototypes": table, "server/confidence": kept, **known}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        z, p, known = self.embed(model, x), anchors["prototypes"], anchors["known"]
        if self.options.inference == "head":
            return model.head["classify"](z)
        if "prototypes" in memory:
            own = memory["prototypes"].square().sum(1) > 0
            p, known = torch.where(own[:, None], unit(memory["prototypes"]), p), known | own
        return contrast.cosine_logits(unit(z), p, known, self.options.tau)
