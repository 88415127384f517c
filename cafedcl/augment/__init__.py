"""Tail augmentation by name, and your own by import path."""

import importlib
import inspect

from cafedcl.augment.base import Augmenter, NoTail, TailOptions
from cafedcl.config.options import refuse_unreadable
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import check_steps, import_path, nearest_name

AUGMENTERS = {
    "none": "base:Nothing",
    "resample": "base:Resample",
    "mixup": "mix:MixUp",
    "cutmix": "mix:CutMix",
    "gaussian": "gaussian:Gaussian",
    "gan": "gan:GAN",
}
"""Module and class of each augmenter, imported when needed."""


def find_augmenter(name: str) -> type[Augmenter]:
    """Return an augmenter's class, for ``gan`` or ``package.module:Class``."""
    if name in AUGMENTERS:
        module, _, cls = AUGMENTERS[name].partition(":")
        found: type[Augmenter] = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
        return found
    if ":" not in name:
        raise CafedclError(
            f"augment '{name}': there is no such augmentation; "
            f"{nearest_name(name, list(AUGMENTERS))}"
        )
    found = import_path(name, "augment")
    if not (inspect.isclass(found) and issubclass(found, Augmenter)):
        raise CafedclError(
            f"augment '{name}': it is not a class derived from cafedcl.extend.Augmenter"
        )
    if not {TailOptions, NoTail} & {*found.Options.__mro__}:
        raise CafedclError(
            f"augment '{name}': its options class {found.Options.__name__} is not derived from "
            "cafedcl.extend.TailOptions, which has the options of every augmentation; "
            f"write class {found.Options.__name__}(TailOptions)"
        )
    refuse_unreadable(found.Options, f"augment '{name}'")
    check_steps(found, Augmenter, f"augment '{name}'", "make")
    return found
