import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from capturing import assert_near, captured
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.augment.transforms import (
    Crop,
    Cutout,
    Flip,
    Jitter,
    RandAugment,
    Rotate,
    TransformChain,
    in_unit_square,
    make_transforms,
    recolour,
    rotations,
    warp,
)
from cafedcl.config.train_options import TrainOptions
from cafedcl.core.errors import CafedclError
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.task.resolve import imported_names

MEAN = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)
STD = torch.tensor([0.2, 0.3, 0.1]).view(1, 3, 1, 1)
EVERYTHING = {
    "flip": True,
    "crop": 1,
    "rotate": 20.0,
    "jitter": 0.3,
    "randaugment": 2,
    "cutout": 3,
}


def chain(shape: tuple[int, int, int] = (3, 8, 8), **options: object) -> TransformChain:
    return make_transforms(TrainOptions(**options), shape, MEAN, STD)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels - MEAN) / STD


def test_without_options_nothing_changes():
    x = torch.randn(4, 3, 8, 8)
    nothing = chain()
    assert not nothing
    assert nothing.draw(4) == {}
    assert nothing.apply(x, {}) is x


def test_about_half_of_the_images_are_flipped_and_none_is_changed_otherwise():
    torch.manual_seed(0)
    x = torch.randn(400, 1, 5, 6)
    out = Flip().apply(x, Flip().draw(400))
    flipped = sum(torch.equal(a, b.flip(2)) for a, b in zip(out, x, strict=True))
    kept = sum(torch.equal(a, b) for a, b in zip(out, x, strict=True))
    assert flipped + kept == 400
    assert 150 < flipped < 250


def test_a_crop_is_the_image_shifted_by_at_most_the_padding_with_zeros_around():
    torch.manual_seed(0)
    x = torch.rand(200, 2, 5, 6) + 1
    out = Crop(2).apply(x, Crop(2).draw(200))
    assert out.shape == x.shape
    seen = set()
    for image, original in zip(out, x, strict=True):
        wide = torch.zeros(2, 9, 10)
        wide[:, 2:7, 2:8] = original
        slices = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(image, wide[:, i : i + 5, j : j + 6])
        ]
        assert len(slices) == 1
        seen |= set(slices)
    assert len(seen) == 25


def test_a_quarter_turn_is_exact():
    x = torch.randn(1, 3, 6, 6)
    maps = in_unit_square(rotations(torch.tensor([math.pi / 2])), (3, 6, 6))
    torch.testing.assert_close(warp(x, maps), x.rot90(1, (2, 3)), atol=1e-5, rtol=0)


def test_half_a_turn_of_an_image_that_is_not_square_is_exact():
    x = torch.randn(1, 2, 4, 7)
    maps = in_unit_square(rotations(torch.tensor([math.pi])), (2, 4, 7))
    torch.testing.assert_close(warp(x, maps), x.flip((2, 3)), atol=1e-5, rtol=0)


def test_a_rotation_keeps_angles_in_an_image_that_is_not_square():
    """A bright pixel above the centre goes to where a rotation by 90° takes it."""
    x = torch.zeros(1, 1, 5, 11)
    x[0, 0, 0, 5] = 1.0
    maps = in_unit_square(rotations(torch.tensor([math.pi / 2])), (1, 5, 11))
    found = warp(x, maps)[0, 0].nonzero()
    assert found.tolist() == [[2, 3]]


def test_a_shift_moves_pixels_by_the_drawn_number():
    x = torch.randn(1, 1, 4, 6)
    shift = torch.eye(3)[None].clone()
    shift[0, 0, 2] = 2.0
    moved = warp(x, in_unit_square(shift, (1, 4, 6)))
    torch.testing.assert_close(moved[..., :4], x[..., 2:], atol=1e-5, rtol=0)
    assert not moved[..., 4:].any()


def test_angles_are_within_the_largest():
    torch.manual_seed(0)
    maps = Rotate(30.0, (3, 8, 8)).draw(500)["map"]
    angles = torch.atan2(maps[:, 1, 0], maps[:, 0, 0]).rad2deg()
    assert angles.abs().max() <= 30
    assert angles.min() < -25
    assert angles.max() > 25


