"""The tables of the reproduction page: their numbers against a computation by hand, and a page that
cannot drift.
"""

import json
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from reproduction_statistics import compared, holm, verdict

from cafedcl.core.errors import CafedclError

FILE = Path(__file__).parents[2] / "experiments" / "reproduction.py"
ACCURACY = {
    "fedavg": [0.50, 0.54, 0.53],
    "moon": [0.60, 0.61, 0.59],
    "fedlc": [0.55, 0.70],
    "cafedcl": [0.62, 0.65, 0.66],
    "central": [0.9, 0.9, 0.9],
}


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def record(method: str, seed: int, accuracy: float | None, **changes: Any) -> dict[str, Any]:
    names = ("accuracy", "balanced", "client_mean", "client_std", "client_worst", "few")
    scores = {} if accuracy is None else dict.fromkeys(names, accuracy)
    plain = {
        "setting": "cifar10-practical",
        "data": "cifar10",
        "split": "dirichlet:0.1",
        "method": method,
        "changed": {},
        "seed": seed,
        "rounds": 100,
        "server": scores,
        "own": scores,
        "images": 45000,
        "clients": 20,
        "model": "resnet18",
        "width": 0.5,
        "engine": "graphs",
        "precision": "bf16",
        "failed_visits": 0,
        "skipped_rounds": 0,
        "options": {"model.width": 0.5},
    }
    return plain | changes


def write(folder: Path, name: str, runs: list[dict[str, Any]]) -> None:
    place = {
        "command": ["cafedcl", "reproduce", "table1", "--scale", "short"],
        "python": "3.11",
        "device_name": "a chip",
        "packages": {"torch": "2.9", "pandas": None},
    }
    content = {"study": "table1", "environment": place, "unfinished": {}, "runs": runs}
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def main_runs() -> list[dict[str, Any]]:
    return [
        record(method, seed, value)
        for method, values in ACCURACY.items()
        for seed, value in enumerate(values)
    ]


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_methods_stand_beside_the_paper_and_the_best_is_bold(
    page: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, "table1-short", main_runs())
    text = page["block"]("table1:methods", tmp_path)
    values = 100 * np.array(ACCURACY["cafedcl"])
    shown = f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
    assert cells(text, "`cafedcl`")[1:] == [
        f"**{shown}**",
        shown,
        f"**{shown}**",
        shown,
        "91.15",
        "4.87",
        "3",
    ]
    assert cells(text, "`fedavg`")[2].startswith("**"), "of a spread, the least is best"
    assert "**" not in text[text.index("`central`") :].splitlines()[0], (
        "it has all data and does not compete"
    )
    assert cells(text, "`fedlc`")[-1] == "2"
    for word in (
        "100 rounds",
        "resnet18, width 0.5",
        "45000 training images",
        "20 clients",
        "seeds 0 to 2",
        "complete",
    ):
        assert word in text
    assert "torch 2.9; a chip; <code>cafedcl reproduce table1 --scale short</code></sub>" in text


def test_differences_are_those_computed_by_hand(page: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, "table1", main_runs())
    text = page["block"]("table1:tests", tmp_path)
    found = {}
    for baseline in ("fedavg", "moon"):
        gaps = 100 * (np.array(ACCURACY["cafedcl"]) - np.array(ACCURACY[baseline]))
        error = gaps.std(ddof=1) / math.sqrt(3)
        t = abs(gaps.mean() / error)
        found[baseline] = gaps.mean(), error, 1 - t / math.sqrt(t * t + 2)
    small, large = sorted(found, key=lambda baseline: found[baseline][2])
    holm = {small: min(1, 2 * found[small][2]), large: max(2 * found[small][2], found[large][2])}
    for baseline, (gap, error, p) in found.items():
        assert cells(text, f"`cafedcl` − `{baseline}`")[1:] == [
            *[f"{gap:+.2f} ± {error:.2f}", f"{p:.3f} / {holm[baseline]:.3f}"] * 4,
            "3",
        ]
    assert "− `fedlc`" not in text
    assert "Fewer than 3 seeds shared with `cafedcl`: `fedlc`." in text
    assert "central" not in text


