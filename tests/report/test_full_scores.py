import base64
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cafedcl.core.tensors import pack, unpack
from cafedcl.report.evaluations import RunEvaluations, read_evaluations
from cafedcl.report.full_scores import ranked_classes, reliability, wrong_images
from cafedcl.report.run_summary import read_run

Maker = Callable[..., Path]


@pytest.fixture
def run(make_run: Maker, tmp_path: Path) -> Path:
    return make_run(tmp_path / "a", extras=("server", "scores"), names=["a", "b", "c", "d"])


def read(run: Path) -> RunEvaluations:
    return read_evaluations(read_run(run))


def test_bins_become_probabilities_and_shares_of_right_predictions(run: Path) -> None:
    found = reliability(read(run))
    assert found["server"] == [{"images": 4.0, "confidence": 75.0, "accuracy": 50.0}] * 15
    (one, *_) = found["own"]
    assert one == {
        "images": 10.0,
        "confidence": pytest.approx(90.0),
        "accuracy": pytest.approx(50.0),
    }, "five of six clients were scored"


def test_scores_per_class_are_in_percent(run: Path) -> None:
    found = ranked_classes(read(run))
    assert found.keys() == {"auroc", "auprc", "sensitivity"}
    assert all(50 <= value <= 100 for value in found["auroc"])


def test_wrong_images_are_pictures_with_the_names_of_their_classes(run: Path) -> None:
    evaluations = read(run)
    first, second = wrong_images(evaluations)
    assert (first["label"], first["predicted"]) == ("a", "b")
    assert second["probability"] == pytest.approx(80)
    picture = Image.open(io.BytesIO(base64.b64decode(first["png"])))
    expected = evaluations.latest("wrong/images")
    assert expected is not None
    assert np.array_equal(np.asarray(picture), expected[0].transpose(1, 2, 0))


def test_wrong_images_of_unknown_classes_are_left_out_and_named(run: Path) -> None:
    file = run / "evaluations" / "000002.safetensors"
    tensors, header = unpack(file.read_bytes())
    tensors["wrong/labels"] += 9
    file.write_bytes(pack(tensors, header))
    evaluations = read(run)
    assert wrong_images(evaluations) == []
    assert evaluations.problems == [f"{run}: the wrong images are damaged"]


def test_a_run_of_an_earlier_version_has_none_of_it(make_run: Maker, tmp_path: Path) -> None:
    evaluations = read(make_run(tmp_path / "old"))
    assert (reliability(evaluations), ranked_classes(evaluations)) == ({}, {})
    assert wrong_images(evaluations) == []
