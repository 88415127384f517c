import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cafedcl.report import scenes
from cafedcl.report.collect import collect
from cafedcl.report.details import shown_clients
from cafedcl.report.evaluations import Data, Evaluation, RunEvaluations, read_evaluations, spaced
from cafedcl.report.run_summary import RunSummary, read_run
from cafedcl.report.runs import read_runs

Maker = Callable[..., Path]


def evaluations(*tables: dict[str, np.ndarray], counts: np.ndarray | None = None) -> RunEvaluations:
    data = None if counts is None else Data(counts, [str(c) for c in range(counts.shape[1])])
    return RunEvaluations(
        RunSummary(Path(), "finished"),
        [Evaluation(t, table) for t, table in enumerate(tables)],
        data,
        [],
    )


def test_weights_are_shares_of_trust_among_those_who_hold_the_class() -> None:
    trust = np.array([[0.2, 0.9], [0.6, 0.5], [np.nan, np.nan]])
    counts = np.array([[3, 0], [5, 2], [1, 1]])
    found = scenes.collect_confidence(
        evaluations({"notes/confidence": trust}, counts=counts), np.arange(3)
    )
    assert found is not None
    np.testing.assert_allclose(
        found["parts"]["alpha"][0], [[0.25, np.nan], [0.75, 1.0], [np.nan, np.nan]]
    )
    np.testing.assert_allclose(
        found["parts"]["trust"][0], [[0.2, np.nan], [0.6, 0.5], [np.nan, np.nan]]
    )


def test_a_class_that_nobody_trusts_has_no_weights() -> None:
    counts = np.array([[1, 1], [1, 1]])
    found = scenes.collect_confidence(
        evaluations({"notes/confidence": np.array([[0.0, 1], [0, 1]])}, counts=counts), np.arange(2)
    )
    assert found is not None
    np.testing.assert_allclose(found["parts"]["alpha"][0], [[np.nan, 0.5], [np.nan, 0.5]])


def test_a_regular_simplex_is_at_the_ideal_distance() -> None:
    """Three directions at 120°: √3 apart, which is √(2C/(C−1)) for C = 3; their lengths do not
    matter.
    """
    angles = np.radians([90, 210, 330])
    corners = np.stack([np.cos(angles), np.sin(angles)], 1) * [[1], [2], [5]]
    found = scenes.collect_prototypes(evaluations({"anchors/prototypes": corners}), 3)
    assert found is not None
    assert found["ideal"] == pytest.approx(math.sqrt(3))
    for side in ("low", "mean", "high"):
        assert found["distance"][side][0] == pytest.approx(math.sqrt(3))
    assert sum(found["explained"]) == pytest.approx(1)
    gaps = [
        np.linalg.norm(found["xy"][0, a] - found["xy"][0, b]) for a, b in ((0, 1), (1, 2), (0, 2))
    ]
    assert gaps == pytest.approx([math.sqrt(3)] * 3), "a plane is shown as it is"


def test_one_plane_serves_all_rounds() -> None:
    rng = np.random.default_rng(0)
    early, late = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    found = scenes.collect_prototypes(
        evaluations({"anchors/prototypes": early}, {"anchors/prototypes": late}), 4
    )
    again = scenes.collect_prototypes(
        evaluations({"anchors/prototypes": late}, {"anchors/prototypes": early}), 4
    )
    assert found is not None
    assert again is not None
    np.testing.assert_allclose(found["xy"][0], again["xy"][1], atol=1e-9)


def test_unknown_prototypes_are_left_out_and_several_per_class_averaged() -> None:
    table = np.array([[1.0, 0], [0, 1], [9, 9]])
    first = {"anchors/prototypes": table, "anchors/known": np.array([True, True, False])}
    second = {
        "anchors/pool": np.array([[1.0, 0], [0, 1], [0, 3]]),
        "anchors/labels": np.array([0, 0, 2]),
    }
    known, pooled = (scenes.prototypes_of(Evaluation(0, table), 3) for table in (first, second))
    np.testing.assert_allclose(known, [[1, 0], [0, 1], [np.nan, np.nan]])
    half = math.sqrt(0.5)
    np.testing.assert_allclose(pooled, [[half, half], [np.nan, np.nan], [0, 1]])


def test_loop_is_absent_until_it_is_recorded() -> None:
    assert scenes.collect_loop(evaluations({"server/clients": np.ones(2)}), 3) is None
    found = scenes.collect_loop(
        evaluations({"loop/drift": np.ones(3), "loop/variance": np.zeros(3)}), 3
    )
    assert found is not None
    assert set(found["parts"]) == {"drift", "variance"}


