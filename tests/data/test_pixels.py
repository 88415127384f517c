"""One rule turns the pixels of a whole data set into bytes, or says why there is none."""

import numpy as np
import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import nchw
from cafedcl.data.pixels import to_bytes

BYTES = np.random.default_rng(0).integers(0, 256, (40, 6, 6), dtype=np.uint8)
BYTES[0, 0, :2] = (0, 255)
FRACTIONS = BYTES / 255


def with_pixel(x, value):
    changed = x.copy()
    changed[3, 2, 1] = value
    return changed


@pytest.mark.parametrize("value", [1.0000001, 1.001, -1e-9, -0.001])
def test_a_rounding_error_beyond_0_to_1_is_clipped(value):
    read = to_bytes({"training": with_pixel(FRACTIONS, value)}, "own")["training"]
    expected = with_pixel(BYTES, 255 if value > 0.5 else 0)
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize("value", [255.4, -0.3])
def test_a_rounding_error_beyond_0_to_255_is_clipped(value):
    x = with_pixel(BYTES + np.float64(0.1) * (BYTES < 255), value)
    read = to_bytes({"training": x}, "own")["training"]
    np.testing.assert_array_equal(read, with_pixel(BYTES, 255 if value > 0 else 0))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_fractions_of_any_precision_give_the_bytes_they_were_made_of(kind):
    read = to_bytes({"training": FRACTIONS.astype(kind)}, "own")["training"]
    np.testing.assert_array_equal(read, BYTES)


def test_whole_numbers_are_kept_however_few_levels_they_have():
    sixteen = (BYTES // 16).astype(np.float64)
    np.testing.assert_array_equal(to_bytes({"training": sixteen}, "own")["training"], BYTES // 16)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (FRACTIONS * 1.7, "training pixels run from 0 to 1.7; expected 0 to 255, or fractions"),
        (FRACTIONS * 3, "run from 0 to 3; .*these could be either; save the images as uint8"),
        (with_pixel(FRACTIONS, 2.0), "run from 0 to 2; .*these could be either"),
        (with_pixel(FRACTIONS, 255.0), "run from 0 to 255; .*these could be either"),
        (FRACTIONS * 2 - 1, "run from -1 to 1; .*if they are normalised, undo that"),
        ((FRACTIONS - 0.5) / 0.2, "run from -2.5 to 2.5; .*if they are normalised, undo that"),
        (with_pixel(FRACTIONS, np.nan), "run from nan to nan; replace NaN and infinite values"),
        (with_pixel(FRACTIONS, np.inf), "run from 0 to inf; replace NaN and infinite values"),
        (with_pixel(FRACTIONS, -np.inf), "run from -inf to 1; replace NaN and infinite values"),
        (BYTES.astype(np.uint16) * 257, "run from 0 to 65535; expected 0 to 255"),
        (BYTES.astype(np.int8), "run from -128 to 127; expected 0 to 255"),
        (BYTES.astype(complex), "training pixels are of type complex128; expected numbers"),
        (BYTES.astype(str), "training pixels are of type <U3; expected numbers"),
        (BYTES.astype(object), "training pixels are of type object; expected numbers"),
    ],
)
def test_pixels_that_are_not_clear_are_refused_with_their_range(x, words):
    with pytest.raises(CafedclError, match=words):
        to_bytes({"training": x}, "own")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (BYTES, FRACTIONS),
        (FRACTIONS, BYTES),
        (FRACTIONS, BYTES.astype(np.float64)),
        (BYTES > 99, BYTES),
    ],
)
def test_training_and_test_images_are_never_read_by_different_rules(train, test):
    with pytest.raises(
        CafedclError, match=r"training pixels are .* and test pixels are .*one rule"
    ):
        to_bytes({"training": train, "test": test}, "own")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (BYTES, BYTES.astype(np.float32)),
        (BYTES.astype(np.int64), BYTES),
        (FRACTIONS, BYTES > 99),
        (FRACTIONS, np.zeros_like(FRACTIONS)),
        (BYTES, np.zeros_like(FRACTIONS)),
        (FRACTIONS, FRACTIONS[:0]),
    ],
)
def test_parts_of_different_types_may_follow_the_same_rule(train, test):
    read = to_bytes({"training": train, "test": test}, "own")
    np.testing.assert_array_equal(read["training"], BYTES)
    assert read["test"].dtype == np.uint8


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 6, 5, 1), (4, 1, 6, 5), (4, 6, 5, 3)])
def test_images_have_the_same_order_in_memory_wherever_they_come_from(shape):
    images = nchw(np.zeros(shape, np.uint8), "own")
    assert torch.from_numpy(images).stride() == torch.empty(images.shape).stride()
