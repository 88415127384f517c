"""Every number in a sentence of docs/cafedcl-best.md, computed again from the result files.

If a test fails after new runs, read the sentence: its number, and perhaps what it says, is out of
date.
"""

import runpy
from statistics import mean, stdev
from typing import Any

import pytest
from measured import (
    HOME,
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
BEST = "cafedcl:best"
WEIGHT = "method.lam_distill"
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


def value(change: str, setting: str, score: str) -> list[float]:
    """A score of the changed method, by seed; of the unchanged one if nothing is changed."""
    protocol, key = score.split(".")
    return [
        100 * one[protocol][key]
        for one in RUNS
        if (one["setting"], label(one["changed"])) == (setting, change)
    ]


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
    assert len(CHANGES) == 9
    said("correction over the nine changes", "a paired t-test over five seeds")
    figure = runpy.run_path(str(HOME / "docs" / "make_reproduction_images.py"))
    assert set(figure["PARTS"]) == set(CHANGES)
    lost = mean(differences("method.anchors=averaged", SKIN, OWN))
    assert lost < figure["LEAST_DRAWN"][OWN]
    said(f"With averaged anchors, own models lose {-lost:.0f} points on skin lesions")


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
    # "matters most where classes are rare"
    plain, tail, skin = (mean(differences(change, setting, SERVER)) for setting in SETTINGS)
    assert max(tail, skin) < plain


def test_fixed_anchors() -> None:
    change = "method.anchors=averaged"
    said(
        f"With averaged anchors, balanced accuracy falls by {told(change, SERVER, *SETTINGS)}, and "
        f"the client std grows by {told(change, SERVER_STD, *SETTINGS)}."
    )
    assert signs(change, SERVER, *SETTINGS) == {False}
    assert signs(change, SERVER_STD, *SETTINGS) == {True}
    on_skin = [one for one in RUNS if one["setting"] == SKIN and label(one["changed"]) == change]
    assert [one["server"]["worst_class"] for one in on_skin] == [0] * 5


def test_the_temperature() -> None:
    change = "method.tau=0.1"
    said(
        f"balanced accuracy falls by {told(change, SERVER, PRACTICAL, TAIL)} there, and the client "
        f"mean of own models by {told(change, OWN, PRACTICAL, TAIL)}.",
        f"On skin lesions it falls by {told(change, SERVER, SKIN)}, and the client std grows by "
        f"{told(change, SERVER_STD, SKIN)}.",
    )
    assert signs(change, SERVER, *SETTINGS) == signs(change, OWN, PRACTICAL, TAIL) == {False}
    assert signs(change, SERVER_STD, SKIN) == {True}


def test_server_momentum() -> None:
    change = "server.momentum=0.0"
    said(
        f"balanced accuracy falls by {told(change, SERVER, PRACTICAL, TAIL)} on CIFAR-10, and the "
        f"client mean of own models by {told(change, OWN, PRACTICAL, TAIL)}.",
        f"balanced accuracy rises by {told(change, SERVER, SKIN)} without it, and the client std "
        f"is {told(change, SERVER_STD, SKIN)} smaller.",
    )
    assert signs(change, SERVER, PRACTICAL, TAIL) == signs(change, OWN, PRACTICAL, TAIL) == {False}
    assert signs(change, SERVER, SKIN) == {True}
    assert signs(change, SERVER_STD, SKIN) == {False}


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


def test_distillation() -> None:
    change = "method.lam_distill=0.0"
    said(
        f"Without it, balanced accuracy falls by {told(change, SERVER, *SETTINGS)}, and the client "
        f"mean of own models by {told(change, OWN, *SETTINGS)}."
    )
    assert signs(change, SERVER, *SETTINGS) == signs(change, OWN, *SETTINGS) == {False}


def with_error(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


def test_how_distillation_was_chosen() -> None:
    candidates = result("distill-tuning")["methods"][BEST]["candidates"]
    found = {it["options"][WEIGHT]: it["values"] for it in candidates}
    assert set(found) == {0.0, 0.3, 1.0, 3.0}
    assert all(len(values) == 15 for values in found.values())

    def ahead(other: float) -> list[float]:
        return [100 * (one - two) for one, two in zip(found[3.0], found[other], strict=True)]

    gains = [mean(ahead(0.0)[first : first + 5]) for first in (0, 5, 10)]
    said(
        f"it gains {gains[0]:.1f}, {gains[1]:.1f} and {gains[2]:.1f} points, "
        f"{with_error(ahead(0.0))} (mean and standard error) overall.",
        f"3 is ahead of 0.3 by {with_error(ahead(0.3))} points and of 1 by "
        f"{with_error(ahead(1.0))}.",
    )


def test_the_weight_of_distillation_without_the_class_prior() -> None:
    candidates = result("distill-2-tuning")["methods"][BEST]["candidates"]
    found = {it["options"][WEIGHT]: it["values"] for it in candidates if len(it["options"]) == 1}
    assert all(len(it["values"]) == 9 for it in candidates)

    def ahead(other: float) -> str:
        pairs = zip(found[3.0], found[other], strict=True)
        return with_error([100 * (one - two) for one, two in pairs])

    said(f"With three seeds, 3 is ahead of 2 by {ahead(2.0)} and of 10 by {ahead(10.0)}.")
    others = [it for it in candidates if len(it["options"]) == 2]
    assert len(others) == 2
    assert all(mean(it["values"]) < mean(found[3.0]) for it in others)
    preset, one = result("resnet-2-tuning")["methods"][BEST]["candidates"]
    said("it has no score")
    assert one["options"] == {WEIGHT: 1.0}
    assert preset == {"options": {WEIGHT: 3.0}, "value": None, "values": []}


def test_the_weight_of_distillation_with_five_seeds() -> None:
    three, one, half, more, faster = result("average-tuning")["methods"][BEST]["candidates"]
    assert [len(it["options"]) for it in (three, one, half, more, faster)] == [1, 1, 2, 2, 3]
    assert [three["options"], one["options"]] == [{WEIGHT: 3.0}, {WEIGHT: 1.0}]
    ahead = [100 * (a - b) for a, b in zip(three["values"], one["values"], strict=True)]
    practical, tail, skin = (mean(ahead[first : first + 5]) for first in (0, 5, 10))
    assert abs(practical) < 0.1
    said(
        f"with five seeds, weight 3 is ahead of 1 by {with_error(ahead)} points: by {skin:.1f} on "
        f"skin lesions, while 1 is ahead by {-tail:.1f} where CIFAR-10 has a long tail."
    )
    best = max(half["value"], more["value"])
    assert best == more["value"]
    said(
        f"the average [loses {100 * (one['value'] - best):.1f} points]"
        "(#how-distillation-was-chosen) at best, and twice the learning rate, with an average, "
        f"{100 * (one['value'] - faster['value']):.1f}."
    )


def test_four_methods_with_the_larger_network() -> None:
    found = result("large-tuning")["methods"]
    three, one, prior, cold, slow = found[BEST]["candidates"]
    assert cold["options"] == {WEIGHT: 1.0, "method.tau": 0.2}
    assert slow["options"] == {**cold["options"], "train.lr": 0.025 / 2}
    values = [f"{100 * it['value']:.1f}" for it in (three, one, prior, cold, slow)]
    assert found[BEST]["value"] == cold["value"]
    others = {it: f"{100 * found[it]['value']:.1f}" for it in ("fednh", "fedavg", "spherefed")}
    assert set(found) == {BEST, *others}
    said(
        f"weight 3 has {values[0]} on held-out images, weight 1 has {values[1]}, and weight 1 with "
        f"a temperature of 0.2 has {values[3]}, or {values[4]} with half the learning rate.",
        f"With as many candidates, FedNH has at most {others['fednh']}, FedAvg {others['fedavg']} "
        f"and SphereFed {others['spherefed']};",
        f"With weight 1 it is {values[2]} with the prior and {values[1]} without",
    )
    assert {it["without_score"] for it in found.values()} == {0}
    for it in others:
        rates = {row["options"]["train.lr"] for row in found[it]["candidates"]}
        assert min(rates) < found[it]["best"]["train.lr"] < max(rates)


def test_the_larger_network_on_test_images() -> None:
    (ours, _) = result("resnet-width-1")["runs"]
    before = {run["method"]: run for run in result("long_tail-large")["runs"]}
    fednh, sphere = (
        100 * (before[it]["server"]["accuracy"] - ours["server"]["accuracy"])
        for it in ("fednh", "spherefed")
    )
    said(f"FedNH's server model is {fednh:.1f} points ahead of it, and SphereFed's {sphere:.1f}.")
    (weight,) = result("resnet-2-tuning")["methods"][BEST]["candidates"][1:]
    said(
        f"weight 1 with the preset's temperature has {100 * weight['value']:.1f} on held-out images"
    )


def test_without_the_class_prior_and_with_equal_weights() -> None:
    its = result("prior-tuning")["methods"][BEST]
    found = {
        (it["options"]["method.calibrate"], it["options"].get("method.weights", "confidence")): [
            100 * value for value in it["values"]
        ]
        for it in its["candidates"]
    }
    assert len(found) == 5
    assert {it["options"]["method.own_classes"] for it in its["candidates"]} == {"held"}

    def ahead(one: tuple[float, str]) -> list[float]:
        return [a - b for a, b in zip(found[one], found[0.5, "confidence"], strict=True)]

    both = (0.0, "uniform")
    gains = [mean(ahead(both)[first : first + 5]) for first in (0, 5, 10)]
    one, other = (with_error(ahead(it)) for it in [(0.0, "confidence"), (0.5, "uniform")])
    said(
        f"balanced accuracy is {mean(found[both]):.1f} instead of "
        f"{mean(found[0.5, 'confidence']):.1f}**: it gains {gains[0]:.1f}, {gains[1]:.1f} and "
        f"{gains[2]:.1f} points, {with_error(ahead(both))} (mean and standard error) overall. "
        f"Either change alone gains little: {one} without the prior, {other} with equal weights."
    )
    assert max(found, key=lambda one: mean(found[one])) == both


def test_distillation_with_the_larger_network() -> None:
    its = result("resnet-tuning")["methods"][BEST]
    values = {
        it["options"][WEIGHT]: 100 * it["value"]
        for it in its["candidates"]
        if len(it["options"]) == 1
    }
    said(
        f"balanced accuracy is {values[0.0]:.1f} without distillation, {values[1.0]:.1f} with "
        f"weight 1 and {values[3.0]:.1f} with weight 3."
    )
    assert its["best"] == {WEIGHT: 1.0}


def test_the_class_prior_with_the_larger_network() -> None:
    its = result("prior-resnet-tuning")["methods"][BEST]["candidates"]
    assert [len(it["values"]) for it in its] == [1, 1, 1]
    before, equal, neither = (f"{100 * it['value']:.1f}" for it in its)
    (earlier,) = [
        it["value"]
        for it in result("resnet-tuning")["methods"][BEST]["candidates"]
        if it["options"] == {WEIGHT: 3.0}
    ]
    said(
        f"balanced accuracy is {before} with the prior and with weights by confidence "
        f"({100 * earlier:.1f} in an earlier run, above), {equal} with the prior and equal "
        f"weights, and {neither} without either."
    )
    assert [it["options"].get("method.weights") for it in its] == [None, "uniform", "uniform"]
    assert [it["options"]["method.calibrate"] for it in its] == [0.5, 0.5, 0.0]


def test_own_models_predict_only_the_clients_classes() -> None:
    change = "method.own_classes=all"
    said(f"their client mean falls by {told(change, OWN, *SETTINGS)}, and would be")
    assert signs(change, OWN, *SETTINGS) == {False}
    for setting in SETTINGS:
        assert abs(mean(differences(change, setting, SERVER))) < 0.5
    places = []
    for setting in SETTINGS:
        found = dict(tuned(OWN))[setting]
        ours = mean(value(change, setting, OWN))
        places.append(1 + sum(found[it] > ours for it in baselines(found)))
    assert places == [4, 16, 1]
    said("would be 4th, 16th and 1st of 22 among baselines that predict all classes as well.")
    one, other = (
        [f"{mean(value(it, setting, 'own.accuracy')):.1f}" for it in (change, "")]
        for setting in (PRACTICAL, TAIL)
    )
    said(f"accuracy falls from {one[0]} to {one[1]} and from {other[0]} to {other[1]} on CIFAR-10.")


def test_weights() -> None:
    trust, counts = (f"method.weights={it}" for it in ("confidence", "counts"))
    assert {it for it in CHANGES if it.startswith("method.weights=")} == {trust, counts}
    largest = max(abs(mean(differences(counts, where, SERVER))) for where in SETTINGS)
    over_all = [-value for where in SETTINGS for value in differences(trust, where, SERVER)]
    found = {
        (it["options"]["method.calibrate"], it["options"].get("method.weights")): it["values"]
        for it in result("prior-tuning")["methods"][BEST]["candidates"]
    }
    pairs = zip(found[0.0, "uniform"], found[0.0, None], strict=True)
    held_out = [100 * (equal - trusted) for equal, trusted in pairs]
    said(
        f"With weights by confidence, balanced accuracy falls by {told(trust, SERVER, *SETTINGS)}, "
        f"on average by {with_error(over_all)}; on held-out images it falls by "
        f"{with_error(held_out)}. With weights by counts it changes by at most {largest:.1f}. No "
        "score changes significantly."
    )
    assert signs(trust, SERVER, *SETTINGS) == {False}
    for change in (trust, counts):
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
    assert place(dict(tuned(SERVER))[SKIN]) == 2
    said(
        f"first in {number} of 9 settings, significantly in all {len(won)}. On skin lesions it is "
        "second in balanced accuracy, and last in accuracy.",
    )
    number, won, lost = standing(OWN)
    assert (number, lost) == (9, [])
    said(f"own models are first in all {number}, significantly so in {len(won)}.")
    assert [standing(it)[2] for it in (SERVER_STD, "own.client_std")] == [[], [SKIN]]
    spread = dict(tuned(SERVER_STD))[PRACTICAL]
    said(f"without a long tail it is {place(spread)}th of {len(spread) - 1}.")


def test_what_single_options_gained_in_tuning() -> None:
    def value(**wanted: object) -> float:
        (found,) = [
            100 * it["value"]
            for it in result("long-tail-tuning")["methods"]["cafedcl"]["candidates"]
            if it["options"].get("server.momentum") == 0.5
            and all(it["options"].get(f"method.{name}") == value for name, value in wanted.items())
        ]
        return found

    final = {"tau": 0.3, "inference": "fitted"}
    both = value(**final, calibrate=0.5, rare_gain=None)
    rare = value(**final, calibrate=0.5, rare_gain=0.1) - both
    prior = both - value(**final, calibrate=None)
    early = {"tau": 0.2, "inference": None}
    lost = value(**early, calibrate=None) - value(**early, calibrate=0.5)
    said(
        f"`rare_gain` gained {rare:.1f} points in the first stage of tuning.",
        f"`calibrate`, gained {prior:.1f} points there with the final temperature, lost {lost:.1f} "
        "with a temperature of 0.2 and prediction by the anchors",
    )


@pytest.mark.parametrize(
    ("tau", "lam_align", "inference", "words"),
    [
        (0.2, None, None, "prediction by the anchors ({}), and the same"),
        (0.2, 0.0, "fitted", "with the fitted classifier ({})."),
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