def test_a_claim_holds_only_if_it_is_ahead_of_the_best_baseline_by_more_than_chance(
    page: dict[str, Any], tmp_path: Path
) -> None:
    ahead = {
        "fedavg": [0.50, 0.54, 0.53],
        "moon": [0.60, 0.61, 0.59],
        "local": [0.9] * 3,
        "cafedcl": [0.7, 0.71, 0.7],
    }
    write(
        tmp_path,
        "table1",
        [
            record(name, seed, value)
            for name, its in ahead.items()
            for seed, value in enumerate(its)
        ],
    )
    text = page["block"]("table1:claims", tmp_path)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if "cafedcl" in line
    ]
    gaps = 100 * (np.array(ahead["cafedcl"]) - np.array(ahead["moon"]))
    t = gaps.mean() / (gaps.std(ddof=1) / math.sqrt(3))
    p = 1 - t / math.sqrt(t * t + 2)
    assert lines[0][1:3] == ["server: accuracy", "1 of 3"]
    assert lines[0][3:] == [
        "`moon`",
        f"{gaps.mean():+.2f} ± {gaps.std(ddof=1) / math.sqrt(3):.2f} ({p:.3f})",
        "**holds**",
    ]
    assert lines[1][1:4] == ["server: client std", "3 of 3", "`fedavg`"]
    assert lines[1][-1] == "**does not hold**", "of a spread, the least is best"
    assert verdict((1.0, 0.5, 0.2), True, True) == "ahead, not significantly"
    assert verdict((-1.0, 0.5, 0.2), False, True) == "not ahead, not significantly behind"
    assert verdict((-9.0, 0.5, 0.01), True, False) == "**holds**"
    assert verdict(None, True, True) == "cannot be judged"


def test_ranks_are_over_all_settings_of_all_results(page: dict[str, Any], tmp_path: Path) -> None:
    first = {"local": 0.9, "fedavg": 0.5, "moon": 0.6, "cafedcl": 0.7}
    write(tmp_path, "table1", [record(name, 0, value) for name, value in first.items()])
    second = {"fedavg": [0.5, 0.7], "cafedcl": [0.4, 0.5]}
    runs = [
        record(name, seed, value) for name, its in second.items() for seed, value in enumerate(its)
    ]
    write(tmp_path, "skin", [{**one, "setting": "other"} for one in runs])
    text = page["block"]("table1+skin:ranks", tmp_path)
    assert "mean rank over 2 settings" in text
    assert "moon" not in text, "it is not in all settings"
    assert "local" not in text
    assert cells(text, "`fedavg`")[1:3] == ["**1.50** (1)", "**1.50** (1)"], (
        "of a spread, the least is best"
    )
    assert cells(text, "`cafedcl`")[1:3] == ["**1.50** (1)", "**1.50** (1)"]
    write(
        tmp_path, "skin", [{**one, "setting": "other"} for one in runs if one["method"] != "fedavg"]
    )
    assert cells(page["block"]("table1+skin:ranks", tmp_path), "`cafedcl`")[1] == "**1.00** (2)"
    with pytest.raises(CafedclError, match="did you mean 'table1'"):
        page["block"]("table1+tabel1:ranks", tmp_path)


def test_every_candidate_of_the_tuning_is_shown(page: dict[str, Any], tmp_path: Path) -> None:
    candidates = [
        {"options": {"train.lr": 0.1}, "value": 0.5, "values": [0.5]},
        {"options": {"train.lr": 0.2, "method.mu": 1.0}, "value": 0.625, "values": [0.625]},
        {"options": {"train.lr": 9.0}, "value": None, "values": []},
    ]
    its = {
        "score": "server.accuracy",
        "best": candidates[1]["options"],
        "value": 0.625,
        "candidates": candidates,
    }
    content = {
        "settings": [{"data": "cifar10", "split": "iid"}],
        "options": ["a=1"],
        "measured_on": "9 images",
        "budget": 3,
        "seeds": 1,
        "methods": {"fedprox": its},
        "environment": {"command": ["python", "x"], "device_name": "a chip"},
    }
    (tmp_path / "tuning.json").write_text(json.dumps(content), encoding="utf-8")
    text = page["block"]("tuning:tuning", tmp_path)
    assert cells(text, "`fedprox`")[1:] == [
        "server: accuracy",
        "`train.lr=0.2`, `method.mu=1.0`",
        "62.5",
        "`train.lr=0.1` 50.0; `train.lr=9.0` without a score",
    ]
    assert "3 candidates each, 1 seed; cifar10, iid, a=1; scores on 9 images; a chip" in text
    assert "<code>python x</code>" in text
    second = {**content, "measured_on": "8 images"}
    (tmp_path / "tuning-2.json").write_text(json.dumps(second), encoding="utf-8")
    assert page["block"]("tuning:tuning", tmp_path) == text
    assert "scores on 8 images" in page["block"]("tuning-2:tuning", tmp_path)


