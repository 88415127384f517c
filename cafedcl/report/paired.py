"""Comparisons of methods on the seeds that they share."""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module

ROUNDING = 5e-4
"""Points by which equal differences may vary: results files keep fractions with six digits."""


def on_shared_seeds(scores: Mapping[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """Return the scores of the seeds that all rows have, if there are any; otherwise all scores.

    With different seeds, rows would be compared by means over different splits.
    """
    scored = [set(values) for values in scores.values() if values]
    shared = set.intersection(*scored) if scored else set()
    if not shared:
        return dict(scores)
    return {
        label: {seed: values[seed] for seed in values if seed in shared}
        for label, values in scores.items()
    }


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return our score minus theirs for every seed that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def p_values(differences: Sequence[float]) -> tuple[float | None, float | None, str]:
    """Return the p-values of a paired t-test and of Wilcoxon's test, or why there are none.

    ``differences`` are in points, that is in hundredths.
    Both tests are two-sided. A p-value is None if it is undefined.
    """
    try:
        stats = import_module("scipy.stats")
    except ImportError:
        return None, None, "significance needs scipy (pip install scipy)"
    # If all differences are equal, their spread is only rounding, which scipy would test.
    varied = max(differences) - min(differences) > ROUNDING
    t = float(stats.ttest_1samp(differences, 0.0).pvalue) if varied else None
    rounded = [round(difference / ROUNDING) for difference in differences]
    ranked = float(stats.wilcoxon(rounded).pvalue) if any(rounded) else None
    if t is not None and not math.isfinite(t):
        t = None
    return t, ranked, ""
