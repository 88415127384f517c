"""CAFedCL: Confidence-Aware Federated Contrastive Learning (arXiv 2603.03007).

Its generator is `--augment gan`. Where the paper leaves a point open, the option's default is our
reading and ``literal`` is the paper's exact wording; docs/cafedcl.md has the reasons. Equations are
found by name in functional/contrast.py, confidence.py and aggregation.py.
"""

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Averages, Batch, Claims, Client, Enrolment, Field, Up, Visit
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Tensors
from cafedcl.functional import confidence as conf
from cafedcl.functional import contrast, ridge
from cafedcl.functional.aggregation import Entries, mean_prototypes, no_prototypes, normalise
from cafedcl.functional.contrast import unit
from cafedcl.methods import _readings as readings
from cafedcl.methods._readings import PRESETS, CAFedCLOptions
from cafedcl.methods.base import Method, own_mark
from cafedcl.models.base import Network

FRAMES = {"simplex": contrast.simplex, "orthonormal": contrast.orthonormal}
"""Anchors before the first round, by `method.init`."""


class CAFedCL(Method):
    """L = I2P + λ_align·Align + λ_geo·Geo (Eq. 13), and perhaps λ_distill·Distill, our addition.

    The server averages prototypes and encoders by confidence (Eqs. 9 to 12).
    """

    name = "cafedcl"
    year = 2026
    paper = (
        "Wu et al., Breaking the Prototype Bias Loop: "
        "Confidence-Aware Federated Contrastive Learning"
    )
    sends = "model, prototypes, confidences"
    predicts = "nearest prototype (cosine)"
    Options = CAFedCLOptions
    presets = PRESETS
    replayed = True
    averages: Averages | None = Averages()
    separable = True

    def __init__(self, options: CAFedCLOptions, classes: int, dim: int, clients: int = 1) -> None:
        super().__init__(options, classes, dim, clients)
        self.epsilon = options.epsilon
        self.separable &= options.encoder_weight == "raw"
        self.fits = self.server_trains = options.inference == "fitted"
        self.averages = self.averages and readings.averages_of(options)
        by_others = options.data_scale in ("max", "sum")
        self.uses_census = self.fits or (options.weights == "confidence" and by_others)
        self.sends_absent = options.absent == "literal"
        self.knows_prior = options.calibrate > 0 and options.inference != "head"
        self.uses_levels = options.features == "pre-relu"
        if options.init == "simplex" and dim < classes:
            raise CafedclError(
                f"method.init = simplex: {classes} classes need at least {classes} features; "
                f"the model gives {dim}"
            )

    def head(self) -> nn.Module:
        return readings.head_parts(self.options, self.classes, self.dim)

    def start(self, model: Network) -> Tensors:
        table = no_prototypes(self.classes, self.dim)
        if self.options.init != "means":
            make = FRAMES[self.options.init]
            table["anchors/prototypes"] = make(self.classes, self.dim)
            table["anchors/known"] = torch.ones(self.classes, dtype=torch.bool)
        table["server/confidence"] = torch.zeros(self.classes)
        if self.fits:
            table |= ridge.start_classifier(table["anchors/prototypes"])
        return table

    def embed(self, model: Network, x: Tensor) -> Tensor:
        if self.options.features == "pre-relu":
            levels, _ = model.levels(x)
            return levels[-1]
        features = super().embed(model, x)
        if self.options.features == "projected":
            return model.part("project")(features)  # type: ignore[no-any-return]
        return features

    def effective_counts(self, counts: Tensor, synthetic: Tensor) -> Tensor:
        return conf.effective_counts(counts, synthetic, self.options.gamma)

    def scratch(self, client: Client) -> Tensors:
        return contrast.start_sums(client.counts, self.dim)

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        return readings.received_features(self.options, model, x, visit)

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        o = self.options
        raw = self.embed(model, batch.x)
        p = visit.anchors["prototypes"]
        known = self.known(visit)
        z = unit(raw)
        sums, counts = contrast.class_sums(z, batch.y, batch.weight, self.classes)
        q = unit(sums)
        present = counts > 0
        prior = contrast.log_prior(visit.client.counts, o.calibrate, o.smoothing)
        terms = {"i2p": contrast.i2p_loss(z, batch, p, known, o.tau, prior, self.label_smoothing)}
        if o.lam_align:
            warm = ((visit.round + 1) / max(o.align_warmup, 1)).clamp(max=1.0)
            align = contrast.align(
                o.align, o.align_norm, raw, q, present, batch, p, known, visit.scratch
            )
            terms["align"] = o.lam_align * warm * align
        if o.lam_geo and o.geo != "server":
            geo = contrast.geometry(o.geo, q, present, p, known, o.margin, o.geo_reduction, o.prior)
            terms["geo"] = o.lam_geo * geo
        if o.lam_distill:
            before = batch.constants["received"]
            terms["distill"] = o.lam_distill * contrast.distillation(z, before, batch.weight)
        if o.classifier == "ce":
            terms["ce"] = self.cross_entropy(model.part("classify")(raw), batch)
        return terms

    def known(self, visit: Visit) -> Tensor | None:
        """Return which classes have an anchor; None if all have one, which saves the masks."""
        return visit.anchors["known"] if self.options.init == "means" else None

    def prototypes(self, visit: Visit) -> Tensor:
        """Return Eq. 1 on the client's training data."""
        o = self.options
        real = visit.embed("train", "trained")
        made = visit.embed("synthetic", "trained") if o.prototype_of == "augmented" else None
        return contrast.local_prototypes(o.prototype, real, made, o.gamma, self.classes)

    def centre(self, z: Tensor, y: Tensor) -> Tensor:
        return unit(super().centre(unit(z), y))

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        o = self.options
        client = visit.client
        p = self.prototypes(visit)
        z, y = visit.embed("validation", o.judged)
        anchors = visit.anchors["prototypes"]
        logits = contrast.cosine_logits(unit(z), anchors, self.known(visit), o.tau)
        trust, notes = readings.class_trust(o, client, visit.signals, logits, y, p)
        sent = client.holds if o.absent == "mask" else torch.arange(self.classes, device=p.device)
        z, y = visit.embed("train", "trained")
        notes["scatter"] = contrast.class_scatter(unit(z), y, self.classes)
        summary = {"classes": sent, "prototypes": p[sent], "confidence": trust[sent]}
        if self.fits:
            z, y = visit.embed("train", "received")
            summary |= ridge.balanced_moments(unit(z), y, client, o.rare_gain)
        return summary, notes

    def fields(self, model: Network) -> dict[str, Field]:
        norm = float("inf") if self.options.prototype == "literal" else 1.0 + 1e-4
        fields = {"prototypes": Field((self.dim,), norm=norm), "confidence": Field((), low=0.0)}
        if self.fits:
            fields |= ridge.moment_fields(self.classes, self.dim)
        return fields

    def claims(self, enrolment: Enrolment) -> Claims:
        return {"confidence": readings.trust_range(self.options, enrolment)}

    def contradiction(self, up: Up, enrolment: Enrolment) -> str | None:
        return ridge.not_balanced_moments(up, enrolment) if self.fits else None

    def remember(self, model: Network, visit: Visit) -> Tensors:
        o = self.options
        kept = own_mark(visit.client) if self.fits else {}
        if o.inference == "own":
            kept["prototypes"] = self.prototypes(visit)
        prior = readings.own_prior(o, visit.client.counts)
        if prior is not None:
            kept["prior"] = prior
        return kept

    def weigh(self, ups: list[Up]) -> Tensor:
        o = self.options
        sent = Entries(ups, self.classes)
        held = sent.held.cpu()
        trust = sent["confidence"].double().cpu()
        if o.encoder_weight == "alpha":
            trust = normalise(trust) * held
        over = "present" if o.weights == "uniform" else o.conf_over
        return conf.client_confidence(trust, held, over)

    def alphas(self, sent: Entries) -> Tensor:
        return normalise(sent["confidence"].double(), self.epsilon)

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        o = self.options
        old = state["anchors/prototypes"]
        sent = Entries(ups, self.classes)
        trust = sent["confidence"].double()
        alpha = self.alphas(sent)
        seen = trust.sum(0) > 0
        kept = torch.where(seen, (alpha * trust).sum(0).float(), state["server/confidence"])
        share = len(ups) / self.clients
        classifier = ridge.refitted(state, ups, share, o.ridge) if self.fits else {}
        if o.anchors == "fixed":
            return {"server/confidence": kept, **classifier}
        fresh = unit(mean_prototypes(sent["prototypes"], alpha, seen, old))
        if o.momentum:
            fresh = unit((1 - o.momentum) * fresh + o.momentum * old)
        if o.geo == "server" and o.lam_geo:
            fresh = contrast.separate(fresh, seen, o.margin, o.prior)
        unseen = old if o.unseen == "keep" else torch.zeros_like(old)
        table = torch.where(seen[:, None], fresh, unseen)
        known = state["anchors/known"] | seen
        anchors = {"anchors/prototypes": table, "anchors/known": known}
        return {**anchors, "server/confidence": kept, **classifier}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        z = self.embed(model, x)
        if self.fits and not memory:
            return contrast.cosine_logits(unit(z), anchors["classifier"], None, self.options.tau)
        if self.options.inference == "head":
            return model.part("classify")(z)  # type: ignore[no-any-return]
        p = anchors["prototypes"]
        known = anchors["known"]
        if "prototypes" in memory:
            own = memory["prototypes"].square().sum(1) > 0
            p = torch.where(own[:, None], unit(memory["prototypes"]), p)
            known = known | own
        logits = contrast.cosine_logits(unit(z), p, known, self.options.tau)
        if "prior" in memory:
            logits = logits + memory["prior"]
        return logits

    def similarity(self, scores: Tensor) -> Tensor:
        if self.options.inference == "head":
            return super().similarity(scores)
        return scores * self.options.tau  # type: ignore[no-any-return]
