"""Every number in a sentence of docs/paper.md, computed again from the result files.

The tables of the page are checked by ``experiments/reproduction.py --check``. If a test fails after
new runs, read the sentence: its number, and perhaps what it says, is out of date.
"""

import json
import math
import re
from pathlib import Path
from statistics import mean

import pytest
import scipy
from measured import (
    HOME,
    RESULTS,
    Page,
    average,
    baselines,
    by_seed,
    gaps,
    holm,
    methods_of,
    p_of,
    place,
    result,
    seeds_of_all,
    settings_of,
    tuned,
    tuned_p_values,
)

import cafedcl

PAGE = Page("paper")
said = PAGE.said
PRACTICAL = "cifar10-practical"
PATHOLOGICAL = "cifar10-pathological"
DEFAULTS = ("table1-short", "table2-short", "standins-short", "skin-short")
"""The nine settings of claims 1 to 3."""
BASELINES = {"fedavg", "fedprox", "moon", "fedproto", "fedrcl", "fedproc", "fedlc", "mp-fedcl"}
BASELINES |= {"fedtgp"}


def places(score: str, method: str = "cafedcl") -> dict[str, int]:
    """The place of a method among the paper's baselines, in each of the nine settings."""
    sign = -1 if score.endswith("std") else 1
    found = {}
    for name in DEFAULTS:
        for setting in settings_of(name):
            ours = sign * average(name, setting, method, score)
            baselines = [
                sign * mean(its.values())
                for baseline in BASELINES
                if (its := by_seed(name, setting, baseline, score))
            ]
            found[setting] = 1 + sum(baseline > ours for baseline in baselines)
    return found


def test_the_page_is_short_and_the_abstract_too() -> None:
    rows = [line for line in PAGE.prose.splitlines() if not line.startswith("|")]
    assert len(" ".join(rows).split()) <= 3810
    abstract = PAGE.prose.split("## Abstract")[1].split("##")[0]
    assert 120 <= len(abstract.split()) <= 175


def test_one_way_of_scoring_is_far_above_the_other() -> None:
    server = average("table1-short", PRACTICAL, "fedavg", "server.accuracy")
    own = average("table1-short", PRACTICAL, "fedavg", "own.client_mean")
    complete = average("table1-short", PRACTICAL, "fedproto", "own.accuracy")
    said(
        f"FedAvg scores {server:.1f} % with the server's model and {own:.1f} % with",
        f"recognise {complete:.1f} % of CIFAR-10's complete test set",
    )
    prox = average("table1-short", PRACTICAL, "fedprox", "own.client_mean")
    said(f"hardly differs from FedAvg, is {prox - server:.1f} points above it")


def test_compared_alike_no_rival_is_far_above_fedavg_and_own_models_are() -> None:
    for setting in (PRACTICAL, PATHOLOGICAL):
        for method in [*BASELINES, "cafedcl"]:
            for score in ("server.accuracy", "own.client_mean"):
                its = by_seed("table1-short", setting, method, score)
                base = average("table1-short", setting, "fedavg", score)
                assert not its or mean(its.values()) - base < 2
            its = by_seed("table1-short", setting, method, "server.accuracy")
            own = average("table1-short", setting, method, "own.client_mean")
            if its and method != "fedlc":
                assert own - mean(its.values()) > 30
    said("no method is more than two points above FedAvg", "30 points or more, for all but FedLC")


def test_the_papers_numbers_are_those_of_its_table() -> None:
    from cafedcl.report.paper import paper_position
    from cafedcl.report.setting import Setting

    split = {"split.kind": "dirichlet", "split.alpha": 0.1}
    setting = Setting.of({**split, "data.name": "cifar10", "federation.clients": 20})
    figures = paper_position(setting).figures
    said(f"prints {figures['fedproto'][0]} % for FedProto and {figures['fedavg'][0]} % for FedAvg")
    gap = figures["cafedcl"][0] - figures["fedavg"][0]
    said(f"gaps of {gap // 10 * 10:.0f} points")


