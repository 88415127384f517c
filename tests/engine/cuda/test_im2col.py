import copy

import pytest
import torch
from torch import nn

from cafedcl.engine.cuda.im2col import MULTIPLE, Im2ColConv, use_im2col

LAYERS = {
    "square": (lambda: nn.Conv2d(3, 5, 5), (3, 9, 8)),
    "one channel": (lambda: nn.Conv2d(1, 4, 3, 2, 1), (1, 8, 8)),
    "unequal sides": (lambda: nn.Conv2d(3, 5, (3, 2), (2, 1), (1, 0)), (3, 9, 8)),
    "no bias": (lambda: nn.Conv2d(2, 4, 3, bias=False), (2, 7, 7)),
    "a multiple already": (lambda: nn.Conv2d(2, 3, 2), (2, 6, 5)),
    "strips of a multiple": (lambda: nn.Conv2d(4, 3, (3, 2)), (4, 6, 5)),
    "one row": (lambda: nn.Conv2d(3, 4, (1, 3), 1, (0, 1)), (3, 6, 5)),
    "one column": (lambda: nn.Conv2d(3, 4, (3, 1), (2, 2)), (3, 7, 6)),
    "one pixel": (lambda: nn.Conv2d(3, 4, 1), (3, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_product_of_patches_is_the_convolution(name: str) -> None:
    make, shape = LAYERS[name]
    plain = make().double()
    layer = copy.deepcopy(plain)
    use_im2col(layer)
    assert type(layer) is Im2ColConv
    x = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slope = torch.randn_like(plain(x))
    for each in (plain, layer):
        each(x).backward(slope)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-12, rtol=1e-12)
    for mine, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_of_16_bits_are_copied_whole(name: str) -> None:
    """Several of them are copied at a time. Whole numbers of a few bits have exact sums in
    bfloat16.
    """
    make, shape = LAYERS[name]
    drawn = torch.Generator().manual_seed(0)
    plain = make()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=drawn))
    x = torch.randint(-1, 2, (4, *shape), generator=drawn).float()
    layer = copy.deepcopy(plain).bfloat16()
    use_im2col(layer)
    assert torch.equal(layer(x.bfloat16()).float(), plain(x))
    assert plain(x).abs().max() > 1


def test_a_gradient_goes_through_a_layer_that_is_not_the_first() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).double()
    layers = copy.deepcopy(plain)
    use_im2col(layers)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for each in (plain, layers):
        each(x).square().sum().backward()
    for mine, theirs in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(MULTIPLE, 4, 3),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding="valid"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(2, 4, 3),
    ],
    ids=str,
)
def test_other_layers_stay_as_they_are(layer: nn.Module) -> None:
    kind = type(layer)
    use_im2col(nn.Sequential(layer))
    assert type(layer) is kind
