"""The result files of experiments, for tests of the pages that tell about them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import scipy

HOME = Path(__file__).parents[1]
RESULTS = HOME / "experiments" / "results"


class Page:
    """A page of the documentation, whose sentences are checked."""

    def __init__(self, name: str) -> None:
        self.content = (HOME / "docs" / f"{name}.md").read_text(encoding="utf-8")
        self.prose = re.sub(r"<!-- table:.*?<!-- /table -->", "", self.content, flags=re.DOTALL)
        """The page without its generated tables."""
        self.text = " ".join(self.prose.split())

    def said(self, *sentences: str) -> None:
        """Assert that the page says these sentences."""
        for sentence in sentences:
            assert sentence in self.text, sentence


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@cache
def by_seed(name: str, setting: str, method: str, score: str) -> dict[int, float]:
    """A score of the unchanged method in %, by seed."""
    protocol, key = score.split(".")
    return {
        one["seed"]: 100 * one[protocol][key]
        for one in result(name)["runs"]
        if (one["setting"], one["method"], one["changed"]) == (setting, method, {})
        and one[protocol].get(key) is not None
    }


def average(name: str, setting: str, method: str, score: str) -> float:
    return mean(by_seed(name, setting, method, score).values())


def gaps(name: str, setting: str, one: str, other: str, score: str) -> list[float]:
    """Differences on the seeds that both methods have."""
    first = by_seed(name, setting, one, score)
    second = by_seed(name, setting, other, score)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def p_of(differences: list[float]) -> float:
    return float(scipy.stats.ttest_1samp(differences, 0).pvalue)


def holm(ps: dict[str, float], wanted: str) -> float:
    """The p-value of one comparison after Holm's correction over all."""
    corrected = 0.0
    for rank, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        corrected = max(corrected, min(1.0, (len(ps) - rank) * ps[name]))
        if name == wanted:
            return corrected
    raise KeyError(wanted)


def settings_of(name: str) -> list[str]:
    return list(dict.fromkeys(one["setting"] for one in result(name)["runs"]))


def methods_of(name: str, setting: str) -> list[str]:
    return list(
        dict.fromkeys(one["method"] for one in result(name)["runs"] if one["setting"] == setting)
    )


def tuned(score: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The federated methods of the study of long tails, per setting; a higher value is better.

    Only seeds that all methods have count.
    """
    sign = -1 if score.endswith("std") else 1
    for setting in settings_of("long_tail-short"):
        seeds = seeds_of_all(setting)
        found = {
            method: sign * mean(its[seed] for seed in seeds)
            for method in methods_of("long_tail-short", setting)
            if method not in ("local", "central")
            and (its := by_seed("long_tail-short", setting, method, score))
        }
        yield setting, found


def seeds_of_all(setting: str) -> set[int]:
    """The seeds that all methods of the study of long tails have in a setting."""
    here = [one for one in result("long_tail-short")["runs"] if one["setting"] == setting]
    return {
        seed
        for seed in range(5)
        if {one["method"] for one in here} == {one["method"] for one in here if one["seed"] == seed}
    }


def place(found: dict[str, float]) -> int:
    """The place of `cafedcl:best` among the baselines; CAFedCL with its defaults is not counted."""
    ours = found["cafedcl:best"]
    return 1 + sum(value > ours for method, value in found.items() if method != "cafedcl")


def baselines(found: dict[str, float]) -> list[str]:
    """The baselines, best first."""
    return [it for it in sorted(found, key=lambda it: -found[it]) if not it.startswith("cafedcl")]


def leads(score: str, setting: str, baseline: str) -> list[float]:
    """How far `cafedcl:best` is ahead, by seed, on the seeds that all methods have."""
    seeds = seeds_of_all(setting)
    ours, others = (
        by_seed("long_tail-short", setting, method, score) for method in ("cafedcl:best", baseline)
    )
    return [ours[seed] - others[seed] for seed in sorted(seeds)]


def tuned_p_values(score: str) -> dict[str, float]:
    """The p-values of `cafedcl:best` against each setting's best baseline, not corrected."""
    return {
        setting: p_of(leads(score, setting, baselines(found)[0])) for setting, found in tuned(score)
    }
