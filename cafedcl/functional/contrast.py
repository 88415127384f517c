"""The client objective of CAFedCL, one small pure function per equation of the paper.

Embeddings ``z`` and anchors ``p`` are unit vectors unless a docstring says otherwise. Every mean is
weighted, so padding with weight 0 changes nothing; nothing branches on tensor values, so a loss can
be captured once and replayed.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.core.contract import Batch
from cafedcl.core.tensors import Tensors


def unit(x: Tensor) -> Tensor:
    """Return x / ‖x‖."""
    return F.normalize(x, dim=-1)


MASKED = -1e8
"""A class with a lower logit cannot be predicted: it has no anchor, or the client lacks it."""


def weighted_average(values: Tensor, weight: Tensor) -> Tensor:
    """Return Σ w v / Σ w, and zero for a batch of padding."""
    return (values * weight).sum() / weight.sum().clamp_min(1e-12)


def cross_entropy(
    logits: Tensor,
    y: Tensor,
    weight: Tensor,
    smoothing: float = 0.0,
    among: Tensor | None = None,
) -> Tensor:
    """Return the weighted mean of −log softmax(logits)_y.

    With label smoothing, the share ``smoothing`` of the target is spread evenly over the classes of
    the mask ``among``, which are all by default; classes that are masked by a very low logit get
    none of it. PyTorch's kernel is faster only where its gradient is compiled together with the
    operations around it.
    """
    if smoothing:
        log_p = F.log_softmax(logits, 1)
        possible = logits > MASKED
        if among is not None:
            possible = possible & among
        spread = (log_p * possible).sum(1) / possible.sum(1)
        hit = log_p.gather(1, y[:, None])[:, 0]
        return weighted_average(-(1 - smoothing) * hit - smoothing * spread, weight)
    if torch.compiler.is_compiling():
        return weighted_average(F.cross_entropy(logits, y, reduction="none"), weight)
    return weighted_average(-F.log_softmax(logits, 1).gather(1, y[:, None])[:, 0], weight)


def class_sums(z: Tensor, y: Tensor, weight: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return Σ z and Σ 1 per class: numerator and denominator of Eq. 1 (eq:local_proto).

    ``z`` need not be unit vectors. A label that is not a class, such as −1, is not counted.
    """
    member = (y[:, None] == torch.arange(classes, device=y.device)).to(z.dtype) * weight[:, None]
    return member.T @ z, member.sum(0)


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return Eq. 1 (eq:local_proto): the mean of z per class, zero without any, and the counts.

    ``z`` need not be unit vectors.
    """
    sums, counts = class_sums(z, y, z.new_ones(len(z)), classes)
    return sums / counts.clamp_min(1)[:, None], counts


def local_prototypes(
    reading: str,
    real: tuple[Tensor, Tensor],
    made: tuple[Tensor, Tensor] | None,
    gamma: float,
    classes: int,
) -> Tensor:
    """Return Eq. 1 (eq:local_proto) from a client's embeddings and labels.

    They are means of unit vectors; of raw embeddings if ``reading`` is ``literal``; and normalised
    again if it is ``unit``. Each synthetic embedding in ``made`` counts γ: the mean is
    (Σ z + γ Σ z̃)/(n + γ m), for which Lemma 1 holds.
    """
    parts = [(real, 1.0), *([(made, gamma)] if made else [])]
    z = torch.cat([z for (z, _), _ in parts])
    y = torch.cat([y for (_, y), _ in parts])
    weight = torch.cat([z.new_full((len(y),), share) for (_, y), share in parts])
    sums, counts = class_sums(z if reading == "literal" else unit(z), y, weight, classes)
    means = sums / counts.clamp_min(1)[:, None]
    return unit(means) if reading == "unit" else means


def class_scatter(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the unbiased variance E‖z − μ_c‖² per class; NaN where there are fewer than two.

    ``z`` need not be unit vectors.
    """
    both, counts = class_means(torch.cat([z, z.square().sum(1, keepdim=True)], 1), y, classes)
    means = both[:, :-1]
    squares = both[:, -1]
    spread = counts / (counts - 1) * (squares - means.square().sum(1)).clamp_min(0)
    return torch.where(counts > 1, spread, torch.full_like(spread, torch.nan))


def cosine_logits(z: Tensor, p: Tensor, known: Tensor | None, tau: float) -> Tensor:
    """Return sim(z_i, p_{g,c})/τ; classes without an anchor cannot be predicted.

    ``known`` says which classes have one; None means all.
    """
    logits = z @ (p.T / tau)
    return logits if known is None else logits.masked_fill(~known, -1e9)