def test_holms_correction_is_never_smaller_than_that_of_a_smaller_p(page: dict[str, Any]) -> None:
    assert holm([0.04, None, 0.01, 0.03, 0.9]) == pytest.approx([0.09, None, 0.04, 0.09, 0.9])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_differences_that_do_not_vary_have_no_p(page: dict[str, Any]) -> None:
    assert compared({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == (1.0, 0.0, None)
    assert compared({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0}) is None


def test_a_variant_is_compared_with_the_whole_of_the_same_augmentation(
    page: dict[str, Any], tmp_path: Path
) -> None:
    labels = ["cafedcl+gan", "cafedcl", "cafedcl:no-geo+gan", "cafedcl:no-geo", "fedproto+gan"]
    runs = [
        record(name, seed, 0.5 + at / 100 + at * seed**2 / 1000)
        for at, name in enumerate(labels)
        for seed in range(3)
    ]
    write(tmp_path, "ablation", runs)
    text = page["block"]("ablation:ablation", tmp_path)
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        "`cafedcl` − `cafedcl+gan`",
        "`cafedcl:no-geo+gan` − `cafedcl+gan`",
        "`cafedcl:no-geo` − `cafedcl`",
        "`fedproto+gan` − `cafedcl+gan`",
    ]
    gaps = [1 + seed**2 / 10 for seed in range(3)]
    assert cells(text, rows[0])[1].startswith(
        f"{np.mean(gaps):+.2f} ± {np.std(gaps, ddof=1) / math.sqrt(3):.2f}"
    )


def test_an_option_has_a_table_with_its_usual_value_among_the_others(
    page: dict[str, Any], tmp_path: Path
) -> None:
    points = [
        ({}, 0.5),
        ({"method.gamma": 1.0}, 0.7),
        ({"method.gamma": 0.2}, 0.6),
        ({"method.w": [1.0, 0.0, 0.0]}, 0.4),
    ]
    write(
        tmp_path,
        "sensitivity",
        [record("cafedcl", 0, value, changed=changed) for changed, value in points],
    )
    text = page["block"]("sensitivity:sensitivity", tmp_path)
    gamma, w = text.split("`method.w`")
    first = [line.split("|")[1:3] for line in gamma.splitlines() if line[2:3].isdigit()]
    assert [[cell.strip(" *") for cell in row] for row in first] == [
        ["0.2", "60.00"],
        ["0.6 (default)", "50.00"],
        ["1.0", "70.00"],
    ]
    assert "| [0.4, 0.3, 0.3] (default) | **50.00** |" in w
    assert "| [1.0, 0.0, 0.0] | 40.00 |" in w


def test_rare_classes_have_scores_of_their_own_and_a_method_without_a_server_none(
    page: dict[str, Any], tmp_path: Path
) -> None:
    runs = [record("fedavg", 0, 0.5), record("fedproto", 0, 0.6, server={})]
    write(tmp_path, "skin-short", runs)
    text = page["block"]("skin:skin", tmp_path)
    assert (
        "server: balanced acc. | server: few-shot recall | server: accuracy | server: worst clients"
        in text
    )
    assert cells(text, "`fedproto`")[1:] == [*["–"] * 4, *["**60.00**"] * 4, "1"]


def test_options_that_only_some_methods_have_are_said(page: dict[str, Any], tmp_path: Path) -> None:
    shared = {"train.crop": 4}
    runs = [
        record("fedavg", 0, 0.5, options={**shared, "train.lr": 0.03}),
        record("moon", 0, 0.5, options=shared),
    ]
    write(tmp_path, "tuned", runs)
    assert "options of its own: fedavg train.lr=0.03;" in page["block"]("tuned:methods", tmp_path)


def long_tail_runs(seeds: int) -> list[dict[str, Any]]:
    """Two settings; the best baseline of the first is not that of the second."""
    points = {
        "a": {"fedavg": 0.5, "moon": 0.6, "cafedcl:best": 0.55, "cafedcl": 0.8, "central": 0.9},
        "b": {"fedavg": 0.5, "moon": 0.4, "cafedcl:best": 0.7},
    }
    # The spread differs between methods, so that their differences vary.
    return [
        record(method, seed, value + 0.01 * seed * len(method) / 10, setting=setting)
        for setting, its in points.items()
        for method, value in its.items()
        for seed in range(seeds)
    ]


def test_the_leaders_have_rank_best_baseline_and_what_is_missing(
    page: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, "long_tail", long_tail_runs(1))
    text = page["block"]("long_tail:leaders", tmp_path)
    # CAFedCL as in the paper and central are no baselines. A smaller spread is better.
    assert cells(text, "`a`")[1:4] == [
        "55.0 (2 of 3); `moon` 60.0",
        "55.0 (2 of 3); `moon` 60.0",
        "55.0 (2 of 3); `fedavg` 50.0",
    ]
    assert cells(text, "`b`")[1] == "70.0 (1 of 3); `fedavg` 50.0"
    assert "Not finished: b: `cafedcl`, `central`." in text


def test_only_seeds_that_all_methods_of_a_setting_have_count(
    page: dict[str, Any], tmp_path: Path
) -> None:
    """In `a`, FedAvg has no second seed, in which the others are far better."""
    runs = [one for one in long_tail_runs(1) if one["setting"] == "a"]
    runs += [record(method, 1, 0.99, setting="a") for method in ("moon", "cafedcl:best", "cafedcl")]
    runs += [one for one in long_tail_runs(2) if one["setting"] == "b"]
    write(tmp_path, "long_tail", runs)
    text = page["block"]("long_tail:leaders", tmp_path)
    assert cells(text, "`a`")[1] == "55.0 (2 of 3); `moon` 60.0"
    assert "Seeds that all methods have, which are used here: 0; 0 and 1 in `b`." in text
    table = page["block"]("long_tail:settings", tmp_path).partition("**own: client mean**")[0]
    assert cells(table, "`moon`")[1] == "60.00"
    assert cells(page["block"]("long_tail:behind", tmp_path), "`moon`")[1] == "25.2 (30.4)"


def test_a_setting_without_a_seed_of_all_methods_has_no_row(
    page: dict[str, Any], tmp_path: Path
) -> None:
    runs = [one for one in long_tail_runs(1) if one["setting"] == "b"]
    runs += [record("fedavg", 0, 0.5, setting="a"), record("cafedcl:best", 1, 0.5, setting="a")]
    write(tmp_path, "long_tail", runs)
    text = page["block"]("long_tail:leaders", tmp_path)
    assert "| `a` |" not in text
    assert "used here: 0; none in `a`." in text


def test_the_leaders_are_tested_with_three_seeds_and_corrected_over_settings(
    page: dict[str, Any], tmp_path: Path
) -> None:
    runs = long_tail_runs(3)
    write(tmp_path, "long_tail", runs)
    text = page["block"]("long_tail:leaders", tmp_path)
    pairs = {"a": "moon", "b": "fedavg"}

    def values(setting: str, method: str) -> list[float]:
        return [
            one["server"]["balanced"]
            for one in runs
            if (one["setting"], one["method"]) == (setting, method)
        ]

    paired = scipy.stats.ttest_rel
    ps = {
        setting: paired(values(setting, "cafedcl:best"), values(setting, baseline)).pvalue
        for setting, baseline in pairs.items()
    }
    small, large = sorted(ps, key=lambda setting: ps[setting])
    corrected = {small: 2 * ps[small], large: max(ps[large], 2 * ps[small])}
    for setting, p in corrected.items():
        said = cells(text, f"`{setting}`")[1].rpartition("; p ")[2]
        assert said == ("< 0.001" if p < 0.001 else f"{p:.3f}")


def test_every_method_stands_in_every_setting(page: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, "long_tail", long_tail_runs(1))
    text = page["block"]("long_tail:settings", tmp_path).partition("**own: client mean**")[0]
    assert cells(text, "method")[1:] == ["a", "b"]
    assert cells(text, "`cafedcl`")[1:] == ["**80.00**", "–"]
    assert cells(text, "`central`")[1:] == ["90.00", "–"]
    assert cells(text, "`cafedcl:best`")[1:] == ["55.00", "**70.00**"]


def test_points_above_fedavg_depend_on_which_models_are_scored(
    page: dict[str, Any], tmp_path: Path
) -> None:
    server = {"fedavg": [0.4, 0.5], "moon": [0.42, 0.5], "cafedcl": [0.5, 0.6]}
    server["fedprox"] = [0.4, 0.4998]
    own = {"fedavg": 0.8, "moon": 0.7, "cafedcl": 0.85, "fedproto": 0.9, "cafedcl:best": 0.9}
    own["fedprox"] = 0.8
    runs = [
        record(
            method,
            seed,
            None,
            server={"accuracy": server[method][seed]} if method in server else {},
            own={"client_mean": value},
        )
        for method, value in own.items()
        for seed in range(2)
    ]
    write(tmp_path, "table1", runs)
    text = page["block"]("table1:protocol", tmp_path)
    # The paper's Table 1 has FedAvg at 60.32, MOON at 82.06 and FedProto at 88.33.
    assert cells(text, "`fedprox`")[2] == "+0.0", "and not -0.0"
    assert cells(text, "`moon`")[1:] == ["+21.7", "+1.0", "-10.0", "+25.0"]
    assert cells(text, "`fedproto`")[1:] == ["+28.0", "–", "+10.0", "+45.0"]
    assert cells(text, "`cafedcl`")[1:] == ["+30.8", "+10.0", "+5.0", "+40.0"]
    assert "cafedcl:best" not in text, "the paper does not have it"
    assert text.endswith("<sub>resnet18, width 0.5; 100 rounds; seeds 0 and 1</sub>\n\n")


def test_variants_of_all_settings_stand_in_one_table(page: dict[str, Any], tmp_path: Path) -> None:
    points = {
        "a": {"cafedcl": [0.5, 0.6, 0.7], "cafedcl:no-geo": [0.4, 0.55, 0.67], "fedproto": [0.1]},
        "b": {"cafedcl": [0.5, 0.5, 0.5], "cafedcl:no-geo": [0.5, 0.6]},
    }
    runs = [
        record(method, seed, value, setting=setting)
        for setting, its in points.items()
        for method, values in its.items()
        for seed, value in enumerate(values)
    ]
    write(tmp_path, "ablation", runs)
    text = page["block"]("ablation:variants", tmp_path)
    gaps = [-10.0, -5.0, -3.0]
    error = np.std(gaps, ddof=1) / math.sqrt(3)
    p = scipy.stats.ttest_1samp(gaps, 0).pvalue
    assert cells(text, "`cafedcl:no-geo`")[1:] == [f"-6.00 ± {error:.2f} ({p:.3f})"] * 2 + [
        "n/a",
        "n/a",
    ]
    assert "fedproto" not in text


def test_points_behind_the_best_are_means_over_the_settings_that_a_method_has(
    page: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, "long_tail", long_tail_runs(1))
    text = page["block"]("long_tail:behind", tmp_path)
    # Best is `cafedcl` with 80 in setting a, `cafedcl:best` with 70 in b; central does not count.
    assert cells(text, "`cafedcl:best`")[1:4] == ["12.5 (25.0)", "1", "2"]
    assert cells(text, "`cafedcl`")[1:4] == ["0.0 (0.0)", "1", "1"]
    assert cells(text, "`fedavg`")[1:] == ["25.0 (30.0)", "0", "2"] * 2
    assert "central" not in text
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["cafedcl", "cafedcl:best", "fedavg", "moon"]


def test_the_coverage_counts_settings_methods_runs_and_seeds(
    page: dict[str, Any], tmp_path: Path
) -> None:
    runs = [record("fedavg", seed, 0.5) for seed in range(3)] + [record("moon", 0, 0.5)]
    write(tmp_path, "table1-short", runs)
    write(tmp_path, "table2-short", [record("fedavg", 4, 0.5, setting="other")])
    for name in ("table1", "table2"):
        path = tmp_path / f"{name}-short.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "study": name, "scale": {"name": "short"}}))
    text = page["block"]("table1+table2:coverage", tmp_path)
    network = ["resnet18, width 0.5", "100"]
    assert cells(text, "`table1`, short")[1:] == ["1", "2", "4", *network, "1 to 3"]
    assert cells(text, "`table2`, short")[1:] == ["1", "1", "1", *network, "1"]


def test_repeats_are_runs_of_the_same_configuration_with_other_scores(
    page: dict[str, Any], tmp_path: Path
) -> None:
    first = [record("moon", 0, 0.50), record("moon", 1, 0.6), record("central", 0, 0.7)]
    tuned = record("moon", 1, 0.1, options={"train.lr": 0.5})
    second = [
        record("moon", 0, 0.53),
        record("moon", 1, 0.6),
        tuned,
        record("moon", 2, 0.4),
        record("central", 0, 0.75, own={}, options={"evaluate.every": 5}),
        record("moon", 0, 0.9, changed={"method.mu": 1.0}),
    ]
    write(tmp_path, "table1", first)
    write(tmp_path, "ablation", second)
    write(tmp_path, "skin", [record("moon", 2, 0.41), record("moon", 2, 0.4)])
    text = page["block"]("table1+ablation+skin:repeats", tmp_path)
    # Seed 1 is the same run in two files; the tuned and the changed run are other configurations.
    assert cells(text, "federated methods, server: accuracy")[1:] == ["2", "2.00", "3.00"]
    assert cells(text, "federated methods, own: client mean")[1:] == ["2", "2.00", "3.00"]
    assert cells(text, "`local` and `central`, server: accuracy")[1:] == ["1", "5.00", "5.00"]
    assert "`local` and `central`, own" not in text


def test_the_tables_on_the_pages_are_those_of_the_result_files(page: dict[str, Any]) -> None:
    page["main"](["--check"])


def test_a_page_is_written_and_a_stale_one_is_found(page: dict[str, Any], tmp_path: Path) -> None:
    file, words = (
        tmp_path / "page.md",
        ["--page", str(tmp_path / "page.md"), "--results", str(tmp_path)],
    )
    file.write_text(
        "# Title\n<!-- table:table1:methods -->\n<!-- /table -->\nend\n", encoding="utf-8"
    )
    page["main"](words)
    assert "No result file yet" in file.read_text(encoding="utf-8")
    page["main"]([*words, "--check"])
    write(tmp_path, "table1", main_runs())
    with pytest.raises(SystemExit, match="not up to date"):
        page["main"]([*words, "--check"])
    page["main"](words)
    page["main"]([*words, "--check"])
    text = file.read_text(encoding="utf-8")
    assert "cifar10-practical" in text
    assert text.endswith("<!-- /table -->\nend\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- table:table1:method -->\n<!-- /table -->", "did you mean 'methods'"),
        ("<!-- table:tabel1:methods -->\n<!-- /table -->", "did you mean 'table1'"),
        ("<!-- table:table1:methods -->\n", "needs its"),
        ("<!-- table:table2:methods -->\n<!-- /table -->", "table2.json: not a result"),
    ],
)
def test_a_mistake_is_one_clear_line(
    page: dict[str, Any], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "page.md"
    file.write_text(text, encoding="utf-8")
    (tmp_path / "table2.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=said):
        page["main"](["--page", str(file), "--results", str(tmp_path)])