def test_the_server_models_lead_where_the_page_says() -> None:
    accuracy = places("server.accuracy")
    first = [setting for setting, place in accuracy.items() if place == 1]
    assert set(accuracy) - set(first) == {PRACTICAL, "ham10000"}
    said(
        f"the most accurate server model in {len(first)} of {len(accuracy)} settings",
        f"ahead of all baselines that were run in {len(first)} of {len(accuracy)} settings",
    )
    assert accuracy["ham10000"] == 7
    assert places("server.balanced")["ham10000"] == 2
    assert (
        sum(bool(by_seed("skin-short", "ham10000", it, "server.accuracy")) for it in BASELINES) == 7
    )
    said("seventh of eight in accuracy and second in balanced accuracy")
    words = " ".join((HOME / "docs" / "index.md").read_text(encoding="utf-8").split())
    assert "second of eight in balanced accuracy and seventh in accuracy" in words
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    assert (
        "nine baselines (four, with one seed, on GTSRB and Fashion-MNIST) | "
        f"{len(first)} of {len(accuracy)} settings, none significantly | 2nd and 7th of 8 |"
        in readme
    )
    for setting in ("gtsrb-practical", "fashion-pathological"):
        there = [
            it for it in BASELINES if by_seed("standins-short", setting, it, "server.accuracy")
        ]
        assert len(there) == 3
    said("only three baselines with a server model ran")


def test_the_differences_in_accuracy_and_their_tests() -> None:
    score = "server.accuracy"
    means = {
        baseline: mean(its.values())
        for baseline in BASELINES
        if (its := by_seed("table1-short", PRACTICAL, baseline, score))
    }
    assert max(means, key=lambda name: means[name]) == "fedproc"
    ps = {
        baseline: p_of(gaps("table1-short", PRACTICAL, "cafedcl", baseline, score))
        for baseline in means
    }
    gap = -mean(gaps("table1-short", PRACTICAL, "cafedcl", "fedproc", score))
    said(
        f"{gap:.2f} points behind FedProc (p = {holm(ps, 'fedproc'):.3f} after Holm's correction)",
        f"{gap:.1f} points behind the best baseline",
    )
    ten = gaps("table1-short", PATHOLOGICAL, "cafedcl", "fedavg", score)
    fifty = gaps("table2-short", "ir-50", "cafedcl", "fedavg", score)
    said(
        f"{mean(ten):.2f} points with ratio 10 (p = {p_of(ten):.3f}), {mean(fifty):.2f} with "
        f"ratio 50 (p = {p_of(fifty):.3f})"
    )
    hundred = gaps("table2-short", "ir-100", "cafedcl", "fedavg", score)
    assert mean(hundred) > max(mean(ten), mean(fifty)) > 0
    said(
        f"is {mean(ten):.2f} points with imbalance ratio 10, {mean(fifty):.2f} with 50 and "
        f"{mean(hundred):.2f} with 100"
    )
    own = gaps("table1-short", PRACTICAL, "cafedcl", "fedavg", "own.client_mean")
    said(f"they are {-mean(own):.1f} points behind FedAvg's")


def test_fairness_leads_where_the_page_says() -> None:
    server = places("server.client_std")
    said(f"smallest spread in {sum(it == 1 for it in server.values())} of {len(server)} settings")
    score = "server.client_std"
    ps = {
        baseline: p_of(found)
        for baseline in BASELINES
        if (found := gaps("table1-short", PATHOLOGICAL, "cafedcl", baseline, score))
    }
    gap = mean(gaps("table1-short", PATHOLOGICAL, "cafedcl", "fedavg", score))
    said(f"{-gap:.1f} points smaller than FedAvg's (p = {holm(ps, 'fedavg'):.3f} after Holm's")
    for setting in ("ir-50", "ir-100"):
        ours, theirs = (
            [average("table2-short", setting, it, key) for key in (score, "server.accuracy")]
            for it in ("cafedcl", "fedrcl")
        )
        assert theirs[0] < ours[0]
        assert theirs[1] < ours[1]
        assert ours[0] < average("table2-short", setting, "fedavg", score)
    for score in ("own.client_mean", "own.client_std"):
        first = {setting for setting, place in places(score).items() if place == 1}
        assert first == {"gtsrb-practical", "gtsrb-pathological"}
    said("most accurate in 2 of 9 settings (both GTSRB), and the most even in the same two")


