import pytest
import torch

from cafedcl.aggregation import Average
from cafedcl.vector import in_one, places_of


def weights_of(seed, form):
    """Weights of one client: each by itself, parts of one vector, or such parts with channels last."""
    made = torch.Generator().manual_seed(seed)
    plain = {"conv": torch.randn(2, 3, 2, 2, generator=made), "bias": torch.randn(2, generator=made)}
    if form == "apart":
        return plain
    vector = torch.cat([torch.full((5,), torch.nan), plain["conv"].flatten(), plain["bias"]])
    views = {"conv": vector[5:29].view(2, 3, 2, 2), "bias": vector[29:]}
    if form == "last":
        vector[5:29] = plain["conv"].permute(0, 2, 3, 1).flatten()
        views["conv"] = vector[5:29].view(2, 2, 2, 3).permute(0, 3, 1, 2)
    return views


@pytest.mark.parametrize(
    "forms", [("apart",) * 3, ("parts",) * 3, ("last",) * 3, ("last", "apart", "parts")], ids="-".join
)
def test_weights_that_lie_in_one_vector_are_averaged_like_any_others(forms):
    """Exactly: the sum is taken in float64, number by number."""
    average, shares = Average(), (1.0, 2.0, 5.0)
    for seed, (form, share) in enumerate(zip(forms, shares, strict=True)):
        average.add(weights_of(seed, form), share)
    found = average.result()
    for name in ("conv", "bias"):
        expected = sum(share * weights_of(seed, "apart")[name].double() for seed, share in enumerate(shares)) / 8
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], expected.float())


@pytest.mark.parametrize("form", ["parts", "last"])
def test_a_vector_that_is_there_is_not_copied(form):
    model = weights_of(0, form)
    vector = in_one(model, places_of(model))
    assert vector.data_ptr() == model["conv"].data_ptr()
    assert len(vector) == 26
    assert not vector.isnan().any()


def test_weights_of_several_types_are_averaged_in_the_widest():
    average = Average()
    for number in (1, 2):
        average.add({"half": torch.full((3,), 0.5 * number).bfloat16(), "whole": torch.full((2,), 1e-3 * number)}, 1.0)
    found = average.result()
    assert found["half"].dtype == torch.bfloat16
    assert found["half"].tolist() == [0.75] * 3
    torch.testing.assert_close(found["whole"], torch.full((2,), 1.5e-3), atol=0, rtol=1e-6)
