"""Layers of several clients at once, each with its own weights, as matrix products on a CPU.

PyTorch's own way to run a convolution with one set of weights per client is a grouped convolution,
which a CPU does group by group with most of the time spent between groups. Here the patches under
the filter are laid side by side, channels last, and one batched product does the rest; that is
faster for a single small client too.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IntPair = tuple[int, int]


def use_grouped_convolutions(network: nn.Module) -> None:
    """Let a network's convolutions and linear layers run by these kernels when vmap gives every
    client its weights.
    """
    for module in network.modules():
        if type(module) is nn.Linear:
            module.forward = _linear(module)  # type: ignore[assignment]
        elif type(module) is nn.Conv2d and is_plain(module):
            module.forward = _convolution(module)  # type: ignore[assignment]


def is_plain(layer: nn.Conv2d) -> bool:
    """Return whether a convolution is a plain product of its filters with the patches of images."""
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and not isinstance(layer.padding, str)


def _linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if x.dim() != 2:
            return F.linear(x, layer.weight, layer.bias)
        return PerClient.apply(Linear.apply, F.linear, x, layer.weight, layer.bias)  # type: ignore[no-any-return,no-untyped-call]

    return forward


def _convolution(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    stride = layer.stride
    padding = layer.padding
    assert not isinstance(padding, str)

    def together(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return Convolution.apply(x, weight, bias, stride, padding)  # type: ignore[no-any-return,no-untyped-call]

    def alone(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding)

    def forward(x: Tensor) -> Tensor:
        return PerClient.apply(together, alone, x, layer.weight, layer.bias)  # type: ignore[no-any-return,no-untyped-call]

    return forward


class PerClient(torch.autograd.Function):
    """A layer under vmap: ``together`` where clients have weights of their own, else ``alone`` on
    all their images.
    """

    @staticmethod
    def forward(
        _together: Any, alone: Any, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Run the layer outside of vmap."""
        return alone(x, weight, bias)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: weights that are trained are always those of several clients."""

    @staticmethod
    def vmap(
        info: Any,
        dims: Any,
        together: Any,
        alone: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, int]:
        """Run the layer with everything stacked along the first axis."""
        _, _, *at = dims
        x = x.expand(info.batch_size, *x.shape) if at[0] is None else x.movedim(at[0], 0)
        if at[1] is None and (bias is None or at[2] is None):
            merged = alone(x.flatten(0, 1), weight, bias)
            return merged.view(*x.shape[:2], *merged.shape[1:]), 0
        weight = (
            weight.expand(info.batch_size, *weight.shape)
            if at[1] is None
            else weight.movedim(at[1], 0)
        )
        if bias is not None:
            bias = (
                bias.expand(info.batch_size, *bias.shape)
                if at[2] is None
                else bias.movedim(at[2], 0)
            )
        return together(x, weight, bias), 0


class Linear(torch.autograd.Function):
    """(G, B, inputs) by weights (G, outputs, inputs). Gradients come as the weights lie, without a
    transposed copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output."""
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weights and bias."""
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if wanted[0] else None,
            torch.bmm(gradient.transpose(1, 2), x),
            gradient.sum(1) if wanted[2] else None,
        )


class Convolution(torch.autograd.Function):
    """(G, B, C, H, W) by filters (G, O, C, h, w); what comes out lies in memory with channels last."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: IntPair, padding: IntPair
    ) -> Tensor:
        """Return the layer's output."""
        clients, images, channels, *size = x.shape
        high, wide = weight.shape[-2:]
        form = ConvForm(
            clients * images, channels, (size[0], size[1]), (high, wide), stride, padding
        )
        patches = form.patches(x.permute(0, 1, 3, 4, 2)).view(clients, -1, form.reach)
        filters = weight.permute(0, 1, 3, 4, 2).reshape(clients, -1, form.reach)
        ctx.form = form
        ctx.save_for_backward(patches, filters)
        out = _product(patches, filters, bias)
        return out.view(clients, images, *form.out, -1).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, filters and bias."""
        patches, filters = ctx.saved_tensors
        form = ctx.form
        wanted = ctx.needs_input_grad
        clients, images, outputs = gradient.shape[:3]
        gradient = gradient.permute(0, 1, 3, 4, 2).reshape(clients, -1, outputs)
        changed = torch.bmm(gradient.transpose(1, 2), patches).view(
            clients, outputs, *form.kernel, form.channels
        )
        x = (
            form.summed(torch.bmm(gradient, filters)).unflatten(0, (clients, images))
            if wanted[0]
            else None
        )
        return (
            None if x is None else x.permute(0, 1, 4, 2, 3),
            changed.permute(0, 1, 4, 2, 3),
            gradient.sum(1) if wanted[2] else None,
            None,
            None,
        )


class ConvForm:
    """Where the patches under a filter lie in images with channels last."""

    def __init__(
        self,
        images: int,
        channels: int,
        size: IntPair,
        kernel: IntPair,
        stride: IntPair,
        padding: IntPair,
    ) -> None:
        self.images = images
        self.channels = channels
        self.size = size
        self.kernel = kernel
        self.stride = stride
        self.padding = padding
        self.whole = size[0] + 2 * padding[0], size[1] + 2 * padding[1]
        self.out = (
            (self.whole[0] - kernel[0]) // stride[0] + 1,
            (self.whole[1] - kernel[1]) // stride[1] + 1,
        )
        self.reach = kernel[0] * kernel[1] * channels

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches (images, rows, columns, h, w·C) of images (…, H, W, C), one after
        another.
        """
        if any(self.padding):
            framed = x.new_zeros(*x.shape[:-3], *self.whole, self.channels)
            self._inside(framed).copy_(x)
            x = framed
        channel = self.whole[1] * self.channels
        steps = (
            self.whole[0] * channel,
            self.stride[0] * channel,
            self.stride[1] * self.channels,
            channel,
            1,
        )
        shape = (self.images, *self.out, self.kernel[0], self.kernel[1] * self.channels)
        return x.contiguous().as_strided(shape, steps).contiguous()

    def summed(self, patches: Tensor) -> Tensor:
        """Return images (images, H, W, C) in which every pixel is the sum over the patches it lies
        in.

        First along the lines, then across them: h + w additions instead of h·w.
        """
        (high, wide) = self.kernel
        (rows, columns) = self.out
        channels = self.channels
        channel = self.whole[1] * channels
        lines = patches.new_zeros(self.images, rows, high, channel)
        shape = (self.images, rows, high, columns, channels)
        into = (rows * high * channel, high * channel, channel, self.stride[1] * channels, 1)
        patch = self.reach
        out_of = (rows * columns * patch, columns * patch, wide * channels, patch, 1)
        for column in range(wide):
            part = patches.as_strided(shape, out_of, column * channels)
            lines.as_strided(shape, into, column * channels).add_(part)
        whole = patches.new_zeros(self.images, self.whole[0], channel)
        for row in range(high):
            covered = whole.as_strided(
                (self.images, rows, channel),
                (self.whole[0] * channel, self.stride[0] * channel, 1),
                row * channel,
            )
            covered.add_(lines[:, :, row])
        return self._inside(whole.view(self.images, *self.whole, channels))

    def _inside(self, whole: Tensor) -> Tensor:
        """Return images without the frame that padding puts around them."""
        return whole.narrow(-3, self.padding[0], self.size[0]).narrow(
            -2, self.padding[1], self.size[1]
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    flipped = weight.transpose(1, 2)
    return torch.bmm(x, flipped) if bias is None else torch.baddbmm(bias[:, None], x, flipped)