def test_the_larger_network_says_what_the_page_says() -> None:
    name, score = "table1-medium", "server.accuracy"
    assert average(name, PRACTICAL, "cafedcl", score) > average(name, PRACTICAL, "fedavg", score)
    for method in ("fedavg", "cafedcl", "cafedcl:fixed-anchors"):
        small = average("table1-short", PATHOLOGICAL, method, score)
        assert average(name, PATHOLOGICAL, method, score) < small


def test_the_excess_of_the_loop_fades() -> None:
    runs = result("bias_loop")["runs"]
    drift = {
        (one["feedback"], one["weights"], one["kind"], one["seed"]): [
            mean(each["drift"]) for each in one["rounds"]
        ]
        for one in runs
    }

    def excess(weights: str, kind: str, at: int) -> float:
        return mean(
            drift[True, weights, kind, seed][at] - drift[True, weights, "none", seed][at]
            for seed in range(3)
        )

    kinds = {(one["weights"], one["kind"]) for one in runs if one["kind"] != "none"}
    largest = max(kinds, key=lambda it: excess(*it, 6))
    said(
        f"with averaged anchors, {excess(*largest, 6):.3f} in squared distance, is "
        f"{excess(*largest, 11):.3f} five rounds later",
        f"it falls from {excess('confidence', 'biased', 6):.3f} to "
        f"{excess('confidence', 'biased', 11):.3f}",
    )


def variant(setting: str, method: str, score: str) -> tuple[float, float, float]:
    """Difference of a variant to CAFedCL, its p-value, and the one after Holm's correction."""
    others = [it for it in methods_of("ablation-short", setting) if it.startswith("cafedcl:")]
    found = {it: gaps("ablation-short", setting, it, "cafedcl", score) for it in others}
    ps = {it: p_of(its) for it, its in found.items()}
    return mean(found[method]), ps[method], holm(ps, method)


def test_the_ablation_in_sentences() -> None:
    accuracy, std = "server.accuracy", "server.client_std"
    fixed = "cafedcl:fixed-anchors"
    practical, _, practical_p = variant(PRACTICAL, fixed, accuracy)
    pathological, _, pathological_p = variant(PATHOLOGICAL, fixed, accuracy)
    spread, _, spread_p = variant(PATHOLOGICAL, fixed, std)
    said(
        f"rises by {practical:.2f} points (p = {practical_p:.3f} after Holm's correction), and "
        f"under the pathological split by {pathological:.2f} (p = {pathological_p:.3f}), where "
        f"the spread between clients is {spread:.2f} points larger (p = {spread_p:.3f};"
    )
    counts, _, counts_p = variant(PATHOLOGICAL, "cafedcl:no-confagg-counts", accuracy)
    whole = average("ablation-short", PATHOLOGICAL, "cafedcl", std)
    wide = average("ablation-short", PATHOLOGICAL, "cafedcl:no-confagg-counts", std)
    said(
        f"{-counts:.2f} points of accuracy (p = {counts_p:.3f}), and the spread grows from "
        f"{whole:.1f} to {wide:.1f}"
    )
    for setting in (PRACTICAL, PATHOLOGICAL):
        assert variant(setting, "cafedcl:no-confagg-uniform", accuracy)[1] > 0.05
        assert variant(setting, "cafedcl:no-geo", accuracy)[1] > 0.05
        weightings = ("no-confagg-uniform", "no-confagg-counts", "inverse-variance")
        assert all(variant(setting, f"cafedcl:{it}", accuracy)[0] > -4 for it in weightings)
    assert variant(PRACTICAL, "cafedcl:no-confagg-counts", accuracy)[1] > 0.05
    spread, _, p = variant(PATHOLOGICAL, "cafedcl:no-confagg-uniform", std)
    said(f"their spread between clients is {spread:.2f} points larger (p = {p:.3f}), which three")
    one = variant(PRACTICAL, "cafedcl:no-geo", accuracy)[0]
    other = variant(PATHOLOGICAL, "cafedcl:no-geo", accuracy)[0]
    said(f"accuracy changes by +{one:.2f} and −{-other:.2f} points, neither significantly")
    spread, p, corrected = variant(PATHOLOGICAL, "cafedcl:no-geo", std)
    said(f"{spread:.2f} points larger without it (p = {p:.3f}, and {corrected:.3f} after Holm's")


