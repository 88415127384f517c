"""Every number in a sentence of docs/cafedcl-best.md, computed again from the result files.

If a test fails after new runs, read the sentence: its number, and perhaps what it says, is out of
date.
"""

from statistics import mean
from typing import Any

import pytest
from measured import (
    Page,
    baselines,
    holm,
    p_of,
    place,
    result,
    settings_of,
    tuned,
    tuned_p_values,
)

PAGE = Page("cafedcl-best")
said = PAGE.said
PRACTICAL, TAIL, SKIN = SETTINGS = ("cifar10-practical", "cifar10-ir50", "ham10000-sources")
SERVER, SERVER_STD, OWN = "server.balanced", "server.client_std", "own.client_mean"
SCORES = (SERVER, SERVER_STD, OWN, "own.client_std")
RUNS = result("best_parts-short")["runs"]


def label(changed: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in changed.items())


CHANGES = list(dict.fromkeys(label(one["changed"]) for one in RUNS if one["changed"]))


def differences(change: str, setting: str, score: str) -> list[float]:
    """What a change adds to a score, by seed."""
    protocol, key = score.split(".")
    found = {
        (label(one["changed"]), one["seed"]): 100 * one[protocol][key]
        for one in RUNS
        if one["setting"] == setting
    }
    return [found[change, seed] - found["", seed] for seed in range(5)]


def is_significant(change: str, setting: str, score: str) -> bool:
    ps = {it: p_of(differences(it, setting, score)) for it in CHANGES}
    return holm(ps, change) < 0.05


def told(change: str, score: str, *settings: str) -> str:
    """The sizes of differences in some settings, as the page writes them."""
    words = []
    for setting in settings:
        star = "*" if is_significant(change, setting, score) else ""
        words.append(f"{abs(mean(differences(change, setting, score))):.1f}{star}")
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def signs(change: str, score: str, *settings: str) -> set[bool]:
    """Whether a change raises a score, in some settings."""
    return {mean(differences(change, setting, score)) > 0 for setting in settings}


def test_the_settings_and_changes_are_those_of_the_study() -> None:
    assert settings_of("best_parts-short") == list(SETTINGS)
    assert len(CHANGES) == 8
    said("correction over the eight changes", "a paired t-test over five seeds")


def test_fixed_anchors() -> None:
    change = "method.anchors=averaged"
    said(
        f"With averaged anchors, balanced accuracy falls by {told(change, SERVER, *SETTINGS)}, "
        f"and the client mean of own models by {told(change, OWN, *SETTINGS)}.",
        f"the client std of the server's model grows by {told(change, SERVER_STD, TAIL)}.",
    )
    assert signs(change, SERVER, *SETTINGS) == signs(change, OWN, *SETTINGS) == {False}
    assert signs(change, SERVER_STD, TAIL) == {True}
    for setting in SETTINGS:
        lost = {it: mean(differences(it, setting, SERVER)) for it in CHANGES}
        assert min(lost, key=lambda it: lost[it]) == change


def test_the_fitted_classifier() -> None:
    change = "method.inference=anchors"
    said(
        f"balanced accuracy falls by {told(change, SERVER, *SETTINGS)}, and the client std grows "
        f"by {told(change, SERVER_STD, *SETTINGS)}."
    )
    assert signs(change, SERVER, *SETTINGS) == {False}
    assert signs(change, SERVER_STD, *SETTINGS) == {True}
    for setting in SETTINGS:
        assert abs(mean(differences(change, setting, OWN))) < 0.2


def test_higher_targets_for_rare_classes() -> None:
    change = "method.rare_gain=0.0"
    said(
        f"balanced accuracy falls by {told(change, SERVER, TAIL, SKIN)} where there is a long "
        f"tail, and the client std grows by {told(change, SERVER_STD, TAIL, SKIN)}."
    )
    assert signs(change, SERVER, TAIL, SKIN) == {False}
    assert signs(change, SERVER_STD, TAIL, SKIN) == {True}
    for score in SCORES:
        assert not is_significant(change, PRACTICAL, score)


