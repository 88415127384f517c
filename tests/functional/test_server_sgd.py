import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.functional.contrast import cross_entropy
from cafedcl.functional.server_sgd import draw_batches, minimise, minimise_cross_entropy


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 1000))
def test_batches_are_the_parts_of_a_permutation_per_epoch_padded_to_one_width(
    number: int, batch: int, epochs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    expected = [
        rows.tolist() for _ in range(epochs) for rows in torch.randperm(number).split(batch)
    ]
    torch.manual_seed(seed)
    rows, weight = draw_batches(number, batch, epochs)
    assert rows.shape == weight.shape == (len(expected), min(batch, number))
    assert [each[mine > 0].tolist() for each, mine in zip(rows, weight, strict=True)] == expected
    assert set(weight.unique().tolist()) <= {0.0, 1.0}
    assert 0 <= rows.min() <= rows.max() < number


@pytest.mark.parametrize("batch", [1, 4, 7, 11, 30])
def test_it_is_torchs_own_sgd_over_batches_of_their_own_sizes(batch: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(11, 5), torch.randint(3, (11,))
    weights = {"w": torch.randn(5, 3).requires_grad_(), "b": torch.zeros(3).requires_grad_()}
    plain = [value.detach().clone().requires_grad_() for value in weights.values()]
    sgd = torch.optim.SGD(plain, 0.3)
    torch.manual_seed(1)
    for _ in range(6):
        for rows in torch.randperm(11).split(batch):
            sgd.zero_grad()
            F.cross_entropy(x[rows] @ plain[0] + plain[1], y[rows]).backward()
            sgd.step()
    torch.manual_seed(1)
    minimise(
        lambda rows, weight: cross_entropy(x[rows] @ weights["w"] + weights["b"], y[rows], weight),
        weights,
        draw_batches(11, batch, 6),
        0.3,
    )
    for value, other in zip(weights.values(), plain, strict=True):
        torch.testing.assert_close(value, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch", [1, 4, 7, 11, 30])
def test_a_linear_head_is_trained_as_by_torchs_own_sgd(batch: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(11, 5)
    y = torch.randint(3, (11,))
    plain = torch.nn.Linear(5, 3)
    start = {name: value.detach().clone() for name, value in plain.state_dict().items()}
    sgd = torch.optim.SGD(plain.parameters(), 0.3)
    torch.manual_seed(1)
    for _ in range(14):
        for rows in torch.randperm(11).split(batch):
            sgd.zero_grad()
            F.cross_entropy(plain(x[rows]), y[rows]).backward()
            sgd.step()
    torch.manual_seed(1)
    found = minimise_cross_entropy(start, x, y, batch, 14, 0.3)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)
