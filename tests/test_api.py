import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cafedcl
from cafedcl import CafedclError, Callback, Federation, Record
from cafedcl.api import as_words
from cafedcl.data import Dataset
from cafedcl.federation.predictions import as_images
from cafedcl.federation.result import Run
from cafedcl.methods.fedavg import FedAvg

FAST = {"model.name": "mlp", "train.epochs": 1, "engine.workers": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("api") / "run"
    return cafedcl.run(
        method="cafedcl", data="digits", clients=5, rounds=8, out=folder, settings=FAST
    )


def test_the_package_exports_exactly_these_names() -> None:
    names = [
        "CafedclError",
        "Callback",
        "ComparisonResult",
        "Config",
        "Federation",
        "Record",
        "Run",
        "SweepResult",
        "__version__",
        "compare",
        "export",
        "load",
        "report",
        "resolve",
        "resume",
        "run",
        "split",
        "sweep",
    ]
    assert cafedcl.__all__ == names
    assert all(getattr(cafedcl, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cafedcl.nonsense  # noqa: B018


def test_metrics_are_a_table_with_a_row_per_round(finished: Run) -> None:
    table = finished.metrics
    assert list(table.index) == list(range(8))
    assert {
        "server.accuracy",
        "server.client_std",
        "own.client_mean",
        "traffic.up_bytes",
        "loss.i2p",
    } <= set(table.columns)
    assert table["server.accuracy"].iloc[-1] > table["server.accuracy"].iloc[0]


def test_a_run_predicts_as_it_was_scored(finished: Run, digits: Dataset) -> None:
    images = digits.test_x[:, 0].numpy()
    found = finished.predict(images)
    share = float((found.labels == digits.test_y).float().mean())
    assert share > 0.7
    assert found.names[0] == str(int(found.labels[0]))
    assert finished.class_confidence is not None
    assert finished.class_confidence.shape == (10,)
    assert ((finished.class_confidence > 0) & (finished.class_confidence <= 1)).all()
    assert (found.similarity.abs() <= 1 + 1e-6).all()
    as_floats = finished.predict(images / 255)
    assert torch.equal(found.labels, as_floats.labels)


def test_a_loaded_run_is_the_run(finished: Run) -> None:
    assert finished.path is not None
    loaded = cafedcl.load(finished.path)
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(loaded.predict(images).similarity, finished.predict(images).similarity)
    assert loaded.metrics.equals(finished.metrics)
    assert loaded.prototypes is not None
    assert finished.prototypes is not None
    assert torch.equal(loaded.prototypes, finished.prototypes)
    assert loaded.prototypes.norm(dim=1).allclose(torch.ones(10))
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.model.parameters(), finished.model.parameters(), strict=True)
    )


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = cafedcl.run("fedavg", clients=3, rounds=1, settings=FAST)
    assert run.path is None
    assert list(tmp_path.iterdir()) == []
    assert run.prototypes is None
    assert run.class_confidence is None


def test_clients_that_all_weigh_the_same_have_no_confidence(finished: Run) -> None:
    run = cafedcl.run("cafedcl:no-confagg-uniform", clients=3, rounds=1, settings=FAST)
    assert run.state["server/confidence"].max() == 1
    assert run.class_confidence is None


def test_rounds_are_logged_where_asked(tmp_path) -> None:
    small = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1}
    quick = {"clients": 4, "settings": small, "callbacks": []}
    out = tmp_path / "run"
    cafedcl.run("fedavg", rounds=1, out=out, log="tensorboard", **quick)
    cafedcl.resume(out, [], rounds=2, log=["tensorboard"])
    assert len(list((out / "tensorboard").iterdir())) == 2
    with pytest.raises(CafedclError, match="log = 'mlflow': it needs a run folder; give out="):
        cafedcl.run("fedavg", rounds=1, log="mlflow", **quick)


def test_a_federation_can_be_stepped_and_watched() -> None:
    seen: list[int] = []

    class Count(Callback):
        def round_done(self, federation: Federation, record: Record) -> None:
            seen.append(record.round)

    tables = {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "federation": {"clients": 3, "rounds": 2},
    }
    with Federation(cafedcl.resolve(tables), [Count()]) as federation:
        record = federation.step()
        assert record.round == 0
        assert not federation.finished
        federation.step()
        assert federation.finished
    assert seen == [0, 1]


def test_images_come_in_every_usual_form() -> None:
    image = torch.arange(64, dtype=torch.uint8).view(8, 8)
    for form in (image, image[None], image[None, None], image[:, :, None], image[None, :, :, None]):
        assert torch.equal(as_images(form, (1, 8, 8)), image[None, None])
    colour = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    for form in (colour, colour[None], colour.permute(1, 2, 0), colour.permute(1, 2, 0)[None]):
        assert torch.equal(as_images(form, (3, 8, 8)), colour[None])


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (np.zeros((8, 9), np.uint8), "this run expects"),
        (np.zeros((2, 3, 8, 8), np.uint8), "this run expects"),
        (np.full((8, 8), 16.0), r"must lie in \[0, 1\]"),
        (np.zeros((8, 8), np.int64), "must be uint8"),
    ],
)
def test_images_of_another_form_are_refused(images: np.ndarray, reason: str) -> None:
    with pytest.raises(CafedclError, match=reason):
        as_images(images, (1, 8, 8))


