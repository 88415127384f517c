"""The same tuning budget for every method: runs, scores, and refused plans."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cafedcl.compare.study import STUDIES, read_study
from cafedcl.config.sections import read_file
from cafedcl.config.split_options import parse_split
from cafedcl.data import Dataset
from cafedcl.methods import find_method
from cafedcl.task.resolve import resolve

FILE = Path(__file__).parents[2] / "experiments" / "tuning.py"
PLAN = """
settings = [
  { data = "digits", split = "dirichlet:0.3" },
  { data = "digits", split = "pathological:4" },
]
hold_out = 0.2
score = "server.accuracy"
[study]
ours = "cafedcl:best"
title = "The best of few"
about = "As an example."
untuned = ["local"]
settings = [{ name = "digits", data = "digits", split = "iid" }]
[options]
"federation.rounds" = 1
"federation.clients" = 3
"model.name" = "mlp"
"train.epochs" = 1
[scores]
fedproto = "own.client_mean"
[candidates]
fedavg = [{ "train.lr" = 0.0001 }, { "train.lr" = 0.3 }]
fedproto = [{ "train.lr" = 0.3 }, { "train.lr" = 0.0001, "method.lam" = 0.5 }]
"""


@pytest.fixture(scope="module")
def tuning() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def run(tuning: dict[str, Any], plan: Path, *words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        tuning["main"](["--plan", str(plan), "--jobs", "1", "--quiet", *words])
    return ended.value.code


@pytest.mark.usefixtures("shared_processes")
def test_all_candidates_are_scored_on_the_same_held_out_images(
    tuning: dict[str, Any], tmp_path: Path, digits: Dataset
) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN, encoding="utf-8")
    assert run(tuning, plan, "--out", str(out), "--methods", "fedavg") == 0
    assert list(json.loads((out / "tuning.json").read_text())["methods"]) == ["fedavg"]
    assert run(tuning, plan, "--out", str(out)) == 0
    result = json.loads((out / "tuning.json").read_text())
    assert result["budget"] == 2
    assert "the test set was not used" in result["measured_on"]
    for method, protocol, score in (
        ("fedavg", "server", "accuracy"),
        ("fedproto", "own", "client_mean"),
    ):
        it = result["methods"][method]
        values = []
        for row in it["candidates"]:
            folders = sorted(out.glob(f"digits/*/{method}/*lr={row['options']['train.lr']}*/s0"))
            assert [folder.parts[-4][:9] for folder in folders] == ["dirichlet", "pathologi"]
            of_splits = []
            for folder in folders:
                (line,) = [
                    json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()
                ]
                of_splits.append(line[protocol][score])
                assert read_file(folder / "config.toml")["data"]["name"] == str(
                    (out / "digits" / "held-out.npz").resolve()
                )
            assert row["values"] == of_splits
            values.append(sum(of_splits) / 2)
        assert [row["value"] for row in it["candidates"]] == pytest.approx(values)
        assert it["value"] == pytest.approx(max(values))
        assert it["best"]["train.lr"] == 0.3
    again = tmp_path / "again"
    more = PLAN.replace('"train.lr" = 0.3 }]', '"train.lr" = 0.3 }, { "train.lr" = 0.1 }]').replace(
        "0.5 }]", "0.5 }, {}]"
    )
    plan.write_text(more, encoding="utf-8")
    assert (
        run(
            tuning,
            plan,
            "--out",
            str(again),
            "--from",
            str(out / "tuning.json"),
            "--methods",
            "fedavg",
        )
        == 0
    )
    (made,) = {folder.parent.name for folder in again.glob("digits/*/*/*/s0")}
    assert "lr=0.1" in made, "only the candidate that was added is run"
    merged = json.loads((again / "tuning.json").read_text())
    assert (
        merged["methods"]["fedavg"]["candidates"][:2] == result["methods"]["fedavg"]["candidates"]
    )
    assert merged["methods"]["fedavg"]["candidates"][2]["value"] is not None
    assert (
        merged["methods"]["fedproto"]["candidates"][:2]
        == result["methods"]["fedproto"]["candidates"]
    )
    assert merged["methods"]["fedproto"]["without_score"] == 1
    assert merged["earlier"] == [result["environment"]]
    said = run(
        tuning, plan, "--out", str(again), "--from", str(out / "tuning.json"), "--seeds", "2"
    )
    assert "its seeds was 1, not 2" in said
    plan.write_text(more.replace('score = "server.accuracy"', 'score = "server.balanced"'), "utf-8")
    said = run(tuning, plan, "--out", str(again), "--from", str(out / "tuning.json"))
    assert "fedavg was scored by server.accuracy, not by server.balanced" in said
    plan.write_text(more, encoding="utf-8")
    assert "not a result of this tuning" in run(
        tuning, plan, "--out", str(again), "--from", str(again / "shared.json")
    )
    plan.write_text(PLAN, encoding="utf-8")
    with np.load(out / "digits" / "held-out.npz") as held:
        assert len(held["y_train"]) + len(held["y_test"]) == len(digits.train_y)
    assert str(tmp_path) not in json.dumps(result["environment"]), (
        "a result file names no folder of its machine"
    )
    said = run(tuning, plan, "--out", str(out), "--set", "train.crop=1")
    assert "its runs share other options" in said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (', { "train.lr" = 0.3 }]', "]", "same number of candidates (fedavg 1, fedproto 2)"),
        ("= 0.3 }]", "= 0.0001 }]", "fedavg: one of them appears twice"),
        ("method.lam", "method.lamb", "fedproto: method.lamb"),
        ("hold_out = 0.2", "", "hold_out: it is missing"),
        ('split = "pathological:4"', 'splits = ""', "settings: splits: there is no such entry"),
        ("hold_out", "held_out = 1\nhold_out", "held_out: there is no such entry"),
        ('fedproto = "own', 'fedprot = "own', "did you mean 'fedproto'"),
        ("own.client_mean", "own.client_men", "did you mean 'own.client_mean'"),
    ],
)
def test_a_plan_that_is_not_fair_or_not_right_is_one_line(
    tuning: dict[str, Any], tmp_path: Path, before: str, after: str, said: str
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace(before, after, 1), encoding="utf-8")
    assert said in run(tuning, plan, "--out", str(tmp_path / "out"))


def test_the_plan_gives_every_method_its_defaults_among_as_many_candidates(
    tuning: dict[str, Any], tmp_path: Path
) -> None:
    plan = tuning["Tuning"].read(FILE.with_suffix(".toml"))
    assert plan.budget == 12
    usual = {"train.lr": 0.1}
    for name, points in plan.candidates.items():
        jobs = plan.jobs(tmp_path, name, {s: plan.sweep(name, s, 1, ()) for s in plan.settings})
        assert len({job.folder for _, (job,) in jobs}) == 12
        options = find_method(name)[0].Options()
        own = {f"method.{key}": value for key, value in vars(options).items()}
        assert any({**own, **usual, **point} == {**own, **usual} for point in points), name


def test_every_data_set_of_a_plan_has_its_own_held_out_images(
    tuning: dict[str, Any], tmp_path: Path
) -> None:
    other = '{ data = "fashion-mnist", split = "dirichlet:0.3" }'
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace('{ data = "digits", split = "pathological:4" }', other))
    read = tuning["Tuning"].read(plan)
    sweeps = {where: read.sweep("fedavg", where, 1, ()) for where in read.settings}
    (_, runs), _ = read.jobs(tmp_path / "out", "fedavg", sweeps)
    folders = [run.folder.relative_to(tmp_path / "out").parts[0] for run in runs]
    assert folders == ["digits", "fashion-mnist"]
    for run, folder in zip(runs, folders, strict=True):
        assert run.tables["data"]["name"].endswith(f"/out/{folder}/held-out.npz")


def test_an_interrupted_tuning_writes_what_it_has(
    tuning: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN, encoding="utf-8")
    monkeypatch.setitem(tuning["run"].__globals__, "run_all", interrupt)
    assert run(tuning, plan, "--out", str(out)) == 130
    assert json.loads((out / "tuning.json").read_text())["methods"] == {}


def test_the_study_of_tuned_methods_and_the_preset_are_what_tuning_found(
    tuning: dict[str, Any], tmp_path: Path
) -> None:
    result = json.loads((FILE.parent / "results" / "tuning.json").read_text(encoding="utf-8"))
    for name, it in result["methods"].items():
        scores = [row["value"] for row in it["candidates"] if row["value"] is not None]
        (best,) = [row["options"] for row in it["candidates"] if row["value"] == max(scores)][:1]
        assert it["best"] == best, name
    written = tmp_path / "tuned.toml"
    with pytest.raises(SystemExit) as ended:
        tuning["main"](
            ["--from", str(FILE.parent / "results" / "tuning.json"), "--study", str(written)]
        )
    assert ended.value.code == 0
    assert written.read_text(encoding="utf-8") == (STUDIES / "tuned.toml").read_text(
        encoding="utf-8"
    )
    study = read_file(written)
    assert study["each"] == {
        name: it["best"] for name, it in result["methods"].items() if name != "cafedcl"
    }
    assert study["settings"] == read_file(STUDIES / "table1.toml")["settings"][:2]
    preset = find_method("cafedcl:fixed-anchors")[1]
    assert {f"method.{name}": value for name, value in preset.items()} == result["methods"][
        "cafedcl"
    ]["best"]
    with pytest.raises(SystemExit) as ended:
        tuning["main"](["--from", str(tmp_path / "nothing.json"), "--study", str(written)])
    assert "cannot be read" in str(ended.value.code)


def test_the_study_of_the_larger_network_is_what_its_tuning_found(
    tuning: dict[str, Any], tmp_path: Path
) -> None:
    result = FILE.parent / "results" / "large-tuning.json"
    written = tmp_path / "resnet.toml"
    plan = FILE.with_name("tuning_large.toml")
    assert run(tuning, plan, "--from", str(result), "--study", str(written)) == 0
    text = written.read_text(encoding="utf-8")
    assert text == (STUDIES / "resnet.toml").read_text(encoding="utf-8")
    methods = json.loads(result.read_text(encoding="utf-8"))["methods"]
    study = read_study(str(written))
    assert study.each == {name: it["best"] for name, it in methods.items()}
    assert study.options == {"model.width": tuning["Tuning"].read(plan).options["model.width"]}
    assert text.startswith("# cafedcl reproduce resnet --scale large\n")


def test_a_study_has_the_settings_of_its_plan_and_the_options_of_the_best_candidates(
    tuning: dict[str, Any], tmp_path: Path
) -> None:
    """What is not an option of the method stands in the study for CAFedCL's preset, too."""
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    best = {
        "fedavg": {"train.lr": 0.3},
        "cafedcl": {"method.anchors": "fixed", "server.momentum": 0.5},
    }
    result = tmp_path / "found.json"
    methods = {name: {"best": options} for name, options in best.items()}
    result.write_text(json.dumps({"methods": methods}), encoding="utf-8")
    written = tmp_path / "best.toml"
    assert run(tuning, plan, "--from", str(result), "--study", str(written)) == 0
    study = read_study(str(written))
    assert study.title == "The best of few"
    assert study.methods == ("local", "fedavg", "cafedcl:best")
    assert [(one.name, one.split) for one in study.settings] == [("digits", "iid")]
    assert study.each == {"fedavg": {"train.lr": 0.3}, "cafedcl:best": {"server.momentum": 0.5}}
    assert "experiments/plan.toml --from experiments/results/found.json" in written.read_text()