def test_confidence_on_the_digits() -> None:
    found = {
        method: [
            100 * one["server"]["accuracy"]
            for one in result("digits")["runs"]
            if one["method"] == method
        ]
        for method in ("cafedcl", "cafedcl:no-confagg-counts")
    }
    ours, counts = found.values()
    p = scipy.stats.ttest_rel(ours, counts, alternative="greater").pvalue
    said(
        f"with {len(ours)} seeds, confidence has {mean(ours):.2f} % and counts {mean(counts):.2f} %"
        f" (one-sided p = {p:.2f})"
    )


def test_the_generator_in_sentences() -> None:
    runs = result("augmentation")["runs"]

    def values(kind: str, key: str) -> list[float]:
        mine = [one for one in runs if one["augment"] == kind]
        return [one[key] for one in sorted(mine, key=lambda one: one["seed"])]

    words = []
    for key in ("accuracy", "few"):
        pairs = zip(values("gan", key), values("none", key), strict=True)
        change = [100 * (one - other) for one, other in pairs]
        words.append((f"{-mean(change):.1f}", f"(p = {p_of(change):.3f})"))
        assert mean(values("cutmix", key)) > mean(values("gan", key))
    (accuracy, p), (few, few_p) = words
    said(f"costs {accuracy} points of accuracy {p} and {few} points in few-shot classes {few_p}")
    seconds = [mean(values(kind, "seconds")) for kind in ("gan", "none")]
    said(f"takes {seconds[0]:.0f} seconds with it and {seconds[1]:.0f} without")
    told = [one["recognised"]["mean"] for one in runs if one["recognised"]]
    said(f"assigns {100 * mean(told):.0f} % of them to it")
    lost = gaps("skin-short", "ham10000", "cafedcl+gan", "cafedcl", "server.accuracy")
    said(f"costs {-mean(lost):.1f} points of accuracy (p = {p_of(lost):.3f}) and does not help")
    assert mean(gaps("skin-short", "ham10000", "cafedcl+gan", "cafedcl", "server.few")) < 0
    for score in ("server.accuracy", "server.balanced", "server.few"):
        cutmix, gan = (
            average("skin-short", "ham10000", f"cafedcl+{it}", score) for it in ("cutmix", "gan")
        )
        assert cutmix > gan


def test_the_sensitivity_in_sentences() -> None:
    runs = result("sensitivity_plain-short")["runs"]
    assert {one["seed"] for one in runs} == {0}
    ranges = []
    for setting in (PRACTICAL, PATHOLOGICAL):
        for option in ("method.lam_geo", "method.beta"):
            values = [
                100 * one["server"]["accuracy"]
                for one in runs
                if one["setting"] == setting and set(one["changed"]) <= {option}
            ]
            assert len(values) >= 4
            ranges.append(max(values) - min(values))
    said(f"change accuracy by at most {max(ranges):.1f} points")
    above = []
    for setting in (PRACTICAL, PATHOLOGICAL):
        usual = average("sensitivity_plain-short", setting, "cafedcl", "server.accuracy")
        (alone,) = [
            100 * one["server"]["accuracy"]
            for one in runs
            if one["setting"] == setting and one["changed"] == {"method.w": [0.0, 0.0, 1.0]}
        ]
        above.append(alone - usual)
    said(
        f"it is {above[0]:.1f} points above the default under the practical split and "
        f"{above[1]:.1f} above it"
    )