def test_the_temperature() -> None:
    change = "method.tau=0.1"
    said(
        f"balanced accuracy falls by {told(change, SERVER, PRACTICAL, TAIL)} there, and the client "
        f"mean of own models by {told(change, OWN, PRACTICAL, TAIL)}."
    )
    assert signs(change, SERVER, PRACTICAL, TAIL) == signs(change, OWN, PRACTICAL, TAIL) == {False}
    for score in SCORES:
        assert not is_significant(change, SKIN, score)


def test_server_momentum() -> None:
    change = "server.momentum=0.0"
    said(
        f"their client mean falls by {told(change, OWN, *SETTINGS)}.",
        f"falls by {told(change, SERVER, PRACTICAL, TAIL)} on CIFAR-10, and rises by "
        f"{told(change, SERVER, SKIN)} on skin lesions, where its client std is "
        f"{told(change, SERVER_STD, SKIN)} smaller.",
    )
    assert signs(change, OWN, *SETTINGS) == signs(change, SERVER, PRACTICAL, TAIL) == {False}
    assert signs(change, SERVER, SKIN) == {True}
    assert signs(change, SERVER_STD, SKIN) == {False}


def test_the_class_prior() -> None:
    change = "method.calibrate=0.0"
    said(
        f"without it, balanced accuracy falls by {told(change, SERVER, *SETTINGS)}.",
        f"the client std would be {told(change, SERVER_STD, PRACTICAL)} larger.",
        f"the client std would be {told(change, SERVER_STD, SKIN)} smaller.",
    )
    assert signs(change, SERVER, *SETTINGS) == signs(change, SERVER_STD, SKIN) == {False}
    assert signs(change, SERVER_STD, PRACTICAL) == {True}
    # "without the class prior both models have a smaller client std", on skin lesions
    assert signs(change, "own.client_std", SKIN) == {False}


def test_weights() -> None:
    changes = [it for it in CHANGES if it.startswith("method.weights=")]
    assert len(changes) == 2
    most = max(abs(mean(differences(it, where, SERVER))) for it in changes for where in SETTINGS)
    said(f"balanced accuracy changes by at most {most:.1f} and no score significantly.")
    for change in changes:
        for setting in SETTINGS:
            assert not any(is_significant(change, setting, score) for score in SCORES)


def test_how_far_it_is_from_winning_everywhere() -> None:
    def standing(score: str) -> tuple[int, list[str], list[str]]:
        """In how many settings it is first, and where it is significantly first or behind."""
        ps = tuned_p_values(score)
        found = dict(tuned(score))
        significant = [it for it in ps if holm(ps, it) < 0.05]
        first = [it for it in found if place(found[it]) == 1]
        return (
            len(first),
            [it for it in significant if it in first],
            [it for it in significant if it not in first],
        )

    number, won, lost = standing(SERVER)
    assert not lost
    assert all(it.startswith("gtsrb") for it in won)
    said(
        f"first in {number} of 9 settings, and significantly so in {len(won)}, those of GTSRB.",
    )
    number, won, lost = standing(OWN)
    said(f"own models are first in {number}, significantly so in {len(won)}, and significantly")
    assert [baselines(dict(tuned(OWN))[it])[0] for it in lost] == ["spherefed"]
    assert [standing(it)[2] for it in (SERVER_STD, "own.client_std")] == [[], [SKIN]]


@pytest.mark.parametrize(
    ("tau", "lam_align", "inference", "words"),
    [
        (0.2, None, None, "prediction by the anchors, {}, and the same"),
        (0.2, 0.0, "fitted", "with the fitted classifier, {}."),
        (0.2, 0.0, "fitted", "in the same stage: {} and"),
        (0.5, 0.0, "fitted", "and {} instead of"),
        (0.3, 0.0, "fitted", "instead of {}."),
    ],
)
def test_what_was_tried_in_tuning(
    tau: float, lam_align: float | None, inference: str | None, words: str
) -> None:
    wanted = {
        "method.anchors": "fixed",
        "method.tau": tau,
        "method.calibrate": 0.5,
        "method.lam_align": lam_align,
        "method.inference": inference,
        "method.rare_gain": None,
        "server.momentum": 0.5,
    }
    (value,) = [
        it["value"]
        for it in result("long-tail-tuning")["methods"]["cafedcl"]["candidates"]
        if all(it["options"].get(name) == option for name, option in wanted.items())
    ]
    said(words.format(f"{100 * value:.1f}"))