def test_evenly_spaced() -> None:
    assert spaced(list(range(100)), 5) == [0, 25, 50, 74, 99]
    assert spaced([1, 2], 5) == [1, 2]
    assert spaced([1, 2, 3], 1) == [3]
    assert len(shown_clients(5000)) == 200
    assert shown_clients(5000)[[0, -1]].tolist() == [0, 4999]


def test_curves_are_means_over_seeds_with_sums_of_bytes_and_seconds(
    make_run: Maker, tmp_path: Path
) -> None:
    for seed, accuracy in enumerate((0.6, 0.9)):
        make_run(tmp_path / f"{seed}", "fedavg", seed, accuracy)
    (group,) = collect(read_runs([tmp_path]))["groups"]
    (curve,) = group["curves"]
    assert curve["rounds"] == [1, 2, 3]
    assert curve["bytes"] == [4000, 8000, 12000]
    assert curve["seconds"] == [1.75, 3.5, 5.25]
    assert curve["server"]["accuracy"]["mean"] == pytest.approx([25, 50, 75])
    assert curve["server"]["accuracy"]["std"][-1] == pytest.approx(30 / math.sqrt(2))
    assert group["cost"][0]["phases"] == pytest.approx(
        {"train": 1, "aggregate": 0.25, "evaluate": 0.5}
    )
    assert (group["cost"][0]["bytes"], group["cost"][0]["seconds"]) == (12000, 5.25)


def test_the_worst_client_and_its_reasons(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", extras=("server", "confidence"))
    (group,) = collect(read_runs([run]))["groups"]
    seen = read_evaluations(read_run(run))
    scores, recall = seen.latest("own/all/score"), seen.latest("own/all/recall")
    assert scores is not None
    assert recall is not None
    first = group["details"][0]["worst"]["own"][0]
    assert first["client"] == int(scores.argmin())
    assert first["counts"] == sorted(first["counts"], reverse=True)
    assert first["recall"] == pytest.approx(recall[first["client"], first["classes"]])
    assert len(first["confidence"]) == len(first["classes"])


def test_presets_and_sweeps(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "cafedcl", 0, 0.9, method__lam_geo=1.0)
    make_run(tmp_path / "a1", "cafedcl", 1, 0.9, method__lam_geo=1.0)
    make_run(tmp_path / "b", "cafedcl", 0, 0.8, method__lam_geo=0.0)
    make_run(tmp_path / "c", "cafedcl:no-geo", 0, 0.7)
    make_run(tmp_path / "d", "fedavg", 0, 0.6)
    (group,) = collect(read_runs([tmp_path]))["groups"]
    assert [entry["label"] for entry in group["entries"]] == ["fedavg", "cafedcl", "cafedcl:no-geo"]
    assert group["ablation"] == [{"base": "cafedcl", "entries": [1, 2]}]
    (sweep,) = group["sensitivity"]
    assert (sweep["option"], sweep["values"], sweep["centre"]) == (
        "method.lam_geo",
        [0.0, 1.0],
        1.0,
    )
    assert sweep["server"]["accuracy"] == [pytest.approx([80]), pytest.approx([90])]


def test_damaged_tables_are_named_and_left_out(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "evaluations" / "000001.safetensors").write_bytes(b"\x08\x00\x00")
    (run / "evaluations" / "notes.safetensors").write_bytes(b"")
    (run / "data.safetensors").write_bytes(b"noise")
    (run / "environment.json").write_text("[1]")
    found = collect(read_runs([run]))
    assert [problem.partition(":")[0].removeprefix(f"{run}/") for problem in found["problems"]] == [
        "data.safetensors",
        "evaluations/000001.safetensors",
        "environment.json",
    ]
    assert "map" not in found["groups"][0]
    assert found["groups"][0]["details"][0]["clients"].keys() == {"server", "own"}


def test_a_large_state_beside_the_tables_is_not_read(make_run: Maker, tmp_path: Path) -> None:
    from safetensors.numpy import load, save

    run = make_run(tmp_path / "a", rounds=1)
    file = run / "evaluations" / "000000.safetensors"
    file.write_bytes(save({**load(file.read_bytes()), "anchors/control/weight": np.zeros(1000)}))
    assert "anchors/control/weight" not in read_evaluations(read_run(run)).rounds[0].tables


def test_the_page_of_a_setting_says_what_is_not_as_usual(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data__images=200)
    groups = collect(read_runs([tmp_path]))["groups"]
    assert [group["others"] for group in groups] == ["", "data.images=200"]
