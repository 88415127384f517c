"""A client's optimizer on one vector of weights: a few calls, whatever the number of layers."""

import math

import torch
from torch import Tensor

from cafedcl.config.train_options import TrainOptions
from cafedcl.core.tensors import Tensors

ADAM_EPSILON = 1e-8
"""Added to the root of the mean of squares, as PyTorch does."""


def start_state(weights: Tensor, options: TrainOptions) -> Tensors:
    """Return the optimizer's state before the first step."""
    if options.optimizer == "adamw":
        return {
            "mean": torch.zeros_like(weights),
            "square": torch.zeros_like(weights),
            # One number for every client, on the device: a replayed step cannot count on the host.
            "steps": weights.new_zeros(*weights.shape[:-1], 1),
        }
    return {"velocity": torch.zeros_like(weights)} if options.momentum else {}


def descend(
    weights: Tensor,
    gradient: Tensor,
    state: Tensors,
    rate: Tensor | float,
    options: TrainOptions,
    factors: Tensor | None = None,
) -> None:
    """Clip the gradient's norm, and move the weights by one step, all in place.

    The weights are a vector, or (clients, weights), where every row is clipped by itself.
    ``factors`` multiply the learning rate of each weight; None: they are 1.
    """
    if options.clip:
        norm = gradient.norm(dim=-1, keepdim=True)
        gradient.mul_((options.clip / (norm + 1e-6)).clamp_(max=1.0))
    if options.optimizer == "adamw":
        _adamw(weights, gradient, state, rate if factors is None else factors * rate, options)
    else:
        _sgd(weights, gradient, state.get("velocity"), rate, options, factors)


def _sgd(
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    rate: Tensor | float,
    options: TrainOptions,
    factors: Tensor | None,
) -> None:
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


def _adamw(
    weights: Tensor, gradient: Tensor, state: Tensors, rate: Tensor | float, options: TrainOptions
) -> None:
    steps = state["steps"].add_(1)
    mean = state["mean"].lerp_(gradient, 1 - options.beta1)
    square = state["square"].mul_(options.beta2)
    square.addcmul_(gradient, gradient, value=1 - options.beta2)
    # 1 − βᵗ, by expm1: near 1 the difference itself would lose digits.
    mean_seen = -torch.expm1(steps * _log(options.beta1))
    square_seen = -torch.expm1(steps * _log(options.beta2))
    root = (square / square_seen).sqrt_().add_(ADAM_EPSILON)
    if options.weight_decay:
        weights.mul_(1 - rate * options.weight_decay)
    weights.sub_(mean / (root * mean_seen) * rate)


def _log(beta: float) -> float:
    # β = 0 forgets everything: βᵗ is 0, as e^(−1000).
    return math.log(beta) if beta else -1000.0


class ClientOptimizer:
    """torch.optim.SGD or AdamW after clipping the gradient's norm, on flat weights.

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
        self.state = start_state(weights, options)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip, decay and move. The gradient must be overwritten before the next step."""
        descend(self.weights, self.gradient, self.state, rate, self.options, self.factors)
