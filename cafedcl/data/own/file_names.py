"""File names that look like several images of one patient, such as P012_1.png and P012_2.png."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePath

NUMBERED = re.compile(r"(?P<whose>.*\d.*)[ _.-]+[a-z]*\d{1,3}", re.IGNORECASE)
"""A name that has a number and ends in another, short one."""
FEW_IMAGES = (1.5, 30.0)
"""Plausible average numbers of images per patient: with fewer, names prove nothing; with more, the
names begin with something else, such as a class.
"""
FEWEST_PATIENTS = 5


def patients_remark(where: object, names: Sequence[str]) -> list[str]:
    """Return a remark if most file names look like several images per patient, or nothing."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        match = NUMBERED.fullmatch(PurePath(name).stem)
        if match is not None:
            found[match["whose"]].append(name)
    images = sum(map(len, found.values()))
    if len(found) < FEWEST_PATIENTS or 2 * images < len(names):
        return []
    low, high = FEW_IMAGES
    if not low <= images / len(found) <= high:
        return []
    one, other, *_ = next(group for group in found.values() if len(group) > 1)
    return [
        f"{where}: file names suggest several images of one patient, such as {one} and {other}; "
        "if so, name the patients in a column of a table (docs/data.md, groups), or test images "
        "have twins in training"
    ]
