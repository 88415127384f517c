"""Group normalisation, a shortcut's sum and a ReLU in one kernel, for compiled steps in 16 bits.

PyTorch's compiler makes several kernels, each of which reads all numbers again. In a ResNet with
group normalisation these take about a third of the time of all convolutions.
"""

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from cafedcl.core.sizes import power_of_two
from cafedcl.models.resnet import Norm

MOST_NUMBERS = 32_768
"""A group of channels of one image with more numbers does not fit in registers.

The largest group of a ResNet for images of 32×32 pixels has exactly this many.
"""
WARP = 32


class FusedNorm(Norm):
    """A normalisation and what follows it in one kernel, where a group fits in registers."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, *, relu: bool = False) -> Tensor:
        """Return the result."""
        pixels, group = _blocks(x, self.num_groups)
        if pixels * group > MOST_NUMBERS:
            return super().forward(x, shortcut, relu=relu)
        return fused_norm(  # type: ignore[no-any-return]
            x, shortcut, self.weight, self.bias, self.num_groups, self.eps, relu
        )[0]


def use_fused_norm(network: nn.Module) -> None:
    """Let a network's normalisations run in one kernel, where Triton is installed."""
    if not has_triton():
        return
    for module in network.modules():
        if type(module) is Norm:
            module.__class__ = FusedNorm


@cache
def has_triton() -> bool:
    """Return whether Triton is installed, which comes with PyTorch for CUDA."""
    return importlib.util.find_spec("triton") is not None


def compile_options() -> dict[str, Any]:
    """Return PyTorch's options for compiling a step with fused normalisations."""
    if not has_triton():
        return {}
    # PyTorch's compiler takes long to import.
    from cafedcl.engine.cuda.gradient_sums import SumsInNorms

    return {"post_grad_custom_pre_pass": SumsInNorms()}


@torch.library.custom_op("cafedcl::fused_norm", mutates_args=())
def fused_norm(
    x: Tensor,
    shortcut: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and every group's mean and inverse standard deviation."""
    from cafedcl.engine.cuda.norm_kernels import normalise

    x = _channels_last(x)
    y = torch.empty_like(x)
    means = x.new_empty((len(x), groups), dtype=torch.float32)
    inverse_stds = torch.empty_like(means)
    sizes = _sizes(x, groups)
    # Measured on an H200.
    numbers = sizes["PIXEL_BLOCK"] * sizes["GROUP_BLOCK"]
    warps = min(max(numbers // (32 * WARP), 4), 16)
    normalise[(len(x), groups)](
        x,
        x if shortcut is None else _channels_last(shortcut),
        weight,
        bias,
        y,
        means,
        inverse_stds,
        eps,
        **sizes,
        HAS_SHORTCUT=shortcut is not None,
        RELU=relu,
        num_warps=warps,
    )
    return y, means, inverse_stds


@torch.library.custom_op("cafedcl::fused_norm_gradient", mutates_args=())
def fused_norm_gradient(
    x: Tensor,
    y: Tensor | None,
    y_gradient: Tensor,
    other_gradient: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    means: Tensor,
    inverse_stds: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input, of the shortcut, and of scale and offset per image.

    The gradient of the result is ``y_gradient``, or its sum with ``other_gradient``.

    With a shortcut and a ReLU, ``y`` is the result. That of the shortcut is empty without them.
    """
    from cafedcl.engine.cuda.norm_kernels import differentiate

    x = _channels_last(x)
    groups = means.shape[1]
    x_gradient = torch.empty_like(x)
    shortcut_gradient = x.new_empty(0) if y is None else torch.empty_like(x)
    parameter_gradients = x.new_empty((len(x), 2, x.shape[1]), dtype=torch.float32)
    sizes = _sizes(x, groups)
    # Measured on an H200: the sums over an image's pixels are slow across many warps.
    warps = 8 if sizes["PIXEL_BLOCK"] * sizes["GROUP_BLOCK"] > 8192 else 2
    differentiate[(len(x), groups)](
        x,
        x if y is None else _channels_last(y),
        _channels_last(y_gradient),
        x if other_gradient is None else _channels_last(other_gradient),
        weight,
        bias,
        means,
        inverse_stds,
        x_gradient,
        shortcut_gradient,
        parameter_gradients,
        **sizes,
        HAS_OTHER=other_gradient is not None,
        HAS_SHORTCUT=y is not None,
        RELU=relu,
        num_warps=warps,
    )
    return x_gradient, shortcut_gradient, parameter_gradients


@fused_norm.register_fake
def _(
    x: Tensor, _shortcut: object, _weight: object, _bias: object, groups: int, *_rest: object
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = x.new_empty((len(x), groups), dtype=torch.float32)
    y = torch.empty_like(x, memory_format=torch.channels_last)
    return y, statistics, torch.empty_like(statistics)


@fused_norm_gradient.register_fake
def _(x: Tensor, y: Tensor | None, *_rest: object) -> tuple[Tensor, Tensor, Tensor]:
    x_gradient = torch.empty_like(x, memory_format=torch.channels_last)
    shortcut_gradient = x.new_empty(0) if y is None else torch.empty_like(x_gradient)
    parameter_gradients = x.new_empty((len(x), 2, x.shape[1]), dtype=torch.float32)
    return x_gradient, shortcut_gradient, parameter_gradients


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, shortcut, weight, bias, _, _, ctx.relu = inputs
    y, means, inverse_stds = output
    ctx.has_shortcut = shortcut is not None
    kept = y if ctx.has_shortcut and ctx.relu else None
    ctx.save_for_backward(x, kept, weight, bias, means, inverse_stds)


def _gradients(ctx: Any, y_gradient: Tensor, *_statistics: Tensor) -> tuple[Tensor | None, ...]:
    x, y, weight, bias, means, inverse_stds = ctx.saved_tensors
    x_gradient, behind_relu, parts = fused_norm_gradient(
        x, y, y_gradient, None, weight, bias, means, inverse_stds, ctx.relu
    )
    scale, offset = parts.sum(0).to(weight.dtype)
    shortcut = None
    if ctx.has_shortcut:
        shortcut = behind_relu if ctx.relu else y_gradient
    return x_gradient, shortcut, scale, offset, None, None, None


fused_norm.register_autograd(_gradients, setup_context=_keep)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _sizes(x: Tensor, groups: int) -> dict[str, int]:
    """Return the sizes that a kernel is compiled for."""
    pixels, group = _blocks(x, groups)
    return {
        "PIXELS": x.shape[2] * x.shape[3],
        "CHANNELS": x.shape[1],
        "GROUP": x.shape[1] // groups,
        "PIXEL_BLOCK": pixels,
        "GROUP_BLOCK": group,
    }


def _blocks(x: Tensor, groups: int) -> tuple[int, int]:
    """Return the pixels and channels of a group, each as the next power of two."""
    _, channels, height, width = x.shape
    return power_of_two(height * width), power_of_two(channels // groups)
