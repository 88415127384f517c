import copy

import pytest
import torch
from torch import nn

from cafedcl.core.flat import FlatNetwork


class Stem(nn.Module):
    """A convolution, a scale that is a buffer, and a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("scale", torch.rand(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.conv(x) * self.scale + self.shift)


def network() -> nn.Sequential:
    """Weights of one, two, three and four dimensions; one of them frozen, and one buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(Stem(), nn.Flatten(), nn.Linear(4 * 16, 5), nn.Linear(5, 2))
    model[2].bias.requires_grad_(False)
    return model


TRAINED = {"0.conv.weight", "0.conv.bias", "0.shift", "2.weight", "3.weight", "3.bias"}
IMAGES = torch.randn(7, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[False, True], ids=["channels first", "channels last"])
def last(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_flat_tensor_holds_every_trained_weight_once(last: bool) -> None:
    model, state = network(), network().state_dict()
    layout = FlatNetwork(model, channels_last=last)
    assert layout.parameters.keys() == layout.leaves.keys() == TRAINED
    assert layout.vector.shape == (sum(state[name].numel() for name in TRAINED),)
    pieces = [
        state[name].permute(0, 2, 3, 1) if last and state[name].dim() == 4 else state[name]
        for name in layout.leaves
    ]
    assert torch.equal(layout.vector, torch.cat([piece.reshape(-1) for piece in pieces]))


def test_views_and_the_network_have_the_weights_that_were_laid(last: bool) -> None:
    model, state = network(), network().state_dict()
    layout = FlatNetwork(model, channels_last=last)
    for name, view in layout.views(layout.vector).items():
        assert torch.equal(view, state[name])
        assert view.shape == state[name].shape
        assert view.untyped_storage().data_ptr() == layout.vector.untyped_storage().data_ptr()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(IMAGES), network()(IMAGES))


def test_channels_lie_last_only_if_asked(last: bool) -> None:
    layout = FlatNetwork(network(), channels_last=last)
    kernel = layout.leaves["0.conv.weight"]
    assert kernel.is_contiguous(memory_format=torch.channels_last) == last
    assert kernel.is_contiguous() != last
    assert all(
        leaf.is_contiguous() for name, leaf in layout.leaves.items() if name != "0.conv.weight"
    )


def test_laying_other_weights_leaves_these_alone(last: bool) -> None:
    model = network()
    layout = FlatNetwork(model, channels_last=last)
    before = layout.vector.clone()
    others = {name: torch.randn(value.shape) for name, value in model.state_dict().items()}
    flat = layout.flatten(others)
    assert torch.equal(layout.vector, before)
    assert not flat.requires_grad
    assert all(torch.equal(view, others[name]) for name, view in layout.views(flat).items())


def test_writing_the_flat_tensor_changes_the_network(last: bool) -> None:
    model, other = network(), network()
    layout = FlatNetwork(model, channels_last=last)
    with torch.no_grad():
        layout.vector.mul_(-0.5)
        for name, weight in other.named_parameters():
            weight.mul_(-0.5 if name in TRAINED else 1)
    assert torch.equal(model(IMAGES), other(IMAGES))


def test_leaves_have_the_gradients_of_plain_autograd(last: bool) -> None:
    model, other = network(), network()
    layout = FlatNetwork(model, channels_last=last)
    found = torch.autograd.grad(model(IMAGES).square().sum(), list(layout.leaves.values()))
    other(IMAGES).square().sum().backward()
    for name, gradient in zip(layout.leaves, found, strict=True):
        torch.testing.assert_close(
            gradient, other.get_parameter(name).grad, atol=1e-6, rtol=1e-5, msg=name
        )
        assert gradient.any()


def test_frozen_weights_and_buffers_are_the_rest_and_stay_where_they_are(last: bool) -> None:
    model = network()
    layout = FlatNetwork(model, channels_last=last)
    assert layout.rest.keys() == {"0.scale", "2.bias"}
    layout.rest["0.scale"].fill_(0)
    layout.rest["2.bias"].fill_(9)
    assert not model[0].scale.any()
    assert model[2].bias.tolist() == [9] * 5
    assert not model[2].bias.requires_grad


def test_a_copied_network_does_not_share_the_flat_tensor(last: bool) -> None:
    model = network()
    FlatNetwork(copy.deepcopy(model), channels_last=last).vector.zero_()
    assert torch.equal(model(IMAGES), network()(IMAGES))


def test_several_clients_weights_lie_in_one_tensor_with_a_row_for_each(last: bool) -> None:
    layout, start = FlatNetwork(network(), channels_last=last), network().state_dict()
    states = [
        {name: factor * value for name, value in start.items()} for factor in (1.0, 2.0, -3.0)
    ]
    rows = torch.stack([layout.flatten(state) for state in states])
    views = layout.views(rows)
    assert views.keys() == TRAINED
    for name, view in views.items():
        assert torch.equal(view, torch.stack([state[name] for state in states])), name
        assert view.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
    assert torch.equal(layout.flatten_stacked(list(views.values())), rows)
