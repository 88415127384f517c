"""The device that a run asks for, or why it is unavailable."""

import os
import time

import torch

from cafedcl.core.environment import QUEUES
from cafedcl.core.errors import CafedclError

MOST_QUEUES = "32"
"""The most queues that a GPU takes work from; with the default of 8, other streams would wait."""
TAKEN = ("out of memory", "busy or unavailable")
"""CUDA's words for a GPU that other programs use, or are just releasing."""
NO_SUCH_DEVICE = (
    "there is no such device; auto, cpu, cuda, cuda:1 (the second GPU) or mps is expected"
)
TRIALS = 10
"""How often a GPU that other programs use is tried, a second apart."""


def choose_device(name: str) -> torch.device:
    """Return the device a config asks for; raise CafedclError if it is unavailable."""
    if name != "cpu":
        os.environ.setdefault(QUEUES, MOST_QUEUES)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise CafedclError(f"engine.device = '{name}': {NO_SUCH_DEVICE}") from None
    try:
        open_device(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        if is_taken(error):
            raise CafedclError(
                f"engine.device = '{name}': other programs take all of it: {reason}; execute fewer "
                "runs at a time (--jobs), or wait until they end"
            ) from None
        raise CafedclError(
            f"engine.device = '{name}': this machine cannot use it: {reason}; choose another one, "
            "such as cpu"
        ) from None
    return device


def missing_device(name: str) -> str | None:
    """Return why this machine has no such device, or None; unlike `choose_device`, it does not open
    the device, so it takes none of its memory.
    """
    if name == "auto":
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        return NO_SUCH_DEVICE
    number = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }.get(device.type, 0)
    if (device.index or 0) < number:
        return None
    return f"this machine has {number or 'no'} {device.type} device{'s' if number > 1 else ''}"


def open_device(device: torch.device) -> None:
    """Put a first number on a device; if other programs use it, try again for some seconds.

    NVIDIA's Multi-Process Service refuses a program that starts just as the last ones end, as
    happens if one study follows another: it reports the GPU as busy, or its memory as full.
    """
    for trials_left in reversed(range(TRIALS)):
        try:
            torch.zeros(1, device=device)
        except RuntimeError as error:
            if not is_taken(error) or not trials_left:
                raise
            time.sleep(1)
        else:
            return


def is_taken(error: Exception) -> bool:
    """Return whether an error means that other programs use a device."""
    return any(words in str(error) for words in TAKEN)
