import torch

from cafedcl.engine.parcel import Parcel


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
    parcel = Parcel(given)
    data = parcel.wrap(given)
    assert data.dtype == torch.uint8
    found = parcel.unwrap(data)
    assert found.keys() == given.keys()
    for name, value in given.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num())


def test_what_is_unwrapped_follows_its_vector() -> None:
    given = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    parcel = Parcel(given)
    data = parcel.wrap(given)
    found = parcel.unwrap(data)
    data.copy_(parcel.wrap({"a": torch.tensor([5.0, 6.0]), "b": torch.tensor([7])}))
    assert found["a"].tolist() == [5, 6]
    assert found["b"].tolist() == [7]