def test_the_theory_in_sentences() -> None:
    # One client, no noise: E = bias = 1 and ρ = ½ in ρ²E + 2(1 − ρ)²Δ.
    said(f"Eq. 8 says at most {0.25 + 2 * 0.25}")
    counts = [100, 10, 1]
    conf = [4 / 7 * n / 100 + 3 / 7 * math.exp(-0.5 * 0.2) for n in counts]
    injected = sum((it / sum(conf)) ** 2 / n for it, n in zip(conf, counts, strict=True))
    said(f"confidence injects {injected * sum(counts):.2f} times as much")


def test_the_cost_in_sentences() -> None:
    path = HOME / "benchmarks" / "results" / "h200-cnn.json"
    steps = {
        one["method"]: one["step_ms"]
        for one in json.loads(path.read_text(encoding="utf-8"))["measurements"]
        if one["task"] == "cnn-50"
    }
    said(f"takes {steps['cafedcl']:.3f} ms on an H200, against {steps['fedavg']:.3f} ms for FedAvg")


def test_fixed_anchors_in_sentences() -> None:
    better = sum(
        average(name, setting, "cafedcl:fixed-anchors", "server.accuracy")
        > average(name, setting, "cafedcl", "server.accuracy")
        for name in DEFAULTS
        for setting in settings_of(name)
    )
    said(f"more accurate than CAFedCL in {better} of 9 settings")
    last = [rounds[-1] for rounds in result("anchors")["rounds"].values()]
    averaged, _, apart, fixed = last
    said(
        f"mean cosine of {averaged['cosine']:.2f} and give {100 * averaged['accuracy']:.1f} %",
        f"until the cosine is {apart['cosine']:.2f} give {100 * apart['accuracy']:.1f} %, and "
        f"fixed ones {100 * fixed['accuracy']:.1f} %",
    )


@pytest.mark.parametrize("score", ["server.balanced", "own.client_mean", "own.held_mean"])
def test_the_tuned_variant_is_closest_to_the_best_on_average(score: str) -> None:
    behind: dict[str, dict[str, float]] = {}
    for setting, found in tuned(score):
        for method, value in found.items():
            behind.setdefault(method, {})[setting] = max(found.values()) - value
    ours = behind.pop("cafedcl:best")
    for its in behind.values():
        # On the settings that the baseline has, so that nobody gains by a missing one.
        assert mean(ours[setting] for setting in its) < mean(its.values())
    first = [setting for setting, gap in ours.items() if gap == 0]
    if score.startswith("server"):
        assert set(ours) - set(first) == {"ham10000-sources"}
        said("best server model in eight of nine settings", "best server model in 8 of 9 settings")
        nearest = min(max(its.values()) for its in behind.values())
        said(
            f"Every baseline is at least {nearest:.1f} points behind the best in some setting, "
            f"`cafedcl:best` at most {max(ours.values()):.1f}."
        )
        ps = tuned_p_values(score)
        significant = {it: holm(ps, it) for it in ps if holm(ps, it) < 0.05}
        assert set(significant) <= set(first)
        assert len(significant) == 8
        said("significantly so in all eight (after Holm's correction)")
    if score == "own.client_mean":
        assert len(first) == 9
        ps = tuned_p_values(score)
        assert sum(holm(ps, it) < 0.05 for it in ps) == 7
        said("it is first in all nine settings**, significantly so in seven. But")
    if score == "own.held_mean":
        (other,) = set(ours) - set(first)
        assert len(first) == 8
        ps = tuned_p_values(score)
        assert sum(holm(ps, it) < 0.05 for it in first) == 4
        said(
            "is first in eight, significantly so in four, and "
            f"{ours[other]:.2f} points behind FedNH in the ninth."
        )
        assert behind["fednh"][other] == 0
    assert all(gap > 0 for gap in behind["cafedcl"].values()), "the defaults lead nowhere"


