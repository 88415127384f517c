"""Triton kernels of a group normalisation with what follows it: a sum with a shortcut, and a ReLU.

Each program holds one group of channels of one image in registers. So each number is read once,
where separate kernels read it once for the statistics and once for the result.

Images are (N, H, W, C) in memory. Sizes are compiled in; blocks are the next powers of two, and
what lies outside a group is masked. Sums are in float32, and in an order that is always the same.
"""

import triton
import triton.language as tl


@triton.jit
def normalise(
    x,
    shortcut,
    weight,
    bias,
    y,
    means,
    inverse_stds,
    eps,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PIXEL_BLOCK: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HAS_SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
):
    """Write the result of one group of one image, and its statistics."""
    # A scalar of 64 bits moves the pointers, so that the offsets of a block need only 32.
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    begin = image * PIXELS * CHANNELS + group * GROUP
    statistic = image * tl.num_programs(1) + group
    pixels = tl.arange(0, PIXEL_BLOCK)[:, None]
    in_group = tl.arange(0, GROUP_BLOCK)
    channels = group * GROUP + in_group
    known = in_group < GROUP
    inside = (pixels < PIXELS) & known[None, :]
    at = pixels * CHANNELS + in_group[None, :]
    value = tl.load(x + begin + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value) / (PIXELS * GROUP)
    centred = tl.where(inside, value - mean, 0.0)
    inverse_std = tl.rsqrt(tl.sum(centred * centred) / (PIXELS * GROUP) + eps)
    scale = tl.load(weight + channels, mask=known, other=0.0).to(tl.float32)[None, :]
    offset = tl.load(bias + channels, mask=known, other=0.0).to(tl.float32)[None, :]
    result = centred * inverse_std * scale + offset
    if HAS_SHORTCUT:
        result += tl.load(shortcut + begin + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        # A maximum is 0 for NaN on a GPU. This keeps NaN, so that divergence is noticed.
        result = tl.where(result < 0, 0.0, result)
    tl.store(y + begin + at, result, mask=inside)
    tl.store(means + statistic, mean)
    tl.store(inverse_stds + statistic, inverse_std)


@triton.jit
def differentiate(
    x,
    y,
    y_gradient,
    other_gradient,
    weight,
    bias,
    means,
    inverse_stds,
    x_gradient,
    shortcut_gradient,
    parameter_gradients,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    PIXEL_BLOCK: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HAS_OTHER: tl.constexpr,
    HAS_SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
):
    """Write the gradients of one group of one image.

    The gradient of the result is ``y_gradient``, or its sum with ``other_gradient``.

    Those of scale and offset are this image's part of them, (N, 2, C), to be summed by the caller.
    """
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    begin = image * PIXELS * CHANNELS + group * GROUP
    statistic = image * tl.num_programs(1) + group
    pixels = tl.arange(0, PIXEL_BLOCK)[:, None]
    in_group = tl.arange(0, GROUP_BLOCK)
    channels = group * GROUP + in_group
    known = in_group < GROUP
    inside = (pixels < PIXELS) & known[None, :]
    at = pixels * CHANNELS + in_group[None, :]
    scale = tl.load(weight + channels, mask=known, other=0.0).to(tl.float32)
    mean = tl.load(means + statistic)
    inverse_std = tl.load(inverse_stds + statistic)
    gradient = tl.load(y_gradient + begin + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_OTHER:
        gradient += tl.load(other_gradient + begin + at, mask=inside, other=0.0).to(tl.float32)
    normal = (tl.load(x + begin + at, mask=inside, other=0.0).to(tl.float32) - mean) * inverse_std
    if RELU:
        if HAS_SHORTCUT:
            passed = tl.load(y + begin + at, mask=inside, other=0.0) > 0
        else:
            # Without a shortcut the sign of the result is computed again, which saves a read.
            offset = tl.load(bias + channels, mask=known, other=0.0).to(tl.float32)
            passed = normal * scale[None, :] + offset[None, :] > 0
        gradient = tl.where(passed, gradient, 0.0)
        if HAS_SHORTCUT:
            tl.store(shortcut_gradient + begin + at, gradient, mask=inside)
    scale_gradient = tl.sum(gradient * normal, 0)
    offset_gradient = tl.sum(gradient, 0)
    parts = parameter_gradients + image * 2 * CHANNELS + channels
    tl.store(parts, scale_gradient, mask=known)
    tl.store(parts + CHANNELS, offset_gradient, mask=known)
    # The sums over the group follow from those over its channels, with no further pass.
    mean_gradient = tl.sum(offset_gradient * scale) / (PIXELS * GROUP)
    mean_product = tl.sum(scale_gradient * scale) / (PIXELS * GROUP)
    result = inverse_std * (gradient * scale[None, :] - mean_gradient - normal * mean_product)
    tl.store(x_gradient + begin + at, result, mask=inside)