def test_the_second_stage_begins_with_the_best_of_the_first(tuning: dict[str, Any]) -> None:
    result = FILE.parent / "results" / "long-tail-tuning.json"
    first = json.loads(result.read_text(encoding="utf-8"))["methods"]
    plan = tuning["Tuning"].read(FILE.with_name("tuning_long_tail_2.toml"))
    assert plan.candidates.keys() == first.keys()
    for method, (best, half, *others) in plan.candidates.items():
        assert best == first[method]["best"]
        assert half == {**best, "train.lr": best["train.lr"] / 2}
        if "server.momentum" in best and method != "cafedcl":
            momentum = {"server.momentum": round(1.3 - best["server.momentum"], 1)}
            assert others == [{**half, **momentum}, {**best, **momentum}]
        assert not {"method", "data"} & best.keys()


BEFORE = {"method.calibrate": 0.5, "method.smoothing": 1.0, "method.weights": "confidence"}
"""What `cafedcl:best` had until tuning_prior.toml."""
TODAY = {"method.lam_distill": 3.0}
"""The first candidate of a plan from after that."""


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("tuning_distill.toml", {"method.lam_distill": 0.0}),
        ("tuning_resnet.toml", {"method.lam_distill": 0.0, **BEFORE}),
        ("tuning_prior.toml", {"method.own_classes": "held", "method.calibrate": 0.5}),
        ("tuning_prior_resnet.toml", {"method.own_classes": "held", "method.calibrate": 0.5}),
        ("tuning_resnet_2.toml", TODAY),
        ("tuning_distill_2.toml", TODAY),
        ("tuning_average.toml", TODAY),
        ("tuning_large.toml", TODAY),
        ("tuning_baselines.toml", {}),
    ],
)
def test_later_plans_begin_with_the_options_of_the_study(
    name: str, ours: dict[str, Any], tuning: dict[str, Any], tmp_path: Path
) -> None:
    plan = tuning["Tuning"].read(FILE.with_name(name))
    chosen = read_study("long_tail").each
    for method, (first, *others) in plan.candidates.items():
        assert all(set(first) <= set(other) | {"server.momentum"} for other in others)
        if method == "cafedcl:best":  # The preset has its options, or what they were then.
            assert first == ours
            assert ours == TODAY or {**plan.options, **first}.items() >= BEFORE.items()
        else:
            assert first == chosen[method]
        sweeps = {where: plan.sweep(method, where, 1, ()) for where in plan.settings}
        # Every candidate has a run in every setting, with options that exist.
        runs = [len(jobs) for _, jobs in plan.jobs(tmp_path, method, sweeps)]
        assert runs == [len(plan.settings)] * plan.budget