def i2p_loss(
    z: Tensor,
    batch: Batch,
    p: Tensor,
    known: Tensor | None,
    tau: float,
    prior: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return Eq. 4 (eq:i2p_loss), L_I2P: cross-entropy of the cosine similarities to anchors / τ.

    Images whose class has no anchor contribute nothing. ``prior`` is added to all logits, and
    ``smoothing`` is the share of label smoothing.
    """
    logits = cosine_logits(z, p, known, tau)
    if prior is not None:
        logits = logits + prior
    weight = batch.weight
    if known is not None:
        weight = weight * known[batch.y]
    return cross_entropy(logits, batch.y, weight, smoothing)


def distillation(z: Tensor, received: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of 1 − ⟨z, z_received⟩ over images, for features of length 1.

    Local training moves features towards the anchors of the client's own classes. This loss keeps
    them where the received model puts them, and so keeps its knowledge of classes that the client
    lacks.
    """
    return weighted_average(1 - (z * received).sum(1), weight)


def shares(counts: Tensor) -> Tensor:
    """Return n_{k,c}/n_k; all 0 for a client without images."""
    return counts / counts.sum().clamp_min(1)


def log_shares(counts: Tensor) -> Tensor:
    """Return log(n_{k,c}/n_k), and a number far below every logit for a class that is absent."""
    return shares(counts).clamp_min(1e-12).log().masked_fill(counts <= 0, -1e9)


def log_prior(counts: Tensor, strength: float, smoothing: float = 0.0) -> Tensor | None:
    """Return κ·log(n_{k,c}/n_k), which is added to logits to calibrate them to a client's labels.

    ``smoothing`` images are added to every class first (additive smoothing). Without it, a class
    that the client lacks cannot be predicted. With κ = 1 it is the balanced softmax: the
    model learns as if every class had equally many images. With κ = 0 it is None.
    """
    if not strength:
        return None
    smoothed = counts + smoothing
    return (strength * log_shares(smoothed)).masked_fill(smoothed <= 0, -1e9)


def align_loss(local: Tensor, p: Tensor, present: Tensor) -> Tensor:
    """Return Eq. 14 (eq:align_loss), L_align = Σ_c 1[c present] ‖p_{k,c} − p_{g,c}‖².

    With unit prototypes on both sides that is Σ (2 − 2cos). As printed, the loss compares the raw
    local prototype with the normalised broadcast one, which crushes the features' norms to 1.
    """
    return ((local - p).square().sum(1) * present).sum()


def sample_align_loss(z: Tensor, y: Tensor, weight: Tensor, p: Tensor) -> Tensor:
    """Return L_align per sample, as FedProto's code has it: Σ_c mean_{i in c} ‖z_i − p_{g,c}‖².

    It is the batch-mean form plus the within-class variance, so it also shrinks classes.
    """
    distance = (z - p[y]).square().sum(1, keepdim=True)
    sums, counts = class_sums(distance, y, weight, len(p))
    return (sums[:, 0] / counts.clamp_min(1e-12)).sum()


def align(
    reading: str,
    norm: str,
    raw: Tensor,
    q: Tensor,
    present: Tensor,
    batch: Batch,
    p: Tensor,
    known: Tensor | None,
    scratch: Tensors,
) -> Tensor:
    """Return L_align in one of its readings.

    ``raw`` are the embeddings of the batch, and ``q`` its unit prototypes. ``reading`` says what is
    aligned: the batch's prototypes (``batch``), every embedding (``sample``), or prototypes over
    all that the epoch has seen (``literal``). ``norm`` is ``unit``, or ``literal`` for raw local
    prototypes, as printed.
    """
    if (reading, norm) == ("batch", "unit"):
        return align_loss(q, p, present if known is None else present & known)
    points = raw if norm == "literal" else unit(raw)
    weight = batch.weight if known is None else batch.weight * known[batch.y]
    if reading == "sample":
        return sample_align_loss(points, batch.y, weight, p)
    if reading == "batch":
        scratch = start_sums(p.new_zeros(len(p)), p.shape[1])
    local, counts = running_means(points, batch.y, weight, scratch)
    return align_loss(local if norm == "literal" else unit(local), p, counts > 0)


def start_sums(counts: Tensor, dim: int) -> Tensors:
    """Return the scratch tensors of running sums per class."""
    return {"sums": counts.new_zeros(len(counts), dim), "counts": torch.zeros_like(counts)}


def running_means(z: Tensor, y: Tensor, weight: Tensor, scratch: Tensors) -> tuple[Tensor, Tensor]:
    """Return this epoch's class means so far and their counts; only this batch has a gradient.

    The means stand in for the p_{k,c} of Eq. 14 as printed, which is over the client's whole data.
    ``z`` need not be unit vectors.
    """
    sums, counts = class_sums(z, y, weight, len(scratch["counts"]))
    sums = sums + scratch["sums"]
    counts = counts + scratch["counts"]
    scratch["sums"].copy_(sums.detach())
    scratch["counts"].copy_(counts)
    return sums / counts.clamp_min(1e-12)[:, None], counts


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return ‖a_i − b_j‖ for all pairs, whose gradient is 0 where the two are equal.

    PyTorch's kernel does not store all differences. When compiled, neither does the plain formula.
    """
    if not torch.compiler.is_compiling():
        return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    square = (a[:, None] - b).square().sum(-1)
    same = square == 0
    return square.masked_fill(same, 1).sqrt().masked_fill(same, 0)


def geometry_loss(
    a: Tensor, b: Tensor, pairs: Tensor, margin: float, reduction: str, prior: str = "margin"
) -> Tensor:
    """Return Eq. 15 (eq:geo_loss), L_geo: max(0, m − ‖a_c − b_c'‖) over ordered pairs c ≠ c'.

    The paper sums over all C(C−1) pairs of broadcast prototypes (a = b = p_g), which are constants
    for a client; the mean does not grow with the number of classes. Other priors, as the paper
    allows: ``orthogonal`` penalises cos² and ``simplex`` (cos + 1/(C−1))², whose minimum is an
    equiangular tight frame.
    """
    if prior == "margin":
        penalty = F.relu(margin - distances(a, b))
    else:
        ideal = -1 / max(len(a) - 1, 1) if prior == "simplex" else 0.0
        penalty = (a @ b.T - ideal).square()
    total = (penalty * pairs).sum()
    if reduction == "mean":
        return total / pairs.sum().clamp_min(1)
    return total


def geometry(
    reading: str,
    q: Tensor,
    present: Tensor,
    p: Tensor,
    known: Tensor | None,
    margin: float,
    reduction: str = "mean",
    prior: str = "margin",
) -> Tensor:
    """Return L_geo in one of its readings, for the batch's unit prototypes ``q``.

    ``literal``: all pairs of broadcast prototypes, a constant without gradient. ``batch``: the
    batch's prototypes replace those of the ``present`` classes; every pair has at least one of
    them. ``cross``: the batch's prototypes against the broadcast ones.
    """
    anchored = torch.ones_like(present) if known is None else known
    if reading == "literal":
        pairs = off_diagonal(anchored[:, None] & anchored)
        return geometry_loss(p, p, pairs, margin, reduction, prior)
    if reading == "cross":
        pairs = off_diagonal(present[:, None] & anchored)
        return geometry_loss(q, p, pairs, margin, reduction, prior)
    mixed = torch.where(present[:, None], q, p)
    pairs = present[:, None] | present
    if known is not None:
        pairs &= (present | known)[:, None] & (present | known)
    return geometry_loss(mixed, mixed, off_diagonal(pairs), margin, reduction, prior)


def separate(
    prototypes: Tensor,
    known: Tensor,
    margin: float,
    prior: str = "margin",
    steps: int = 10,
    rate: float | Tensor = 0.1,
) -> Tensor:
    """Return prototypes moved apart by gradient descent on L_geo, normalised after every step.

    ``rate`` is the step for two classes. The gradient of the sum over pairs grows with the number
    of classes, so the step shrinks with it.
    """
    pairs = off_diagonal(known[:, None] & known)
    rate = rate * 2 / known.sum().clamp_min(2)
    for _ in range(steps):
        moved = prototypes.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(
            geometry_loss(moved, moved, pairs, margin, "literal", prior), moved
        )
        prototypes = torch.where(known[:, None], unit(prototypes - rate * gradient), prototypes)
    return prototypes


def off_diagonal(mask: Tensor) -> Tensor:
    """Return a square mask without its diagonal."""
    return mask & ~torch.eye(len(mask), dtype=torch.bool, device=mask.device)


def orthonormal(classes: int, dim: int) -> Tensor:
    """Return random orthonormal anchors; random unit vectors if classes outnumber dimensions."""
    frame = torch.randn(dim, max(classes, dim), dtype=torch.float64)
    if classes > dim:
        return unit(frame.T).float()
    q, r = torch.linalg.qr(frame)
    # Libraries differ in the signs of Q; this makes it the same everywhere.
    unique: Tensor = q * r.diagonal().sign()
    return unique[:, :classes].T.contiguous().float()


def simplex(classes: int, dim: int) -> Tensor:
    """Return a simplex equiangular tight frame: unit vectors at distance √(2C/(C−1)).

    There must be at least as many dimensions as classes.
    """
    frame = orthonormal(classes, dim).double()
    return ((frame - frame.mean(0)) * math.sqrt(classes / max(classes - 1, 1))).float()
