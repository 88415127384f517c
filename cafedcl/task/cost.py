"""What a network's forward pass costs."""

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.models.base import Network


@torch.no_grad()
def operations(network: Network, shape: Shape) -> float:
    """Return the floating-point operations of an image's forward pass.

    Only convolutions and linear layers are counted.
    """
    counted = [0.0]

    def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counted[0] += 2.0 * weight.numel() / len(weight) * output.numel()

    layers = [
        layer for layer in network.encoder.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))
    ]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = network.training
    network.eval().features(torch.zeros(1, *shape, device=next(network.parameters()).device))
    network.train(training)
    for hook in hooks:
        hook.remove()
    return counted[0]