def test_functions_that_share_a_name_with_a_folder_can_be_called_whatever_was_imported() -> None:
    from cafedcl.report.page import page

    assert callable(cafedcl.report)
    assert callable(cafedcl.compare)
    assert callable(cafedcl.export)
    assert cafedcl.report.page.page is page
    with pytest.raises(CafedclError, match="there is no such folder"):
        cafedcl.report("nowhere")


def test_a_split_is_a_table_of_clients_and_classes() -> None:
    table = cafedcl.split("pathological:2", clients=5)
    assert table.shape == (5, 10)
    assert list(table.index) == [f"client {k}" for k in range(5)]
    assert ((table > 0).sum(axis=1) <= 2).all()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("lr", r"^lr: there is no such argument; it is an option: settings=\{'train\.lr': …\}$"),
        ("round", "^round: there is no such argument; did you mean 'rounds'"),
        ("setting", "^setting: there is no such argument; did you mean 'settings'"),
        ("nonsense", "^nonsense: there is no such argument; "),
    ],
)
def test_an_argument_that_does_not_exist_is_one_line(flag: str, said: str) -> None:
    for call in (cafedcl.run, cafedcl.split):
        with pytest.raises(CafedclError, match=said):
            call(**{flag: 1})
    with pytest.raises(CafedclError, match=r"^callback: .*; did you mean 'callbacks'"):
        cafedcl.run(callback=[])


@pytest.mark.parametrize("name", ["compare", "export", "report"])
def test_a_function_with_the_name_of_a_folder_shows_its_own_arguments(name: str) -> None:
    folder = getattr(cafedcl, name)
    assert list(inspect.signature(folder).parameters)[-1] in ("quiet", "licence", "out")
    assert inspect.getdoc(folder).startswith(("Train several", "Write a run's", "Write one HTML"))


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (Callback(), "callbacks: a list of callbacks is expected, not Callback"),
        ([Callback], "is not an object of a class derived from cafedcl.Callback"),
        ([print], "is not an object of a class derived from cafedcl.Callback"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_written(
    callbacks: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CafedclError, match=message):
        cafedcl.run("fedavg", out=tmp_path / "run", callbacks=callbacks)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_settings_are_a_dict() -> None:
    with pytest.raises(CafedclError, match=r"settings: a dict such as .* is expected, not list"):
        cafedcl.run("fedavg", settings=["train.lr=0.1"])  # type: ignore[arg-type]


def test_a_format_that_does_not_exist_is_refused(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(CafedclError, match="to = 'pdf': expected one of onnx, torch, safetensors"):
        cafedcl.export(finished, tmp_path / "model.safetensors", "pdf")


@pytest.mark.parametrize(
    ("value", "written"),
    [(np.bool_(True), "true"), (np.int64(3), "3"), (np.float64(0.2), "0.2"), (False, "false")],
)
def test_settings_may_be_numbers_of_numpy(value: Any, written: str) -> None:
    assert as_words({"train.flip": value}) == [f"train.flip={written}"]


def test_a_run_that_learned_nothing_is_an_error_and_is_kept(tmp_path: Path) -> None:
    settings = {"federation.drop": ["0:0,1"], "engine.workers": 1, "train.epochs": 1}
    with pytest.raises(CafedclError, match=r"no round was aggregated, .* \(last round: "):
        cafedcl.run("fedavg", clients=2, rounds=1, settings=settings, out=tmp_path / "run")
    assert len(cafedcl.load(tmp_path / "run").records) == 1


def test_a_client_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loss(self: FedAvg, model: Any, batch: Any, visit: Any) -> Any:
        return {"ce": torch.nan * cross_entropy(self, model, batch, visit)["ce"]}

    cross_entropy = FedAvg.loss
    monkeypatch.setattr(FedAvg, "loss", loss)
    settings = {"engine.name": "reference", "train.epochs": 1}
    with pytest.raises(CafedclError, match="learned nothing"):
        cafedcl.run("fedavg", clients=2, rounds=1, settings=settings)
    assert "warning: round 1: 2 of 2 replies failed (client 0: " in capsys.readouterr().err


def test_a_run_inside_of_a_run_is_refused(finished: Run) -> None:
    assert finished.path is not None
    for inside in (finished.path / "inner", finished.path / "checkpoints" / "inner"):
        with pytest.raises(CafedclError, match="it is inside of a run"):
            cafedcl.run("fedavg", clients=2, rounds=1, out=inside)
        with pytest.raises(CafedclError, match="it is inside of a run"):
            cafedcl.compare(["fedavg"], inside, clients=2, rounds=1)
        assert not inside.exists()


def test_scores_that_are_no_numbers_are_no_class(finished: Run, digits: Dataset) -> None:
    state = {n: v * torch.nan if v.is_floating_point() else v for n, v in finished.state.items()}
    with pytest.raises(CafedclError, match="scores that are not numbers"):
        replace(finished, state=state).predict(digits.test_x[:2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": None}, "method: a name such as 'cafedcl' is expected, not NoneType"),
        ({"method": FedAvg}, "; use method='cafedcl.methods.fedavg:FedAvg'$"),
        ({"method": type("Pull", (), {"__module__": "__main__"})}, "use method='own:Pull'$"),
        ({"data": np.zeros((3, 8, 8))}, "data: a name, a path, .* is expected, not ndarray"),
        ({"settings": {3: 1}}, "settings: names such as 'train.lr' are expected, not 3"),
    ],
)
def test_an_argument_of_another_type_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(CafedclError, match=said):
        cafedcl.run(**arguments)
