import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cafedcl.core.tensors import Tensors
from cafedcl.engine.cpu import grouped_conv as kernels
from cafedcl.engine.cpu.grouped_conv import use_grouped_convolutions

CLIENTS, IMAGES = 3, 4
LAYERS = {
    "square": (lambda: nn.Conv2d(2, 5, 3), (2, 7, 6)),
    "stride and padding": (lambda: nn.Conv2d(1, 4, 3, 2, 1), (1, 8, 8)),
    "unequal sides": (lambda: nn.Conv2d(3, 5, (3, 2), (2, 1), (1, 0)), (3, 9, 8)),
    "steps beyond the edge": (lambda: nn.Conv2d(2, 3, 2, 3, 1), (2, 8, 7)),
    "a point": (lambda: nn.Conv2d(4, 2, 1, 2), (4, 6, 6)),
    "no bias": (lambda: nn.Conv2d(2, 4, 5, bias=False), (2, 9, 9)),
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 5, bias=False), (6,)),
    "groups, as vmap does them": (lambda: nn.Conv2d(4, 4, 3, groups=2), (4, 6, 6)),
    "dilated, as vmap does them": (lambda: nn.Conv2d(2, 4, 3, dilation=2), (2, 8, 8)),
    "padding by name, as vmap does it": (lambda: nn.Conv2d(2, 4, 3, padding="same"), (2, 6, 6)),
}


def stacked(layer: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
    def run(weights: Tensors, x: Tensor) -> Tensor:
        layer._parameters.update(weights)
        return layer(x)

    return vmap(run)(weights, x)


@pytest.mark.parametrize("name", LAYERS)
def test_every_clients_output_and_gradients_are_those_of_its_own_layer(name: str) -> None:
    make, shape = LAYERS[name]
    plain, generator = make().double(), torch.Generator().manual_seed(0)
    layer = copy.deepcopy(plain)
    use_grouped_convolutions(layer)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    x = draw(CLIENTS, IMAGES, *shape)
    weights = {key: draw(CLIENTS, *value.shape) for key, value in plain.named_parameters()}
    found = stacked(layer, weights, x)
    expected = torch.stack(
        [
            functional_call(plain, {key: value[k] for key, value in weights.items()}, (x[k],))
            for k in range(CLIENTS)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    direction = draw(*found.shape).detach()
    asked = [x, *weights.values()]
    ours, theirs = (
        torch.autograd.grad((value * direction).sum(), asked) for value in (found, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["stride and padding", "linear"])
def test_weights_that_all_share_are_applied_to_all_images_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = LAYERS[name]
    layer = make()
    x = torch.randn(CLIENTS, IMAGES, *shape)
    expected = layer(x.flatten(0, 1)).unflatten(0, (CLIENTS, IMAGES))
    use_grouped_convolutions(layer)
    for kind in (kernels.Convolution, kernels.Linear):
        monkeypatch.setattr(kind, "apply", lambda *_: pytest.fail("there is one set of weights"))
    torch.testing.assert_close(vmap(layer)(x), expected)


def test_images_that_all_share_go_through_every_clients_weights() -> None:
    layer = nn.Conv2d(2, 3, 3)
    plain, x = copy.deepcopy(layer), torch.randn(IMAGES, 2, 5, 5)
    use_grouped_convolutions(layer)
    weights = {key: torch.randn(CLIENTS, *value.shape) for key, value in plain.named_parameters()}

    def run(weights: Tensors) -> Tensor:
        layer._parameters.update(weights)
        return layer(x)

    expected = [
        functional_call(plain, {key: value[k] for key, value in weights.items()}, (x,))
        for k in range(CLIENTS)
    ]
    torch.testing.assert_close(vmap(run)(weights), torch.stack(expected))


def test_a_layer_that_somebody_has_derived_is_left_alone() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layer = Doubled(3, 2)
    x = torch.randn(4, 3)
    expected = layer(x)
    use_grouped_convolutions(layer)
    assert torch.equal(layer(x), expected)
