"""Exported models give what `predict` gives, for every method."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.export.formats import ENDINGS, as_onnx, exported_program, load_safetensors, write_model
from cafedcl.federation.result import Run
from cafedcl.federation.rounds import Federation
from cafedcl.federation.runs import _result
from cafedcl.methods import find_method, method_names

PERSONAL = ("fedproto", "fedtgp", "local", "fedrod", "fedloge")
"""Methods whose clients keep weights of their own."""
WITHOUT_SERVER = ("fedproto", "fedtgp", "local")


@pytest.fixture(scope="module")
def trained(tiny: Callable[..., Federation]) -> Callable[[str], Run]:
    """A run of one round; every method is trained once."""
    runs: dict[str, Run] = {}

    def train(method: str) -> Run:
        if method not in runs:
            settings = {"federation__rounds": 1, "federation__participation": 1.0}
            federation = tiny(method, **settings, evaluate__full=True)
            federation.step()
            runs[method] = _result(federation, None)
        return runs[method]

    return train


def clients_of(method: str) -> list[int | None]:
    clients: list[int | None] = [] if method in WITHOUT_SERVER else [None]
    return clients + ([0] if method in PERSONAL else [])


@pytest.mark.parametrize("method", method_names())
def test_every_method_has_a_model_that_can_be_called(
    method: str, trained: Callable[[str], Run], digits: Dataset
) -> None:
    run = trained(method)
    images = digits.test_x[:5]
    assert clients_of(method)
    for client in clients_of(method):
        expected = run.predict(images, client)
        found = run.served(client)(images)
        assert not found.requires_grad
        assert torch.allclose(found, expected.probabilities, atol=1e-6)
        with torch.no_grad():
            assert torch.equal(run.served(client).judge(images)[1], expected.labels)
        probable = run.predict(images, client, decide_by="probability")
        assert torch.equal(probable.labels, found.argmax(1))


def methods_with_code_of_their_own() -> list[str]:
    """Return one method of each kind that predicts by other code, or by another classifier, than
    the others: the program of the rest is the same.
    """
    kinds: dict[tuple[object, ...], str] = {}
    for name in method_names():
        method, _ = find_method(name)
        kinds.setdefault((method.scores, method.embed, method.head), name)
    return list(kinds.values())


@pytest.mark.parametrize("method", methods_with_code_of_their_own())
def test_every_kind_of_prediction_can_be_exported(
    method: str, trained: Callable[[str], Run], digits: Dataset
) -> None:
    run = trained(method)
    images = digits.test_x[:5]
    for client in clients_of(method):
        found = run.served(client)(images)
        program = exported_program(run.served(client)).module()
        for number in (1, 5):
            probabilities, predicted, *_ = program(images[:number])
            assert torch.equal(predicted, run.predict(images[:number], client).labels)
            assert not probabilities.requires_grad
            assert torch.allclose(probabilities, found[:number], atol=1e-5)


@pytest.mark.parametrize(
    ("method", "client"), [("cafedcl", None), ("fedproto", 0), ("mp-fedcl", None)]
)
def test_an_onnx_file_gives_what_predict_gives(
    method: str,
    client: int | None,
    trained: Callable[[str], Run],
    digits: Dataset,
    tmp_path: Path,
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = trained(method)
    file = tmp_path / "model.onnx"
    write_model(run, "onnx", file, client)
    session = onnxruntime.InferenceSession(file)
    images = digits.test_x[:9]
    expected = run.predict(images, client)
    for number in (1, 9):
        found, predicted, *_ = session.run(None, {"images": images[:number].numpy()})
        assert np.abs(found - expected.probabilities[:number].numpy()).max() < 1e-4
        assert predicted.tolist() == expected.labels[:number].tolist()
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(run.names)
    if expected.strangeness is not None:
        strange = session.run(["strangeness"], {"images": images.numpy()})[0]
        assert np.abs(strange - expected.strangeness.numpy()).max() < 1e-4


def test_a_file_for_pytorch_needs_nothing_else(
    trained: Callable[[str], Run], digits: Dataset, tmp_path: Path
) -> None:
    run = trained("cafedcl")
    write_model(run, "torch", tmp_path / "model.pt2")
    extra = {"about.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    found = program(digits.test_x[:3])[0]
    assert torch.allclose(found, run.predict(digits.test_x[:3]).probabilities, atol=1e-5)
    assert json.loads(extra["about.json"])["classes"] == list(run.names)


def test_safetensors_are_read_back_into_the_model(
    trained: Callable[[str], Run], digits: Dataset, tmp_path: Path
) -> None:
    run = trained("cafedcl")
    write_model(run, "safetensors", tmp_path / "model.safetensors")
    forgotten = {name: torch.zeros_like(value) for name, value in run.state.items()}
    empty = replace(run, state=forgotten)
    found = load_safetensors(tmp_path / "model.safetensors", empty)
    with torch.no_grad():
        assert torch.equal(found(digits.test_x[:3]), run.model(digits.test_x[:3]))
    (tmp_path / "other.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CafedclError, match="not a file of this run's model"):
        load_safetensors(tmp_path / "other.safetensors", run)


@pytest.mark.parametrize("to", ["torch", "safetensors"])
def test_a_file_that_cannot_be_written_is_one_line_and_the_earlier_one_stays(
    to: str, trained: Callable[[str], Run], tmp_path: Path
) -> None:
    file = tmp_path / "model"
    write_model(trained("fedavg"), to, file)
    earlier = file.read_bytes()
    (tmp_path / "model.tmp").mkdir()
    with pytest.raises(CafedclError, match="cannot be written: Is a directory"):
        write_model(trained("fedavg"), to, file)
    assert file.read_bytes() == earlier


def test_the_temperature_is_inside(trained: Callable[[str], Run], digits: Dataset) -> None:
    run = trained("fedavg")
    hot = {
        "calibration/server/temperature": torch.tensor([1e6]),
        "calibration/server/prior": torch.zeros(10),
    }
    model = replace(run, tables={**run.tables, **hot}).model
    with torch.no_grad():
        assert torch.allclose(model(digits.test_x[:2]), torch.full((2, 10), 0.1), atol=1e-4)


def test_without_onnx_a_sentence_says_what_to_install(
    trained: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(CafedclError, match="onnxscript is not installed; install the extra onnx"):
        as_onnx(trained("fedavg").model, {})


@pytest.mark.parametrize("to", ENDINGS)
def test_a_file_that_cannot_be_written_is_one_line(
    to: str, trained: Callable[[str], Run], tmp_path: Path
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxscript")
    (tmp_path / "model").mkdir()
    run = trained("fedavg")
    # It is known before the model is converted, which takes long.
    with (
        patch.object(Run, "served", side_effect=AssertionError),
        pytest.raises(CafedclError, match="model: cannot be written: Is a directory"),
    ):
        write_model(run, to, tmp_path / "model")


def test_everybody_may_read_an_exported_file_who_may_read_others(
    trained: Callable[[str], Run], tmp_path: Path
) -> None:
    write_model(trained("fedavg"), "safetensors", tmp_path / "model.safetensors")
    (tmp_path / "other").touch()
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_class_by_score_need_not_be_the_most_probable_one(
    trained: Callable[[str], Run], digits: Dataset
) -> None:
    run = trained("fedavg")
    usual = run.predict(digits.test_x[:20])
    common = {"calibration/server/prior": 100.0 * torch.eye(10)[7]}
    skewed = replace(run, tables={**run.tables, **common})
    by_score = skewed.predict(digits.test_x[:20])
    by_probability = skewed.predict(digits.test_x[:20], decide_by="probability")
    assert torch.equal(by_score.labels, usual.labels)
    assert torch.equal(by_score.similarity, usual.similarity)
    assert by_probability.names == ["7"] * 20
    assert by_score.improbable == int((usual.labels != 7).sum()) > 0
    assert by_probability.improbable == 0
    with torch.no_grad():
        scores = skewed.model.method.similarity(skewed.model.scores(digits.test_x[:20]))
    assert torch.equal(by_probability.similarity, scores[:, 7])


def test_an_unknown_way_to_decide_and_a_prior_of_other_classes_are_named(
    trained: Callable[[str], Run], digits: Dataset
) -> None:
    run = trained("fedavg")
    with pytest.raises(CafedclError, match="decide_by = 'chance'"):
        run.predict(digits.test_x[:1], decide_by="chance")  # type: ignore[arg-type]
    wrong = replace(run, tables={**run.tables, "calibration/server/prior": torch.zeros(9)})
    with pytest.raises(CafedclError, match="has 9 classes, and its model 10"):
        wrong.predict(digits.test_x[:1])
