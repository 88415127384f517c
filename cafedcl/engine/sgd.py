"""SGD on one flat tensor: clipping and the update are a handful of calls, whatever the number of layers."""

import torch
from torch import Tensor, nn

from cafedcl.config import TrainOptions


def flatten(network: nn.Module) -> Tensor:
    """Lay a network's weights, and their gradients, in one tensor each; the network keeps views of them."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    flat = torch.cat([p.detach().flatten() for p in parameters])
    flat.grad = torch.zeros_like(flat)
    for parameter, values, gradients in zip(parameters, flat.split(sizes), flat.grad.split(sizes), strict=True):
        parameter.data, parameter.grad = values.view_as(parameter), gradients.view_as(parameter)
    return flat


class SGD:
    """torch.optim.SGD after clipping the gradient's norm, on flat weights; a test holds it against torch's own."""

    def __init__(self, weights: Tensor, options: TrainOptions) -> None:
        assert weights.grad is not None
        self.weights, self.gradient, self.options = weights, weights.grad, options
        self.velocity: Tensor | None = None
        self.gradient.zero_()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip, decay, move, and zero the gradient for the next step."""
        options, gradient = self.options, self.gradient
        if options.clip:
            gradient.mul_((options.clip / (gradient.norm() + 1e-6)).clamp_(max=1.0))
        if options.weight_decay:
            gradient.add_(self.weights, alpha=options.weight_decay)
        moved = gradient
        if options.momentum:
            self.velocity = (
                gradient.clone() if self.velocity is None else self.velocity.mul_(options.momentum).add_(gradient)
            )
            moved = self.velocity
        self.weights.add_(moved, alpha=-rate)
        gradient.zero_()
