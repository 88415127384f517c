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
    """Make a network's convolutions and linear layers use these kernels under vmap."""
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
    """A layer under vmap.

    It runs ``together`` where clients have weights of their own, and ``alone`` on the images of all
    clients where they share them.
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
        _, _, x_axis, weight_axis, bias_axis = dims
        clients = info.batch_size
        x = clients_first(x, x_axis, clients)
        if weight_axis is None and bias_axis is None:
            merged = alone(x.flatten(0, 1), weight, bias)
            return merged.view(*x.shape[:2], *merged.shape[1:]), 0
        weight = clients_first(weight, weight_axis, clients)
        if bias is not None:
            bias = clients_first(bias, bias_axis, clients)
        return together(x, weight, bias), 0


def clients_first(value: Tensor, axis: int | None, clients: int) -> Tensor:
    """Return a tensor with the axis of clients first; one that they share is expanded."""
    if axis is None:
        return value.expand(clients, *value.shape)
    return value.movedim(axis, 0)


class Linear(torch.autograd.Function):
    """(clients, batch, inputs) by weights (clients, outputs, inputs).

    The gradient of the weights comes in their own memory order, without a transposed copy.
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
    """(clients, batch, C, H, W) by filters (clients, O, C, h, w); the output is channels last."""

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
        x: Tensor | None = None
        if wanted[0]:
            summed = form.summed(torch.bmm(gradient, filters))
            x = summed.unflatten(0, (clients, images)).permute(0, 1, 4, 2, 3)
        return (
            x,
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
        """Return the patches (images, rows, columns, h, w·C) of images (…, H, W, C)."""
        if any(self.padding):
            framed = x.new_zeros(*x.shape[:-3], *self.whole, self.channels)
            self._inside(framed).copy_(x)
            x = framed
        channel = self.whole[1] * self.channels
        # Patches overlap: a view with these strides finds them, one copy lays them side by side.
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
        """Return images (images, H, W, C) whose pixels are sums over all patches they lie in.

        First along the lines, then across them: h + w additions instead of h·w.
        """
        high, wide = self.kernel
        rows, columns = self.out
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
