"""What one client adds to the server's sums: one vector of bounded length, from its own reply."""

import math

import torch
from torch import Tensor

from cafedcl.config.privacy_options import PrivacyOptions
from cafedcl.core.contract import Averages, Up
from cafedcl.core.tensors import MODEL, Tensors
from cafedcl.federation.updates import Updates
from cafedcl.functional.private_sums import (
    BoundedPart,
    Contributions,
    capped_weights,
    clipped,
)
from cafedcl.methods import checked
from cafedcl.task.task import Task

DENOMINATORS = 0.1
"""The share of the budget spent on sums of weights, which are few and large numbers."""
QUANTILE = 0.05
"""The share of a model's budget spent on counting how many updates were clipped."""
CLIP = "server/privacy/clip"
"""The state's entry with the clipping length, where it is adapted."""


class ContributionBounds:
    """The maximum length of each part of a contribution, and its share of the budget."""

    def __init__(self, options: PrivacyOptions, task: Task) -> None:
        self.options = options
        self.task = task
        parameters = task.network.named_parameters()
        trained = {name for name, weight in parameters if weight.requires_grad}
        self.trained = [name for name in task.shared() if name in trained]
        """The weights that are averaged with noise; the others never change."""

    @property
    def averages(self) -> Averages:
        """The means that make up the method's server step."""
        assert self.task.method.averages is not None
        return self.task.method.averages

    def clip(self, state: Tensors) -> float:
        """Return the clipping length of updates in a state."""
        return float(state[CLIP]) if self.options.quantile else self.options.clip

    def cap(self, most: float) -> float:
        """Return the largest weight that counts: the method's own bound, or a number of images."""
        return float(self.options.samples) if math.isinf(most) else most

    def contributions(self, state: Tensors) -> Contributions:
        """Return the parts of a contribution, each with its bound and share."""
        rest = 1 - DENOMINATORS
        parts: dict[str, BoundedPart] = {}
        model_share = 1.0
        if self.averages.classes:
            model_share = 1 - self.options.share if self.trained else 0.0
        if self.trained:
            clip = self.clip(state)
            size = sum(state[MODEL + name].numel() for name in self.trained)
            within = QUANTILE if self.options.quantile else 0.0
            parts["update"] = BoundedPart(size, clip, model_share * (rest - within))
            parts["weight"] = BoundedPart(1, 1.0, model_share * DENOMINATORS)
            if within:
                parts["within"] = BoundedPart(1, 0.5, model_share * within)
        if self.averages.classes:
            classes = self.task.method.classes
            shape = self.task.fields[self.averages.classes.values].shape
            size = classes * torch.Size(shape).numel()
            class_share = 1 - model_share
            parts["values"] = BoundedPart(size, self.options.prototype, class_share * rest)
            parts["weights"] = BoundedPart(classes, 1.0, class_share * DENOMINATORS)
        return Contributions(parts)


class Contributor:
    """Makes the contributions of one round."""

    def __init__(self, bounds: ContributionBounds, state: Tensors) -> None:
        self.bounds = bounds
        self.layout = bounds.contributions(state)
        self.updates = Updates({MODEL + name: state[MODEL + name] for name in bounds.trained})

    def contribution(self, up: Up) -> Tensor:
        """Return what a reply adds to the sums, on the host. It depends only on the reply."""
        values: Tensors = {}
        if self.bounds.trained:
            clip = self.layout.parts["update"].longest
            update = self.updates.of(up).double().cpu()
            most = self.bounds.cap(self.bounds.averages.most)
            weight = capped_weights(checked.weigh(self.bounds.task.method, [up]).cpu(), most)
            values["update"] = weight * clipped(update, clip)
            values["weight"] = weight
            within = torch.linalg.vector_norm(update) <= clip
            values["within"] = within.double() - 0.5
        values |= self._class_sums(up)
        return self.layout.vector(values)

    def _class_sums(self, up: Up) -> Tensors:
        """Return a reply's weighted rows and their weights, by class; the weights have norm 1 at
        most.
        """
        means = self.bounds.averages.classes
        if means is None:
            return {}
        classes = up.tensors["classes"].cpu()
        rows = up.tensors[means.values].double().cpu().flatten(1)
        listed = torch.ones(len(classes), dtype=torch.float64)
        if means.weights:
            listed = capped_weights(up.tensors[means.weights].cpu(), self.bounds.cap(means.most))
        weights = torch.zeros(self.layout.parts["weights"].size, dtype=torch.float64)
        weights[classes] = listed
        weights = clipped(weights, 1.0)
        values = torch.zeros(len(weights), rows.shape[1], dtype=torch.float64)
        values[classes] = clipped(rows, self.bounds.options.prototype)
        return {"values": weights[:, None] * values, "weights": weights}