def test_the_study_of_long_tails_in_sentences() -> None:
    server = dict(tuned("server.balanced"))
    spread = dict(tuned("server.client_std"))
    own = dict(tuned("own.client_mean"))
    skin = "ham10000-sources"
    for setting in ("cifar10-ir10", "cifar10-ir50", "cifar10-ir100"):
        assert place(spread[setting]) == 1
    plain = spread["cifar10-practical"]
    said(f"Without a long tail, its spread is {place(plain)}th of {len(plain) - 1}.")
    level = dict(tuned("server.client_mean"))
    ps = tuned_p_values("server.client_std")
    places = []
    for setting in ("cifar10-ir10", "cifar10-ir50", "cifar10-ir100"):
        assert holm(ps, setting) > 0.05
        places.append(place(level[setting]))
    said(f"its mean over clients is {min(places)}th to {max(places)}th of {len(plain) - 1}.")
    ahead = {it: server[it]["cafedcl"] - server[it]["fedavg"] for it in server}
    left = f"{ahead['cifar10-ir50']:.1f} and {ahead['cifar10-ir100']:.1f} points"
    said(f"lead on CIFAR-10 at ratios 50 and 100 ({left})")
    for setting in ("cifar10-ir10", "fashion-pathological", skin):
        assert ahead[setting] < 0
    said(
        f"2nd of {len(server[skin]) - 1} with the server's model, where CReFF leads by "
        f"{server[skin]['creff'] - server[skin]['cafedcl:best']:.1f} points, and first with the "
        f"clients' own, by {own[skin]['cafedcl:best'] - own[skin]['creff']:.1f}, neither "
        "significantly."
    )
    assert place(server[skin]) == 2
    assert place(own[skin]) == 1
    assert baselines(server[skin])[0] == baselines(own[skin])[0] == "creff"
    for score in ("server.balanced", "own.client_mean"):
        assert holm(tuned_p_values(score), skin) > 0.05
    own_spread = dict(tuned("own.client_std"))[skin]
    said(f"The own models' client std is {place(own_spread)}th of {len(own_spread) - 1}.")
    compared = {it for found in own.values() for it in baselines(found)}
    said(f"compared with {len(compared)} tuned baselines")


def test_the_budgets_of_both_tunings() -> None:
    one, two = result("tuning"), result("long-tail-tuning")
    three = result("long-tail-tuning-2")
    said(
        f"[{one['budget']} under one split](reproduction.md#with-the-same-tuning-budget-for-every-"
        f"method) for {len(one['methods'])} methods",
        f"[{two['budget']} under two splits, then {three['budget']} under three]"
        f"(long-tails.md#how-every-method-was-tuned) for {len(two['methods'])}",
    )
    assert two["methods"].keys() == three["methods"].keys()
    for tuning in (one, two, three):
        assert "images held out of the training set" in tuning["measured_on"]
        assert all(len(its["candidates"]) == tuning["budget"] for its in tuning["methods"].values())
    candidates = two["methods"]["cafedcl"]["candidates"]
    assert all(it["options"]["method.anchors"] == "fixed" for it in candidates)


def test_how_much_has_been_run_is_said_once() -> None:
    def most_seeds(name: str) -> int:
        return len({one["seed"] for one in result(name)["runs"]})

    said("**Long tails (22 tuned methods), and the parts of `cafedcl:best`: five seeds.**")
    for setting in settings_of("long_tail-short"):
        assert len(seeds_of_all(setting)) == 5
    assert most_seeds("best_parts-short") == 5
    said(
        "**ResNet-18, and the stand-ins: one seed so far.**",
        "at half its width, and at full width in one setting.",
    )
    assert most_seeds("table1-medium") == most_seeds("standins-short") == 1
    assert {one["width"] for one in result("table1-medium")["runs"]} == {0.5}
    assert len({one["method"] for one in result("table1-medium")["runs"]}) == 4
    assert PAGE.text.count("one seed so far") == 1


