import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.device.packed_bytes import PackedBytes

Kinds = list[tuple[torch.dtype, tuple[int, ...]]]
KINDS = st.sampled_from([torch.int64, torch.float32, torch.float64, torch.bool])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def test_a_parcel_gives_back_what_was_put_in() -> None:
    given = {
        "flags": torch.tensor([True, False, True]),
        "number": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "classes": torch.tensor([2, 7, 2**40]),
        "half": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
        "table": torch.tensor([[1.0, torch.nan], [torch.inf, 0.0]]),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    parcel = PackedBytes.like(given)
    data = parcel.wrap(given)
    assert data.dtype == torch.uint8
    found = parcel.unwrap(data)
    assert found.keys() == given.keys()
    for name, value in given.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num())


def test_what_is_unwrapped_follows_its_vector() -> None:
    given = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    parcel = PackedBytes.like(given)
    data = parcel.wrap(given)
    found = parcel.unwrap(data)
    data.copy_(parcel.wrap({"a": torch.tensor([5.0, 6.0]), "b": torch.tensor([7])}))
    assert found["a"].tolist() == [5, 6]
    assert found["b"].tolist() == [7]


def drawn(kinds: Kinds, seed: int) -> dict[str, torch.Tensor]:
    """Numbers of many sizes, one tensor for every type and shape."""
    draws = torch.Generator().manual_seed(seed)
    numbers = [
        (1e6 * torch.randn(shape, generator=draws, dtype=torch.float64), kind)
        for kind, shape in kinds
    ]
    return {
        f"t{i}": n > 0 if kind == torch.bool else n.to(kind) for i, (n, kind) in enumerate(numbers)
    }


@given(st.lists(st.tuples(KINDS, SHAPES), min_size=1, max_size=6), st.integers(0, 1000))
def test_what_is_read_is_what_was_put_in_and_stays_so(kinds: Kinds, seed: int) -> None:
    first, then = drawn(kinds, seed), drawn(kinds, seed + 1)
    parcel = PackedBytes.like(first)
    data = parcel.wrap(first)
    found = [parcel.read(data)]
    data.copy_(parcel.wrap(then))
    found.append(parcel.read(data))
    data.zero_()
    for arrays, expected in zip(found, (first, then), strict=True):
        assert arrays.keys() == expected.keys()
        for name, value in expected.items():
            right = value.numpy()
            assert (arrays[name].dtype, arrays[name].shape) == (right.dtype, right.shape)
            np.testing.assert_array_equal(arrays[name], right)
