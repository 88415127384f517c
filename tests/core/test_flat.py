import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.core.flat import FlatModel, WeightSlice, as_vector, slices_of, storage_tensors
from cafedcl.functional.aggregation import Average

SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), min_size=1, max_size=5)


def weights_of(seed, form):
    """Weights of a client: each by itself, slices of one vector, or such with channels last."""
    made = torch.Generator().manual_seed(seed)
    plain = {
        "conv": torch.randn(2, 3, 2, 2, generator=made),
        "bias": torch.randn(2, generator=made),
    }
    if form == "apart":
        return plain
    vector = torch.cat([torch.full((5,), torch.nan), plain["conv"].flatten(), plain["bias"]])
    views = {"conv": vector[5:29].view(2, 3, 2, 2), "bias": vector[29:]}
    if form == "last":
        vector[5:29] = plain["conv"].permute(0, 2, 3, 1).flatten()
        views["conv"] = vector[5:29].view(2, 2, 2, 3).permute(0, 3, 1, 2)
    return views


@pytest.mark.parametrize(
    "forms",
    [("apart",) * 3, ("parts",) * 3, ("last",) * 3, ("last", "apart", "parts")],
    ids="-".join,
)
def test_weights_that_lie_in_one_vector_are_averaged_like_any_others(forms):
    """Exactly: the sum is taken in float64, number by number."""
    average, shares = Average(), (1.0, 2.0, 5.0)
    for seed, (form, share) in enumerate(zip(forms, shares, strict=True)):
        average.add(weights_of(seed, form), share)
    found = average.result()
    for name in ("conv", "bias"):
        expected = (
            sum(
                share * weights_of(seed, "apart")[name].double()
                for seed, share in enumerate(shares)
            )
            / 8
        )
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], expected.float())


@pytest.mark.parametrize("form", ["parts", "last"])
def test_a_vector_that_is_there_is_not_copied(form):
    model = weights_of(0, form)
    vector = as_vector(model, slices_of(model))
    assert vector.data_ptr() == model["conv"].data_ptr()
    assert len(vector) == 26
    assert not vector.isnan().any()


def test_weights_of_several_types_are_averaged_in_the_widest():
    average = Average()
    for number in (1, 2):
        average.add(
            {
                "half": torch.full((3,), 0.5 * number).bfloat16(),
                "whole": torch.full((2,), 1e-3 * number),
            },
            1.0,
        )
    found = average.result()
    assert found["half"].dtype == torch.bfloat16
    assert found["half"].tolist() == [0.75] * 3
    torch.testing.assert_close(found["whole"], torch.full((2,), 1.5e-3), atol=0, rtol=1e-6)


def places_for(shapes, last):
    """Places one after another, those of four axes with channels last if so told."""
    begins = accumulate((math.prod(shape) for shape in shapes.values()), initial=0)
    pairs = zip(begins, shapes.items(), strict=False)
    return {
        name: WeightSlice.at(begin, torch.Size(shape), last=last and len(shape) == 4)
        for begin, (name, shape) in pairs
    }


def laid_of(shapes, last):
    """Weights in a vector that is itself the end of a longer one."""
    named = {f"w{index}": shape for index, shape in enumerate(shapes)}
    vector = torch.arange(5.0 + sum(math.prod(shape) for shape in shapes))[5:]
    return FlatModel(vector, places_for(named, last))


def cut(array, shapes, last):
    """The weights by slicing: the first of them takes the first numbers, and so on."""
    for shape in shapes:
        part, array = array[: math.prod(shape)], array[math.prod(shape) :]
        if last and len(shape) == 4:
            out, channels, height, width = shape
            yield part.reshape(out, height, width, channels).transpose(0, 3, 1, 2)
        else:
            yield part.reshape(shape)


@given(SHAPES, st.booleans())
def test_laid_weights_are_the_slices_of_their_vector(shapes, last):
    model = laid_of(shapes, last)
    expected = list(cut(model.vector.numpy(), shapes, last))
    assert list(model) == [f"w{index}" for index in range(len(shapes))]
    assert len(model) == len(shapes)
    assert "other" not in model
    for name, array in zip(model, expected, strict=True):
        assert tuple(model[name].shape) == array.shape
        np.testing.assert_array_equal(model[name], array)
    model.vector.add_(100)
    assert all(bool((value >= 105).all()) for value in model.values())


def test_a_weight_that_is_not_laid_is_missing():
    with pytest.raises(KeyError, match="other"):
        laid_of([(2, 3)], last=False)["other"]


@given(SHAPES, st.booleans())
def test_laid_weights_lie_where_they_say_and_their_vector_is_not_copied(shapes, last):
    model = laid_of(shapes, last)
    assert slices_of(model) == model.slices
    assert as_vector(model, slices_of(model)) is model.vector
    assert as_vector(model, dict(model.slices)) is model.vector


@given(SHAPES, st.booleans(), st.randoms(use_true_random=False))
def test_laid_weights_are_laid_elsewhere_like_any_others(shapes, last, random):
    model = laid_of(shapes, last)
    names = list(model)
    random.shuffle(names)
    slices = places_for({name: model.slices[name].shape for name in names}, not last)
    found, plain = as_vector(model, slices), {name: value.clone() for name, value in model.items()}
    assert torch.equal(found, as_vector(plain, slices))
    for name, array in zip(
        names, cut(found.numpy(), [plain[name].shape for name in names], not last), strict=True
    ):
        np.testing.assert_array_equal(array, plain[name])


def test_the_numbers_of_a_model_are_its_vector_if_there_is_one():
    model = laid_of([(2, 3, 2, 2), (2,)], last=True)
    (whole,) = storage_tensors(model).values()
    assert whole is model.vector
    plain = weights_of(0, "apart")
    assert storage_tensors(plain) is plain