@given(st.floats(0.5, 1.5), st.floats(0.5, 1.5), st.floats(0.0, 2.0), st.integers(0, 2**32 - 1))
def test_colours_are_those_of_a_plain_computation(brightness, contrast, saturation, seed):
    pixels = np.random.default_rng(seed).random((2, 3, 4, 5))
    bright = pixels * brightness
    grey = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], bright)[:, None]
    middle = grey.mean((1, 2, 3), keepdims=True)
    contrasted = middle + contrast * (bright - middle)
    grey = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], contrasted)[:, None]
    expected = np.clip(grey + saturation * (contrasted - grey), 0, 1)
    factors = torch.tensor([[brightness, contrast, saturation]] * 2)
    found = recolour(normalised(torch.from_numpy(pixels).float()), factors, MEAN, STD)
    torch.testing.assert_close(
        found, normalised(torch.from_numpy(expected).float()), atol=1e-4, rtol=0
    )


def test_factors_of_one_change_nothing():
    pixels = torch.rand(3, 3, 4, 4)
    x = normalised(pixels)
    torch.testing.assert_close(recolour(x, torch.ones(3, 3), MEAN, STD), x, atol=1e-5, rtol=0)
    grey = torch.rand(3, 1, 4, 4)
    mean = torch.full((1, 1, 1, 1), 0.5)
    found = recolour(grey - mean, torch.tensor([[1.0, 1.0, 5.0]] * 3), mean, torch.ones(1))
    torch.testing.assert_close(found, grey - mean, atol=1e-5, rtol=0)


def test_jitter_draws_factors_around_one():
    torch.manual_seed(0)
    factors = Jitter(0.4, MEAN, STD).draw(500)["factors"]
    assert factors.shape == (500, 3)
    assert 0.6 <= factors.min() < 0.65
    assert 1.35 < factors.max() <= 1.4


def test_a_cut_out_square_is_zero_and_everything_else_stays():
    torch.manual_seed(0)
    x = torch.rand(100, 3, 6, 9) + 1
    cutout = Cutout(4, (3, 6, 9))
    draws = cutout.draw(100)
    out = cutout.apply(x, draws)
    for image, original, (row, column) in zip(out, x, draws["centre"].tolist(), strict=True):
        expected = original.clone()
        expected[:, max(0, row - 2) : row + 2, max(0, column - 2) : column + 2] = 0
        assert torch.equal(image, expected)
    assert draws["centre"].amin(0).tolist() == [0, 0]
    assert draws["centre"].amax(0).tolist() == [5, 8]


def test_randaugment_draws_as_many_operations_as_asked_of_one_strength():
    torch.manual_seed(0)
    one = RandAugment(1, 15, (3, 8, 8), MEAN, STD).draw(900)
    plain = torch.eye(3)[:2]
    moved = (one["map"] - plain).flatten(1).abs().gt(1e-6).any(1)
    coloured = (one["factors"] != 1).any(1)
    assert not (moved & coloured).any(), "one operation is on the geometry or on the colours"
    assert 400 < moved.sum() < 600
    assert 240 < coloured.sum() < 360
    changed = one["factors"][one["factors"] != 1]
    assert sorted({round(float(value), 4) for value in changed}) == [0.55, 1.45]
    three = RandAugment(3, 15, (3, 8, 8), MEAN, STD).draw(900)
    assert (three["map"] - plain).flatten(1).abs().gt(1e-6).any(1).sum() > moved.sum()


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_engines_agree_on_all_transforms_together(tiny, engine):
    settings = {f"train__{name}": value for name, value in EVERYTHING.items()}
    one = tiny("fedavg", **settings)
    other = tiny("fedavg", **settings)
    plain = tiny("fedavg")
    if engine == "cpu":
        other.engine = StackedClients(other.task, 3)
    else:
        captured(other)
    for federation in (one, other, plain):
        assert not federation.step().failed
    assert_near(one.state, other.state, 1e-4)
    assert not torch.equal(one.state["model/head.weight"], plain.state["model/head.weight"])
    other.close()


