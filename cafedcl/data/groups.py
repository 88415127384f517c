"""Groups of images that belong together, such as all images of a patient.

A split assigns and holds out whole groups. Every group is then one unit, with one label: the class
of its images that is rarest in the data, so that rare classes are assigned and held out evenly.
"""

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.arrays import Ints, Mask

NO_GROUPS: Ints = np.zeros(0, dtype=np.int64)


def no_numbers() -> Tensor:
    """Return an empty tensor of whole numbers: data without groups, or without clients."""
    return torch.zeros(0, dtype=torch.int64)


def to_units(labels: Ints, groups: Ints) -> tuple[Ints, Ints]:
    """Return the unit of every image, numbered from 0, and the label of every unit."""
    _, unit = np.unique(groups, return_inverse=True)
    frequency = np.bincount(labels)
    # The classes from the rarest to the most frequent, and the place of each in this order.
    classes = np.argsort(frequency, kind="stable")
    place = np.empty_like(classes)
    place[classes] = np.arange(len(classes))
    rarest = np.full(unit.max(initial=-1) + 1, len(classes))
    np.minimum.at(rarest, unit, place[labels])
    return unit, classes[rarest]


def unit_owners(unit: Ints, owners: Ints) -> Ints:
    """Return the client of every unit; the number after the last client where it has several."""
    units = unit.max(initial=-1) + 1
    lowest = np.full(units, np.iinfo(np.int64).max)
    highest = np.full(units, np.iinfo(np.int64).min)
    np.minimum.at(lowest, unit, owners)
    np.maximum.at(highest, unit, owners)
    return np.where(lowest == highest, lowest, owners.max(initial=-1) + 1)


def without_last_ones(held: Mask, unit: Ints, keys: Ints) -> Mask:
    """Return which units are held out, less those that would leave nothing of a key for training.

    ``keys`` is a number per image, such as its class. A group of several classes may hold all
    images of a class that it is not counted under.
    """
    held = held.copy()
    images = np.bincount(keys)
    left = np.bincount(keys[~held[unit]], minlength=len(images))
    for key in np.flatnonzero((images > 0) & (left == 0)):
        held[unit[np.argmax(keys == key)]] = False
    return held


def broken_group(groups: Ints, places: Ints) -> int | None:
    """Return a group whose images are at several places (−1: at none), or None."""
    used = places >= 0
    if not used.any():
        return None
    names, unit = np.unique(groups[used], return_inverse=True)
    broken = np.flatnonzero(unit_owners(unit, places[used]) > places.max())
    return int(names[broken[0]]) if len(broken) else None
