"""What labels are in scope: one class per image."""

import ast
from collections.abc import Sequence

from cafedcl.core.errors import CafedclError

SCOPE = (
    "in scope is single-label image classification: every image has one class; several labels per "
    "image and measured values are not"
)
SEPARATORS = ("|", ";", ",")
BRACKETS = ("[]", "()", "{}")
FEW_VALUES = 20
"""Up to this many fractions may be classes, such as grades 0.5, 1.0, 1.5, if used often."""


def refuse_other_tasks(where: object, labels: Sequence[str]) -> None:
    """Refuse labels that are lists, or measured values, with a sentence on what is in scope."""
    distinct = {label.strip() for label in labels}
    for label in sorted(distinct):
        if _is_list(label, distinct):
            raise CafedclError(f"{where}: the label '{label}' is a list; {SCOPE}")
    numbers = [number for number in map(_number, distinct) if number is not None]
    fractions = [number for number in numbers if number != round(number)]
    if len(numbers) < len(distinct) or not fractions:
        return
    if len(distinct) > FEW_VALUES or 2 * len(distinct) > len(labels):
        raise CafedclError(
            f"{where}: the labels are {len(distinct)} numbers such as {fractions[0]:g}; {SCOPE}"
        )


def _is_list(label: str, labels: set[str]) -> bool:
    """Return whether a label consists of several: a list in brackets, or other labels joined."""
    if any(label[:1] == pair[0] and label[-1:] == pair[1] for pair in BRACKETS):
        # "[a, b]" and "['a']" are lists; a name such as "(benign)" or "[/]" is not.
        return any(separator in label for separator in SEPARATORS) or _is_literal(label)
    for separator in SEPARATORS:
        parts = [part.strip() for part in label.split(separator)]
        # "Effusion|Mass" is a list if Effusion or Mass is a label; else it is a name.
        if len(parts) > 1 and any(part in labels for part in parts):
            return True
    return False


def _is_literal(label: str) -> bool:
    """Return whether a label is written like a list, tuple, set or dict of Python or JSON."""
    try:
        return isinstance(ast.literal_eval(label), list | tuple | set | dict)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    # Labels such as "nan" and "inf" are names.
    return number if abs(number) < float("inf") else None
