"""A linear classifier in closed form: clients send sums over their images, the server solves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cafedcl.core.contract import Client, Enrolment, Field, Up
from cafedcl.core.tensors import Tensors, prefixed

MOMENTS = ("gram", "targets")
"""What clients send: Σ w z·zᵀ, (dim, dim), and per class Σ w z, (classes, dim)."""
AT_A_TIME = 1024
"""Images that are summed at a time: rounding errors of one long sum would grow with its length."""
TRACE_TOLERANCE = 1e-4
EIGENVALUE_TOLERANCE = 5e-6
"""How far rounding may push moments beyond what is possible, relative to the weight of all images.
In a collapsed network, where all features are the same, it reaches 1.6e-6.
"""


def moments(z: Tensor, y: Tensor, weight: Tensor, target: Tensor | None = None) -> Tensors:
    """Return the moments of features.

    An image of class c has the weight ``weight[c]`` and the target score ``target[c]``, by default
    1. Images with the label −1 are left out.
    """
    parts = zip(z.split(AT_A_TIME), y.split(AT_A_TIME), strict=True)
    each = [_moments(features, labels, weight, target) for features, labels in parts]
    return {name: compensated_sum([part[name] for part in each]) for name in MOMENTS}


def _moments(z: Tensor, y: Tensor, weight: Tensor, target: Tensor | None) -> Tensors:
    member = (y[:, None] == torch.arange(len(weight), device=y.device)).to(z.dtype) * weight
    wanted = member if target is None else member * target
    return {"gram": (z * member.sum(1, keepdim=True)).T @ z, "targets": wanted.T @ z}


def compensated_sum(values: Sequence[Tensor]) -> Tensor:
    """Return a sum whose error does not grow with the number of terms (Kahan's algorithm)."""
    total = values[0]
    lost = torch.zeros_like(total)
    for value in values[1:]:
        added = value - lost
        fresh = total + added
        lost = (fresh - total) - added
        total = fresh
    return total


def told_weight(y: Tensor, told: Tensor) -> Tensor:
    """Return the weight per image with which the images of each class sum to the reported count.

    It is 1 for a client that reports its exact class counts as ``told``, and 0 for classes that it
    does not report. Otherwise sums over images would reveal what it does not report.
    """
    there = (y[:, None] == torch.arange(len(told), device=y.device)).to(told.dtype).sum(0)
    return told / there.clamp_min(1)


def balanced_moments(z: Tensor, y: Tensor, client: Client, gain: float) -> Tensors:
    """Return moments in which all images of a class, over all clients, weigh 1 together.

    With ``gain``, images of rare classes have higher target scores than those of frequent ones.
    """
    images = client.census.images.to(z)
    target = rare_targets(images, gain) if gain else None
    return moments(z, y, told_weight(y, client.counts.to(z)) / images.clamp_min(1), target)


def rare_targets(images: Tensor, gain: float) -> Tensor:
    """Return (n_min / n_c)^gain for the number of images n_c of each class.

    It is 1 for the rarest class that has images, and less for frequent ones.
    """
    rarest = torch.where(images > 0, images, torch.inf).amin()
    return (rarest / images.clamp_min(1)).clamp(max=1.0) ** gain


def moment_fields(classes: int, dim: int) -> dict[str, Field]:
    """Return the entries of a reply with moments."""
    return {
        "gram": Field((dim, dim), per_class=False, summed=True),
        "targets": Field((classes, dim), per_class=False, summed=True, by_class=True),
    }


def not_moments(sent: Tensors, weight: Tensor) -> str | None:
    """Return why tensors cannot be moments of unit features, or None.

    ``weight``, (classes,), is the largest total weight of the images of each class. An image adds
    w z·zᵀ to the Gram matrix G, whose trace is then w, and w t e_y·zᵀ with t ≤ 1 to the targets T.
    So the trace of G is at most the sum of all weights, and

        ⎡ G  Tᵀ      ⎤
        ⎣ T  diag(w) ⎦

    has no negative eigenvalue. So nobody can pull the classifier further than images that they
    enrolled could.
    """
    gram, targets = (sent[name].double().cpu() for name in MOMENTS)
    weight = weight.double().cpu()
    most = float(weight.sum())
    trace = float(gram.trace())
    if trace > most * (1 + TRACE_TOLERANCE):
        return f"'gram' has the trace {trace:g}; the images it enrolled with have at most {most:g}"
    if float((gram - gram.T).norm()) > EIGENVALUE_TOLERANCE * most:
        return "'gram' is not symmetric"
    block = torch.cat([torch.cat([gram, targets.T], 1), torch.cat([targets, weight.diag()], 1)])
    # A Cholesky factor exists if and only if all eigenvalues are positive.
    slack = EIGENVALUE_TOLERANCE * most + torch.finfo(torch.float64).tiny
    _, failed = torch.linalg.cholesky_ex(block + slack * torch.eye(len(block)).to(block))
    return "'gram' and 'targets' cannot be sums over images" if failed else None


def not_balanced_moments(up: Up, enrolment: Enrolment) -> str | None:
    """Return why a client's tensors cannot be balanced moments of its images, or None."""
    images = enrolment.census.images.clamp_min(1)
    return not_moments(up.tensors, enrolment.counts[up.client] / images)


def summed(ups: list[Up]) -> Tensors:
    """Return the sums of all clients' moments, in float64."""
    return {name: torch.stack([up.tensors[name] for up in ups]).double().sum(0) for name in MOMENTS}


def fitted(sums: Tensors, ridge: float, prior: Tensor | None = None) -> Tensor:
    """Return the W that minimises Σ w‖W z − e_y‖² + λ‖W − prior‖², (classes, dim).

    That is (Σ w e_y zᵀ + λ·prior)·(Σ w z zᵀ + λI)⁻¹. With very many images, λ is larger than
    asked: a malicious client may use up the tolerance for rounding, and must not make the matrix
    singular.
    """
    gram = sums["gram"]
    targets = sums["targets"]
    strength = (2 * EIGENVALUE_TOLERANCE * gram.trace()).clamp_min(ridge)
    if prior is not None:
        targets = targets + strength * prior.to(targets)
    matrix = gram + strength * torch.eye(len(gram)).to(gram)
    # If it is singular all the same, the result is not finite, and the server rejects the step.
    solved: Tensor = torch.linalg.solve_ex(matrix, targets.T)[0]
    return solved.T.float().contiguous()


def start_classifier(prior: Tensor) -> Tensors:
    """Return the state of a classifier that is fitted anew in every round: at first, its prior."""
    classes, dim = prior.shape
    return {
        "anchors/classifier": prior.clone(),
        "server/gram": torch.zeros(dim, dim, dtype=torch.float64),
        "server/targets": torch.zeros(classes, dim, dtype=torch.float64),
    }


def refitted(state: Tensors, ups: list[Up], share: float, ridge: float) -> Tensors:
    """Return the state of the classifier after a round with a ``share`` of all clients.

    Earlier sums fade at the rate at which all clients take part once: if all take part in every
    round, at once. The prior is the prototypes that the round began with.
    """
    faded = max(1 - share, 0.0)
    sums = {name: faded * state[f"server/{name}"] + new for name, new in summed(ups).items()}
    found = fitted(sums, ridge, state["anchors/prototypes"])
    return {"anchors/classifier": found, **prefixed("server/", sums)}