def test_transformed_runs_repeat(tiny):
    settings = {f"train__{name}": value for name, value in EVERYTHING.items()}
    runs = []
    for _ in range(2):
        federation = tiny("fedavg", **settings)
        federation.run()
        runs.append(federation.state["model/head.weight"])
    assert torch.equal(runs[0], runs[1])


OWN = """
import torch
from cafedcl.extend import Transform

class Noise(Transform):
    def draw(self, images):
        return {"strength": torch.rand(images)}
    def apply(self, x, draws):
        return x * (1 + draws["strength"][:, None, None, None])

class Drawless(Transform):
    def apply(self, x, draws):
        return x

class Applyless(Transform):
    def draw(self, images):
        return {}

class TakesNoDraws(Noise):
    def apply(self, x):
        return x

class Broken(Noise):
    def __init__(self):
        raise RuntimeError("no licence")

something = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_noise.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_noise", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_noise"


def test_a_transform_of_ones_own_comes_last(own_module):
    own = chain(cutout=2, transform=f"{own_module}:Noise")
    x = torch.randn(3, 3, 8, 8)
    torch.manual_seed(0)
    draws = own.draw(3)
    before = Cutout(2, (3, 8, 8)).apply(x, {"centre": draws["cutout/centre"]})
    expected = before * (1 + draws["own/strength"])[:, None, None, None]
    torch.testing.assert_close(own.apply(x, draws), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("something", "not a class derived from cafedcl.extend.Transform"),
        ("missing", "has no 'missing'"),
        ("Drawless", "'own_noise:Drawless': it defines no draw$"),
        ("Applyless", "'own_noise:Applyless': it defines no apply$"),
        ("TakesNoDraws", r"takes \(self, x\); \(self, x, draws\) is expected \(own_noise.py, line"),
        ("Broken", "cannot be made: RuntimeError: no licence"),
    ],
)
def test_a_bad_transform_of_ones_own_is_one_line(own_module, name, message):
    with pytest.raises(CafedclError, match=message) as caught:
        chain(transform=f"{own_module}:{name}")
    assert "\n" not in str(caught.value)


def test_a_site_is_told_that_a_transform_imports_code():
    assert imported_names({"train": {"transform": "own_noise:Noise"}}) == ["own_noise:Noise"]
    assert imported_names({"train": {"transform": ""}}) == []


def test_a_transform_that_draws_too_few_rows_is_one_line():
    class Few(Flip):
        def draw(self, images):
            return {"flipped": torch.rand(images - 1) < 0.5}

    said = r"draw of Few for 4 images returns 3 rows as 'flipped'; .* \(test_transforms.py, line"
    with pytest.raises(CafedclError, match=said):
        TransformChain([Few()]).draw(4)


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ([torch.zeros(4)], "draw of Own returns list; a dict of tensors is expected"),
        ({"a": [1, 2, 3, 4]}, "draw of Own returns list as 'a'; a tensor is expected"),
        (None, "draw of Own returns NoneType; a dict of tensors is expected"),
    ],
)
def test_a_transform_that_draws_no_tensors_is_one_line(drawn, words):
    class Own(Flip):
        def draw(self, images):
            return drawn

    with pytest.raises(CafedclError, match=words):
        TransformChain([Own()]).draw(4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: None, "returns NoneType; float32 "),
        (
            lambda x: x.double(),
            r"returns float64 \(4, 3, 8, 8\); float32 \(4, 3, 8, 8\) is expected",
        ),
        (lambda x: x[:, :, 1:], r"returns float32 \(4, 3, 7, 8\)"),
        (lambda x: x[1:], r"returns float32 \(3, 3, 8, 8\)"),
    ],
)
def test_a_transform_that_returns_other_images_is_one_line(change, words):
    class Own(Flip):
        def apply(self, x, draws):
            return change(x)

    chain = TransformChain([Own()])
    with pytest.raises(CafedclError, match=f"train.transform: apply of Own {words}"):
        chain.apply(torch.zeros(4, 3, 8, 8), chain.draw(4))
