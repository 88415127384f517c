"""The kernels run on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter on any host."""

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.fx import Graph, Node

from cafedcl.engine.cuda import fused_norm
from cafedcl.engine.cuda.fused_norm import MOST_NUMBERS, FusedNorm, has_triton, use_fused_norm
from cafedcl.models.resnet import GROUPS, Norm, ResNet8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = has_triton() and (DEVICE == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
needs_triton = pytest.mark.skipif(not RUNS, reason="needs Triton on a CUDA device")

SHAPES = [(3, 8, 4, 4), (2, 12, 7, 7), (2, 2, 1, 2), (2, 6, 3, 5)]
"""Powers of two, and sizes that are padded."""


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(DEVICE)


def sums_in_norms() -> Any:
    # PyTorch's compiler takes seconds to import, and most processes of the tests do without.
    from cafedcl.engine.cuda.gradient_sums import SumsInNorms

    return SumsInNorms


def gradients_in(graph: Graph) -> list[Node]:
    target = torch.ops.cafedcl.fused_norm_gradient.default
    return list(graph.find_nodes(op="call_function", target=target))


def fused_layer(channels: int) -> Norm:
    layer = Norm(GROUPS, channels)
    with torch.no_grad():
        layer.weight.copy_(random((channels,), 1))
        layer.bias.copy_(random((channels,), 2))
    use_fused_norm(layer)
    return layer.to(DEVICE)


@needs_triton
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("has_shortcut", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_kernel_has_the_result_and_the_gradients_of_the_separate_steps(
    shape: tuple[int, ...], has_shortcut: bool, relu: bool
) -> None:
    layer = fused_layer(shape[1])
    assert type(layer) is FusedNorm
    x, shortcut, slope = (random(shape, seed) for seed in (3, 4, 5))
    exact = [v.detach().clone().requires_grad_() for v in (x, layer.weight, layer.bias, shortcut)]
    given = [x.float().requires_grad_(), layer.weight, layer.bias, shortcut.float()]
    given[3].requires_grad_()
    expected = F.group_norm(exact[0], GROUPS, exact[1].double(), exact[2].double(), layer.eps)
    if has_shortcut:
        expected = expected + exact[3]
    if relu:
        expected = expected.clamp_min(0.0)
    found = layer(given[0], given[3] if has_shortcut else None, relu=relu)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    asked = 4 if has_shortcut else 3
    slopes = torch.autograd.grad(expected, exact[:asked], slope)
    for mine, theirs in zip(
        torch.autograd.grad(found, given[:asked], slope.float()), slopes, strict=True
    ):
        torch.testing.assert_close(mine.double(), theirs.double(), atol=5e-5, rtol=5e-5)


@needs_triton
@pytest.mark.parametrize("entry", ["forward", "levels"])
def test_a_network_has_the_features_and_gradients_of_the_plain_one(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In tf32, convolutions of images with their channels last differ from those of others.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    plain = ResNet8((3, 8, 8), 0.1).to(DEVICE)
    fused = copy.deepcopy(plain)
    use_fused_norm(fused)
    assert sum(type(module) is FusedNorm for module in fused.modules()) == 9
    x = random((4, 3, 8, 8), 0).float()
    results = []
    for network in (plain, fused):
        # The compiler's front end asks for shapes without running the kernels.
        traced = torch.compile(getattr(network, entry), backend="aot_eager", dynamic=False)
        features = traced(x) if entry == "forward" else torch.cat(traced(x)[0], 1)
        loss = features.square().sum()
        results.append((features, *torch.autograd.grad(loss, list(network.parameters()))))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize("has_shortcut", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_of_two_gradients_is_taken_in_the_kernel(
    shape: tuple[int, ...], has_shortcut: bool
) -> None:
    x, shortcut, one, other = (random(shape, seed).float() for seed in (3, 4, 5, 6))
    weight, bias = (random((shape[1],), seed).float() for seed in (1, 2))
    y, *statistics = torch.ops.cafedcl.fused_norm(
        x, shortcut if has_shortcut else None, weight, bias, GROUPS, 1e-5, True
    )
    known = (x, y if has_shortcut else None)
    rest = (weight, bias, *statistics, True)
    both = torch.ops.cafedcl.fused_norm_gradient(*known, one, other, *rest)
    summed = torch.ops.cafedcl.fused_norm_gradient(*known, one + other, None, *rest)
    for mine, theirs in zip(both, summed, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@needs_triton
def test_a_compiled_network_takes_the_sums_of_its_blocks_in_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    moved: list[bool] = []

    class Counted(sums_in_norms()):
        def __call__(self, graph: Graph) -> None:
            super().__call__(graph)
            moved.extend(node.args[3] is not None for node in gradients_in(graph))

        def uuid(self) -> None:
            """Nothing is taken from a cache, where nobody would count."""

    torch.manual_seed(0)
    plain = ResNet8((3, 8, 8), 0.1).to(DEVICE)
    fused = copy.deepcopy(plain)
    use_fused_norm(fused)
    x = random((4, 3, 8, 8), 0).float()
    options = {"post_grad_custom_pre_pass": Counted()}
    compiled = torch.compile(fused, dynamic=False, options=options)
    results = [
        torch.autograd.grad(run(x).square().sum(), list(network.parameters()))
        for network, run in ((plain, plain), (fused, compiled))
    ]
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    # Each of the three blocks has such a sum; nine normalisations are in the network.
    assert (sum(moved), len(moved)) == (3, 9)


@needs_triton
@pytest.mark.parametrize(("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4)])
def test_16_bits_are_as_exact_as_separate_steps_in_16_bits(channels: int, side: int) -> None:
    layer = fused_layer(channels)
    shape = (3, channels, side, side)
    x, shortcut, slope = (random(shape, seed).bfloat16() for seed in (3, 4, 5))
    inputs = (x, shortcut, layer.weight.detach().bfloat16(), layer.bias.detach().bfloat16())

    def fused(x: Tensor, shortcut: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(("weight", "bias"), weights, strict=True))
        return functional_call(layer, named, (x, shortcut), {"relu": True})

    def separate(x: Tensor, shortcut: Tensor, *weights: Tensor) -> Tensor:
        return F.relu(F.group_norm(x, GROUPS, *weights, layer.eps) + shortcut)

    def results(steps: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = [value.to(dtype, copy=True).requires_grad_() for value in inputs]
        y = steps(*given)
        return [y, *torch.autograd.grad(y, given, slope.to(dtype))]

    exact = results(separate, torch.float64)
    mine = results(fused, torch.bfloat16)
    theirs = results(separate, torch.bfloat16)
    for truth, one, other in zip(exact, mine, theirs, strict=True):
        assert (one - truth).norm() <= 1.2 * (other - truth).norm() + 1e-3 * truth.norm()


@needs_triton
def test_a_run_that_diverged_shows_it() -> None:
    layer = fused_layer(4)
    x = random((2, 4, 2, 2), 0).float()
    x[0, 0, 0, 0] = torch.nan
    for shortcut in (None, torch.ones_like(x)):
        y = layer(x, shortcut, relu=True)
        assert y[0, : 4 // GROUPS].isnan().all()
        assert y[1].isfinite().all()


def test_a_group_that_does_not_fit_in_registers_takes_separate_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(fused_norm, "fused_norm", fail)
    monkeypatch.setattr(fused_norm, "has_triton", lambda: True)
    layer = fused_layer(2 * GROUPS)
    assert type(layer) is FusedNorm
    side = int(MOST_NUMBERS**0.5)
    x = random((1, 2 * GROUPS, side, side), 0).float()
    expected = F.relu(F.group_norm(x, GROUPS, layer.weight, layer.bias) + x)
    assert torch.equal(layer(x, x, relu=True), expected)
    with pytest.raises(AssertionError, match="the kernel was called"):
        layer(x[:, :, :2, :2], relu=True)


def test_without_triton_every_layer_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, "has_triton", lambda: False)
    assert type(fused_layer(4)) is Norm


@pytest.mark.parametrize("case", ["plain", "used twice", "weighted", "broadcast"])
def test_only_a_plain_sum_that_nothing_else_needs_is_moved(case: str) -> None:
    graph = Graph()
    one, other, rest = (graph.placeholder(name) for name in ("one", "other", "rest"))
    one.meta["val"] = torch.empty(2, 4, 3, 3)
    other.meta["val"] = torch.empty(2, 4, 1, 1) if case == "broadcast" else one.meta["val"]
    weighted = {"alpha": 2} if case == "weighted" else {}
    total = graph.call_function(torch.ops.aten.add.Tensor, (one, other), weighted)
    arguments = (rest, rest, total, None, rest, rest, rest, rest, True)
    node = graph.call_function(torch.ops.cafedcl.fused_norm_gradient.default, arguments)
    graph.output((node, total) if case == "used twice" else node)
    sums_in_norms()()(graph)
    graph.lint()
    if case == "plain":
        assert node.args == (rest, rest, one, other, rest, rest, rest, rest, True)
        assert total not in graph.nodes
    else:
        assert node.args == arguments


def test_the_pass_is_given_to_the_compiler_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, "has_triton", lambda: True)
    (given,) = fused_norm.compile_options().values()
    assert isinstance(given, sums_in_norms())
    # The cache of compiled code asks for it: every object of this pass is the same one.
    assert given.uuid() == sums_in_norms()().uuid()
    monkeypatch.setattr(fused_norm, "has_triton", lambda: False)
    assert fused_norm.compile_options() == {}
