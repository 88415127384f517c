"""Checks of what steps of a method or an augmenter return, made while the step is still known.

A mistake that is found later, far from the step, would name neither the step nor its file.
"""

from typing import Protocol

from torch import Tensor

from cafedcl.core.errors import CafedclError, place_of
from cafedcl.core.tensors import Tensors


class Owner(Protocol):
    """A method or an augmenter, whose steps a user may have written."""

    @property
    def title(self) -> str:
        """Its name in messages, such as ``method fedavg``."""


def wrong_result(owner: Owner, step: str, returned: str, expected: str) -> CafedclError:
    """Return the error for a step that returns something other than it should."""
    place = place_of(getattr(owner, step))
    return CafedclError(f"{owner.title}: its {step} returns {returned}; {expected}{place}")


def kind_of(value: object) -> str:
    """Return how messages describe a wrong value: by its shape, or by its type if not a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return type(value).__name__


def named_tensors(owner: Owner, step: str, found: object, each: str = "a tensor") -> Tensors:
    """Return what a step returned; raises CafedclError unless it is a dict of tensors by name."""
    if not isinstance(found, dict):
        expected = "a dict of tensors is expected"
        raise wrong_result(owner, step, type(found).__name__, expected)
    for name, value in found.items():
        if not isinstance(name, str):
            raise wrong_result(owner, step, f"the name {name!r}", "a text is expected")
        if not isinstance(value, Tensor):
            what = f"{type(value).__name__} as '{name}'"
            raise wrong_result(owner, step, what, f"{each} is expected")
    return found
