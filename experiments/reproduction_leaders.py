"""Tables of a study with many settings: every method in every setting, and who leads where."""

from collections.abc import Sequence
from statistics import mean

from reproduction_notes import rows_text, seeds_text
from reproduction_statistics import compared, holm, number
from reproduction_tables import (
    OURS,
    REFERENCES,
    base_of,
    by_method,
    higher_is_better,
    marked,
    methods_of,
    title_of,
)

from cafedcl.compare.results import (
    ResultRow,
    by_setting,
    scores,
    settings_with_shared_seeds,
    shared_seeds,
)

LEADERS = ("server.balanced", "own.client_mean", "server.client_std", "own.client_std")
"""What methods are compared by. Where the test set is balanced, balanced accuracy is accuracy."""
SHOWN = (*LEADERS, "own.held_mean", "own.prior_mean", "server.accuracy")


def means_of(records: Sequence[ResultRow], score: str) -> dict[str, float]:
    """Return the mean over seeds of every federated method that has this score.

    Training without federation, or on all data in one place, is a reference and never ranked.
    """
    found = {
        name: scores(records, name, score) for name in methods_of(records) if name not in REFERENCES
    }
    return {name: mean(its.values()) for name, its in found.items() if its}


def settings_table(records: Sequence[ResultRow]) -> str:
    """Return a table per score: methods × settings, the best of each setting in bold."""
    settings = list(settings_with_shared_seeds(records))
    text = ""
    for score in SHOWN:
        columns = [marked(by_method(mine), [score]) for _, mine in settings]
        lines = [
            [f"`{name}`", *(column.get(name, ["–"])[0] for column in columns)]
            for name in methods_of(records)
        ]
        text += f"**{title_of(score)}**\n\n"
        text += rows_text(["method", *(setting for setting, _ in settings)], lines)
    return text


def leaders_table(records: Sequence[ResultRow]) -> str:
    """Return, per setting and score: `cafedcl:best`, its rank, and the best baseline.

    With enough seeds, the p-value of their difference follows, corrected by Holm over all settings.
    """
    ours = OURS[-1]
    settings = [
        (name, mine)
        for name, mine in settings_with_shared_seeds(records)
        if ours in methods_of(mine)
    ]
    lines = [[f"`{name}`"] for name, _ in settings]
    for score in LEADERS:
        sign = 1 if higher_is_better(score) else -1
        texts = []
        tests = []
        for _, mine in settings:
            found = means_of(mine, score)
            baselines = {name: it for name, it in found.items() if base_of(name) != base_of(ours)}
            if ours not in found or not baselines:
                texts.append("–")
                tests.append(None)
                continue
            best = max(baselines, key=lambda name: sign * baselines[name])
            rank = 1 + sum(sign * it > sign * found[ours] for it in baselines.values())
            texts.append(
                f"{found[ours]:.1f} ({rank} of {len(baselines) + 1}); "
                f"`{best}` {baselines[best]:.1f}"
            )
            test = compared(scores(mine, ours, score), scores(mine, best, score))
            tests.append(None if test is None else test[2])
        for line, text, p in zip(lines, texts, holm(tests), strict=True):
            line.append(text if p is None else f"{text}; p {number(p)}")
    return rows_text(["setting", *map(title_of, LEADERS)], lines)


def missing_text(records: Sequence[ResultRow]) -> str:
    """Return which methods and seeds are not there in which settings; empty if none is missing."""
    wanted = methods_of(records)
    absent = []
    settings: dict[str, list[str]] = {}
    for setting, mine in by_setting(records):
        names = [f"`{name}`" for name in wanted if name not in methods_of(mine)]
        if names:
            absent.append(f"{setting}: {', '.join(names)}")
        shared = shared_seeds(mine)
        settings.setdefault(seeds_text(sorted(shared)) if shared else "none", []).append(setting)
    text = f"Not finished: {'; '.join(absent)}.\n\n" if absent else ""
    if len(settings) > 1:
        most = max(settings, key=lambda seeds: len(settings[seeds]))
        others = [
            f"{seeds} in `{'`, `'.join(names)}`"
            for seeds, names in settings.items()
            if seeds != most
        ]
        text += (
            f"Seeds that all methods have, which are used here: {most}; {', '.join(others)}.\n\n"
        )
    return text
