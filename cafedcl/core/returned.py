"""What steps of a method or an augmenter return, checked where it is still known which step it was.

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
        """What a message calls it, such as ``method fedavg``."""


def wrong_result(owner: Owner, step: str, returned: str, expected: str) -> CafedclError:
    """Return the error for a step that returns something else than it should."""
    place = place_of(getattr(owner, step))
    return CafedclError(f"{owner.title}: its {step} returns {returned}; {expected}{place}")


def kind_of(value: object) -> str:
    """Return what a message says of a value that has another shape, or is no tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return type(value).__name__


def named_tensors(owner: Owner, step: str, found: object, each: str = "a tensor") -> Tensors:
    """Return what a step returned; raises CafedclError if it is no dict of tensors by name."""
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
