"""SGD on one vector of weights: a few calls clip and update, whatever the number of layers."""

import torch
from torch import Tensor

from cafedcl.config.sections import TrainOptions


def descend(
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    rate: Tensor | float,
    options: TrainOptions,
    factors: Tensor | None = None,
) -> None:
    """Clip the gradient's norm, decay, and move the weights, all in place.

    The weights are a vector, or (clients, weights), where every row is clipped by itself.
    ``factors`` multiply the learning rate of each weight; None: they are 1.
    """
    if options.clip:
        norm = gradient.norm(dim=-1, keepdim=True)
        gradient.mul_((options.clip / (norm + 1e-6)).clamp_(max=1.0))
    if options.weight_decay:
        gradient.add_(weights, alpha=options.weight_decay)
    if velocity is not None:
        gradient = velocity.mul_(options.momentum).add_(gradient)
    if factors is not None:
        # Not in place: the gradient may be the velocity.
        gradient = gradient * factors
    if isinstance(rate, Tensor):
        weights.addcmul_(gradient, rate, value=-1)
    else:
        weights.add_(gradient, alpha=-rate)


class SGD:
    """torch.optim.SGD after clipping the gradient's norm, on flat weights and their flat gradient.

    A test compares it with torch's own.
    """

    def __init__(
        self,
        weights: Tensor,
        gradient: Tensor,
        options: TrainOptions,
        factors: Tensor | None = None,
    ) -> None:
        self.weights = weights
        self.factors = factors
        self.gradient = gradient
        self.options = options
        self.velocity = torch.zeros_like(weights) if options.momentum else None
        self.gradient.zero_()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip, decay, move, and zero the gradient for the next step."""
        descend(self.weights, self.gradient, self.velocity, rate, self.options, self.factors)
        self.gradient.zero_()