@pytest.mark.parametrize(
    ("data", "title"),
    [("digits", "the digits"), ("fashion-mnist", "Fashion-MNIST"), ("ham10000", "HAM10000")],
)
def test_privacy_in_sentences(data: str, title: str) -> None:
    runs = [one for one in result(f"privacy-{data}")["runs"] if one["study"] == "noise"]
    most = max(one["noise"] for one in runs)
    found = {
        method: 100 * mean(one["balanced"] for one in runs if (one["method"], one["noise"]) == it)
        for method in ("cafedcl, confidence", "cafedcl, uniform", "fedavg")
        for it in [(method, most)]
    }
    (epsilon,) = {f"{one['epsilon']:.1f}" for one in runs if one["noise"] == most}
    confidence, uniform, fedavg = found.values()
    said(
        f"On {title}, at ε = {epsilon} it has {confidence:.1f} % balanced accuracy, "
        f"uniform weights have {uniform:.1f} % and FedAvg {fedavg:.1f} %"
    )


def test_robustness_in_sentences() -> None:
    def lost(data: str, attack: str, method: str = "cafedcl") -> float:
        runs = {
            (one["attack"], one["defence"], one["seed"]): 100 * one["accuracy"]
            for one in result(f"attacks-{data}")["runs"]
            if one["method"] == method
        }
        seeds = {seed for kind, defence, seed in runs if (kind, defence) == (attack, "peers")}
        return mean(runs["none", "none", it] - runs[attack, "peers", it] for it in seeds)

    def worst_of(method: str) -> float:
        runs = result("attacks-digits")["runs"]
        attacks = {one["attack"] for one in runs if one["method"] == method} - {"none"}
        return max(lost("digits", attack, method) for attack in attacks)

    ours = worst_of("cafedcl:best")
    said(
        f"loses at most {worst_of('cafedcl'):.1f} points on the digits",
        f"(`cafedcl:best` {ours:.1f}), and {lost('digits', 'none'):.1f} if nobody lies",
        f"which cost {lost('cifar10', 'label-flip:4'):.1f} points on CIFAR-10",
    )


ROWS = re.findall(
    r"^\| [^|]+ \| `([^`]+)` \| \[[^]]+\]\(\.\./(\S+\.json)\) \|$", PAGE.content, re.MULTILINE
)


def test_every_result_file_has_a_row_with_its_command() -> None:
    assert {path for _, path in ROWS if path.startswith("experiments")} == {
        str(path.relative_to(HOME)) for path in RESULTS.glob("*.json")
    }


@pytest.mark.parametrize(("command", "path"), ROWS, ids=[Path(path).stem for _, path in ROWS])
def test_a_command_is_the_recorded_one(command: str, path: str) -> None:
    environment = json.loads((HOME / path).read_text(encoding="utf-8")).get("environment", {})
    recorded = " ".join(environment.get("command", command.split()))
    # Where a file was written to is no part of how to repeat it.
    assert re.sub(r" --out \S+", "", recorded) == command
    script = command.split()[1]
    assert not script.endswith(".py") or (HOME / script).exists()


def test_the_citation_agrees_with_the_page() -> None:
    citation = (HOME / "CITATION.cff").read_text(encoding="utf-8")
    title = PAGE.content.partition("\n")[0].removeprefix("# ")
    preferred = citation.partition("preferred-citation:")[2]
    assert f'title: "{title}"' in preferred
    assert f"version: {cafedcl.__version__}" in preferred
    assert title in PAGE.text.replace("{", "").replace("}", "").partition("How to cite")[2]
    assert f"cafedcl {cafedcl.__version__}, docs/paper.md" in PAGE.text
