"""Statistics of docs/reproduction.md: paired differences, corrected p-values, and verdicts."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from cafedcl.report.paired import p_values, paired

SIGNIFICANT = 0.05
"""A difference is significant if its p-value is below this."""
FEWEST_SEEDS = 3
"""The fewest shared seeds for a test."""

Statistics = tuple[float, float, float | None]
"""Mean difference in points, its standard error, and its p-value."""


def compared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Statistics | None:
    """Return the difference of two scores on their shared seeds; None with too few seeds.

    There is no p-value if the differences do not vary.
    """
    gaps = paired(ours, theirs)
    if len(gaps) < FEWEST_SEEDS:
        return None
    return mean(gaps), stdev(gaps) / math.sqrt(len(gaps)), p_values(gaps)[0]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values with Holm's correction for multiple tests."""
    order = sorted(
        (at for at, value in enumerate(values) if value is not None),
        key=lambda at: values[at] or 0.0,
    )
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * (values[at] or 0.0)))
        corrected[at] = largest
    return corrected


def number(value: float | None) -> str:
    """Return a p-value as text."""
    if value is None:
        return "n/a"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def verdict(gap: Statistics | None, leads: bool, higher: bool) -> str:
    """Return whether a method is the best, from its difference to the best other method."""
    if gap is None or gap[2] is None:
        return "cannot be judged"
    sure = gap[2] < SIGNIFICANT and (gap[0] > 0) == (leads == higher)
    if leads:
        return "**holds**" if sure else "ahead, not significantly"
    return "**does not hold**" if sure else "not ahead, not significantly behind"
