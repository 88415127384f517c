"""What an encoder's forward pass costs."""

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Shape


@torch.no_grad()
def operations(encoder: nn.Module, shape: Shape) -> float:
    """Return the floating-point operations of an image's forward pass through an encoder.

    Only convolutions and linear layers are counted.
    """
    counted = [0.0]

    def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counted[0] += 2.0 * weight.numel() / len(weight) * output.numel()

    layers = [layer for layer in encoder.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = encoder.training
    device = next((weight.device for weight in encoder.parameters()), None)
    encoder.eval()(torch.zeros(1, *shape, device=device))
    encoder.train(training)
    for hook in hooks:
        hook.remove()
    return counted[0]
