"""Data sets of a function of your own, with everything that can be wrong with them."""

import dataclasses
import sys
from types import ModuleType

import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset

X = torch.zeros(6, 1, 4, 4, dtype=torch.uint8)
Y = torch.tensor([0, 1, 0, 1, 0, 1])
GOOD = Dataset.of(X, Y, X[:2], Y[:2], ("a", "b"))


def changed(**parts):
    return dataclasses.replace(GOOD, **parts)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("loaders_of_my_own")
    made.__spec__ = None
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_good_function_is_called(module, load):
    module.load = lambda: GOOD
    assert load("loaders_of_my_own:load") is GOOD


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\nb"),
        KeyError("x"),
        FileNotFoundError("f"),
        AssertionError(),
        SystemExit(1),
        MemoryError(),
        CafedclError("own words"),
        StopIteration(),
        RecursionError("deep"),
        type("Odd", (Exception,), {})("odd"),
    ],
)
def test_whatever_a_function_raises_is_one_line(error, module, load):
    def fail():
        raise error

    module.load = fail
    with pytest.raises(CafedclError) as caught:
        load("loaders_of_my_own:load")
    message = str(caught.value)
    assert message.startswith("data set 'loaders_of_my_own:load': the function failed: ")
    assert "\n" not in message
    if not isinstance(error, CafedclError):
        assert type(error).__name__ in message
        assert "test_load.py, line" in message


def test_a_function_that_needs_arguments_is_one_line(module, load):
    module.load = lambda path: GOOD
    with pytest.raises(CafedclError, match=r"TypeError: .*missing 1 required positional"):
        load("loaders_of_my_own:load")


def test_something_that_is_no_function_is_refused(module, load):
    module.load = GOOD
    with pytest.raises(CafedclError, match="a function without arguments, not Dataset"):
        load("loaders_of_my_own:load")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "it must return a cafedcl Dataset, not NoneType"),
        ((X, Y, X, Y), "it must return a cafedcl Dataset, not tuple"),
        (Dataset, "it must return a cafedcl Dataset, not type"),
        (changed(train_x=X.numpy()), "must be tensors"),
        (changed(train_x=X.float()), r"torch.float32 of shape \(6, 1, 4, 4\); expected uint8"),
        (changed(test_x=X[:2, 0]), r"uint8 of shape \(2, 4, 4\); expected uint8 of shape"),
        (changed(train_x=X[:, :0]), "expected uint8 of shape"),
        (changed(test_x=X[:2].permute(0, 2, 3, 1)), r"use permute\(0, 3, 1, 2\)"),
        (changed(train_y=Y.float()), "labels, owners or groups are torch.float32"),
        (changed(train_y=Y[:, None]), r"owners or groups are torch.int64 of shape \(6, 1\)"),
        (changed(train_y=Y[:5]), "6 training images but 5 labels"),
        (changed(train_y=Y + 1), "label 2 of training image 1 is out of range"),
        (changed(test_y=Y[:2] - 1), "label -1 of test image 0 is out of range"),
        (changed(test_x=X[:0], test_y=Y[:0]), "there are no test images"),
        (changed(test_x=X[:2, :, :3]), "differ in shape, 1×4×4 and 1×3×4"),
        (changed(names=("a", "a")), "two classes are named 'a'"),
        (changed(names=("a", "b", "c")), "class 'c' has no training image"),
        (changed(names=("a", 2)), "class names must be a tuple of texts"),
        (changed(names="ab"), "class names must be a tuple of texts"),
        (changed(std=torch.zeros(1, 1, 1, 1)), "std greater than 0"),
        (changed(mean=torch.full((1, 1, 1, 1), torch.nan)), "must be finite"),
        (changed(owners=Y[:3]), "6 training images but 3 of them have a client"),
        (changed(owners=Y * 2), "client '1' has no training image"),
        (changed(owners=Y - 1), "clients are numbered -1 to 0"),
        (changed(groups=Y[:4]), "6 training images but 4 of them have a group"),
        (
            changed(groups=torch.arange(6), test_groups=torch.tensor([7, 3])),
            "group 3 has images in training and in test; move them to one side",
        ),
        (changed(owners=Y, owner_names=("k",)), "clients are numbered 0 to 1, but 1 are named"),
    ],
)
def test_a_function_that_returns_the_wrong_thing_is_told_so(returned, words, module, load):
    module.load = lambda: returned
    with pytest.raises(CafedclError, match=words) as caught:
        load("loaders_of_my_own:load")
    assert "\n" not in str(caught.value)
