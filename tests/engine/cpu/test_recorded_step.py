import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cafedcl.engine.cpu.recorded_step import record


def inputs(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((4, 3), (5, 4), (5,), (3,))]


def step(weight: Tensor, x: Tensor, target: Tensor, total: Tensor) -> list[Tensor]:
    """A step of gradient descent with views, writing in place, several results of one call, and a
    fresh constant.
    """
    leaf = weight.detach().requires_grad_()
    with torch.enable_grad():
        first, rest = F.relu(x @ leaf).split([1, 2], 1)
        loss = (first[:, 0] - target).square().sum() + rest.mean() * torch.tensor(3.0)
        (gradient,) = torch.autograd.grad(loss, leaf)
    weight.sub_(0.1 * gradient)
    total[1:].add_(torch.tensor([1.0, 2.0]).mul_(2))
    return [loss.detach(), gradient.norm()]


def test_playing_gives_bit_for_bit_what_running_gives_and_writes_the_same() -> None:
    play, _ = record(step, inputs(0))
    for seed in (1, 2, 1):
        ran, played = inputs(seed), inputs(seed)
        expected = step(*ran)
        with torch.no_grad():
            found = play(*played)
        for ours, theirs in zip([*found, *played], [*expected, *ran], strict=True):
            assert torch.equal(ours, theirs)


def test_recording_is_a_first_run() -> None:
    recorded, ran = inputs(3), inputs(3)
    _, outputs = record(step, recorded)
    expected = step(*ran)
    assert all(
        torch.equal(a, b) for a, b in zip([*outputs, *recorded], [*expected, *ran], strict=True)
    )
    assert not torch.equal(recorded[0], inputs(3)[0])


def test_modules_and_vmap_are_played_without_being_called_again() -> None:
    layer, calls = nn.Linear(4, 3), []
    layer.register_forward_hook(lambda *_: calls.append(1))
    batched = torch.func.vmap(lambda x: F.log_softmax(layer(x), 0))
    play, _ = record(lambda x: [batched(x)], [torch.randn(5, 4)])
    x = torch.randn(5, 4)
    calls.clear()
    (played,) = play(x)
    assert calls == []
    torch.testing.assert_close(played, F.log_softmax(layer(x), 1))


def test_a_result_nobody_asks_for_is_not_computed() -> None:
    def wasteful(x: Tensor) -> list[Tensor]:
        (x @ x).exp().sum()
        return [x + 1]

    play, _ = record(wasteful, [torch.zeros(2, 2)])
    assert "bmm" not in play.__code__.co_names
    assert len([name for name in play.__code__.co_names if name.startswith("known")]) == 1


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda x: [x * float(x.sum())], "reads a tensor.s value"),
        (lambda x: [x[x > 0]], "reads a tensor.s value"),
        (lambda x: [x + torch.rand(3)], "draws random numbers"),
        (lambda x: [F.dropout(x, 0.5)], "draws random numbers"),
    ],
)
def test_what_cannot_be_repeated_is_refused(what, reason: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=reason):
        record(what, [torch.randn(3, generator=torch.Generator().manual_seed(0))])
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_that_share_memory_are_refused() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="same tensor"):
        record(lambda a, b: [a + b], [x, x])
    with pytest.raises(ValueError, match="not contiguous"):
        record(lambda a: [a + 1], [torch.ones(2, 3).T])
    record(lambda a, b: [a + b], [torch.ones(0), torch.ones(0)])