def test_the_strongest_baselines_get_as_many_more_candidates_as_ours(
    tuning: dict[str, Any],
) -> None:
    """Ours with the small network: those of two plans, without the repeated first ones."""
    result = FILE.parent / "results" / "long-tail-tuning-2.json"
    second = json.loads(result.read_text(encoding="utf-8"))["methods"]
    scored = {
        name: found["value"]
        for name, found in second.items()
        if found["score"] == "server.balanced" and name != "cafedcl"
    }
    plan = tuning["Tuning"].read(FILE.with_name("tuning_baselines.toml"))
    named = {"creff", "fedyoyo", "ccvr", "fednh", "spherefed"}
    assert plan.candidates.keys() == named
    assert set(sorted(scored, key=lambda name: -scored[name])[:3]) < named
    ours = [
        tuning["Tuning"].read(FILE.with_name(f"tuning_{name}.toml")).budget - 1
        for name in ("distill", "prior")
    ]
    assert plan.budget - 1 == sum(ours)
    for first, *others in plan.candidates.values():
        assert all(other != first for other in others)


@pytest.mark.parametrize("name", ["tuning_long_tail.toml", "tuning_long_tail_2.toml"])
def test_every_setting_of_the_long_tails_can_be_resolved(name: str) -> None:
    study = read_file(FILE.with_name(name))["study"]
    assert len(study["settings"]) == 9
    for setting in study["settings"]:
        for split in (setting["split"], setting.get("smoke", setting["split"])):
            resolve({"data": {"name": setting["data"]}, "split": parse_split(split)})
