"""A frozen encoder runs once, and everything comes out as if it ran in every step."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cafedcl
from cafedcl import api
from cafedcl.data.dataset import Dataset
from cafedcl.federation.rounds import Federation
from cafedcl.models import MODELS
from cafedcl.models.small import CNN8
from cafedcl.task import build as building
from cafedcl.task import frozen_encoder
from cafedcl.task.build import build, prepare
from cafedcl.task.describe import cost_line, first_line
from cafedcl.task.resolve import resolve

Tables = dict[str, dict[str, Any]]
Make = Callable[..., Federation]
HEADS = ["fedavg", "scaffold", "moon", "ccvr", "fedrod", "fedproto", "fedetf", "local"]


def frozen(**changes: Any) -> Tables:
    tables: Tables = {
        "method": {"name": "fedavg"},
        "data": {"images": 120},
        "model": {"name": "cnn8", "freeze": "all"},
        "train": {"epochs": 2, "iterations": 2},
        "federation": {"clients": 3, "rounds": 2},
        "evaluate": {"loop": 0},
        "engine": {"name": "reference", "device": "cpu"},
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        tables.setdefault(section, {})[key] = value
    return tables


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Federations whose encoder runs once, or in every step as if it could not."""

    def federation(*, once: bool = True, **changes: Any) -> Federation:
        with monkeypatch.context() as patched:
            if not once:
                patched.setattr(building, "runs_once", lambda _task: False)
            return Federation(resolve(frozen(**changes)))

    return federation


def assert_same(one: Federation, other: Federation, within: float = 1e-4) -> None:
    assert one.state.keys() == other.state.keys()
    for name, value in one.state.items():
        assert torch.allclose(value.double(), other.state[name].double(), atol=within), name
    for here, there in zip(one.history, other.history, strict=True):
        assert not here.failed
        assert not there.failed
        for scores in ("server", "own"):
            mine, theirs = getattr(here, scores), getattr(there, scores)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert mine["client_mean"] == pytest.approx(theirs["client_mean"], abs=0.02)


def test_clients_train_on_the_encoders_features_of_their_images(digits: Dataset) -> None:
    config = resolve(frozen(data__images=0))
    task = prepare(config, digits).task
    _, whole, _ = build(config, digits.shape, digits.classes)
    with torch.no_grad():
        expected = whole.encoder.eval()(digits.images(digits.test_x))
    found = task.clients.inputs.test_x
    assert found.shape == (len(digits.test_y), 64, 1, 1)
    assert torch.allclose(found[:, :, 0, 0], expected, atol=1e-5)
    assert torch.equal(task.clients.data.test_x, digits.test_x)
    assert not any(name.startswith("encoder.") for name in task.initial)


@pytest.mark.parametrize("method", HEADS)
def test_a_run_comes_out_as_if_the_encoder_ran_in_every_step(make: Make, method: str) -> None:
    one = make(method__name=method)
    other = make(once=False, method__name=method)
    assert one.task.frozen_encoder is not None
    assert other.task.frozen_encoder is None
    with one, other:
        one.run()
        other.run()
        assert_same(one, other)


def test_cafedcl_trains_its_projection_on_a_frozen_encoder(make: Make) -> None:
    chosen = {"method__name": "cafedcl:best", "method__features": "projected"}
    with make(**chosen) as one, make(once=False, **chosen) as other:
        one.run()
        other.run()
        assert_same(one, other)
        assert {name.split("/")[1] for name in one.state if name.startswith("model/")} == {
            "head.project.weight",
            "head.project.bias",
        }


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate__protocol": "pfllib"},
        {"privacy__kind": "records", "privacy__noise": 0.1, "privacy__clip": 1.0},
    ],
    ids=["pfllib", "private"],
)
def test_it_goes_together_with_other_options(make: Make, changes: dict[str, Any]) -> None:
    with make(**changes) as one, make(once=False, **changes) as other:
        assert one.task.frozen_encoder is not None
        one.run()
        other.run()
        assert_same(one, other)


@pytest.mark.parametrize(
    "engine",
    [
        {"engine__name": "cpu", "engine__workers": 1},
        {"engine__name": "cpu", "engine__workers": 2, "engine__stack": 2},
        {"engine__name": "cuda"},
        {"engine__name": "cuda", "engine__precision": "bf16"},
    ],
    ids=["cpu", "workers", "cuda", "bf16"],
)
def test_every_engine_trains_on_features(make: Make, engine: dict[str, Any]) -> None:
    with make() as expected, make(**engine) as federation:
        assert federation.task.frozen_encoder is not None
        expected.run()
        federation.run()
        within = 0.02 if "engine__precision" in engine else 1e-4
        assert_same(expected, federation, within)


class Restless(nn.Module):
    """An encoder that computes something else in training."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 16)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.part(self.inner(x.flatten(1)))
        return found


@pytest.mark.parametrize(
    "part", [nn.Dropout(0.5), nn.BatchNorm1d(16)], ids=lambda part: type(part).__name__
)
def test_an_encoder_that_is_not_the_same_in_training_runs_in_every_step(
    make: Make, monkeypatch: pytest.MonkeyPatch, part: nn.Module
) -> None:
    monkeypatch.setitem(MODELS, "restless", lambda *_: Restless(part))
    with make(model__name="restless") as federation:
        assert federation.task.frozen_encoder is None
        assert not federation.step().failed


@pytest.mark.parametrize(
    "changes",
    [
        {"train__flip": True},
        {"augment__name": "resample", "split__kind": "dirichlet", "split__alpha": 0.1},
        {"method__name": "fedrcl"},
        {"model__freeze": "conv1"},
    ],
    ids=["flips", "tail", "levels", "part"],
)
def test_images_that_change_and_deeper_features_need_the_encoder_in_every_step(
    make: Make, changes: dict[str, Any]
) -> None:
    with make(**changes) as federation:
        assert federation.task.frozen_encoder is None
        assert not federation.step().failed


def test_the_encoder_sees_every_image_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = MODELS["cnn8"]

    def counting(*shape: Any) -> nn.Module:
        encoder = whole(*shape)
        encoder.register_forward_hook(lambda _encoder, given, _out: seen.append(len(given[0])))
        return encoder

    monkeypatch.setitem(MODELS, "counting", counting)
    with make(model__name="counting") as federation:
        images = len(federation.task.clients.data.train_y) + len(
            federation.task.clients.data.test_y
        )
        # Three small batches ask for shapes, and whether it is the same in training.
        assert sum(seen) <= images + 10
        seen.clear()
        federation.run()
        assert not seen


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The sizes of the batches whose features are computed; the cache is empty at first."""
    seen: list[int] = []
    real = frozen_encoder.features

    def counted(batches: list[Tensor], *rest: Any) -> Iterator[Tensor]:
        seen.extend(map(len, batches))
        return real(batches, *rest)

    monkeypatch.setattr(frozen_encoder, "features", counted)
    monkeypatch.setenv("CAFEDCL_DATA", str(tmp_path / "data"))
    return seen


def test_features_are_cached(make: Make, passes: list[int], tmp_path: Path) -> None:
    first = make()
    assert sum(passes) > 0
    passes.clear()
    second = make(method__name="fedproto")
    assert not passes
    assert torch.equal(first.task.clients.inputs.train_x, second.task.clients.inputs.train_x)
    (file,) = (tmp_path / "data" / "cache").glob("features-*")
    assert file.stat().st_mode & 0o077 == 0
    whole = file.read_bytes()
    for damaged in (b"damaged", whole[:-400] + bytes(400)):
        passes.clear()
        file.write_bytes(damaged)
        third = make()
        assert torch.equal(first.task.clients.inputs.test_x, third.task.clients.inputs.test_x)
        assert torch.equal(first.task.clients.inputs.train_x, third.task.clients.inputs.train_x)
        assert sum(passes) > 0


@pytest.mark.parametrize(
    "changes", [{"run__seed": 1}, {"data__images": 110}, {"evaluate__batch": 7}], ids=str
)
def test_other_weights_images_or_batches_have_features_of_their_own(
    make: Make, passes: list[int], changes: dict[str, Any]
) -> None:
    make()
    passes.clear()
    make(**changes)
    assert passes


def test_features_of_code_that_has_changed_are_computed_again(
    make: Make, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    passes.clear()
    forward = CNN8.forward
    monkeypatch.setattr(CNN8, "forward", lambda self, x: 2 * forward(self, x))
    make()
    assert passes


def test_the_name_of_cached_features_tells_the_code_of_the_encoder() -> None:
    code = frozen_encoder.code_of(nn.Sequential(Restless(nn.Dropout()), nn.ReLU()))
    assert [name.rpartition(".")[2] for name in code] == ["Restless"]
    assert "self.inner(x.flatten(1))" in "".join(code.values())


def test_a_folder_that_cannot_be_written_to_caches_nothing(
    make: Make, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAFEDCL_DATA", "/proc/nowhere")
    with make() as federation:
        assert passes
        assert not federation.step().failed


def test_its_model_is_used_on_images_like_any_other(digits: Dataset, tmp_path: Path) -> None:
    tables = frozen(federation__rounds=1, data__images=300)
    result = api.start(resolve(tables), tmp_path / "run", ())
    loaded = cafedcl.load(tmp_path / "run")
    images = digits.test_x[:20]
    found = loaded.predict(images)
    assert torch.equal(found.probabilities, result.predict(images).probabilities)
    with torch.no_grad():
        scores = loaded.network()(digits.images(images))
    assert torch.equal(found.labels, scores.argmax(1))
    assert loaded.model.knows_limits
    wrong = loaded.tables["wrong/images"]
    assert wrong.dtype == torch.uint8


def test_a_run_says_that_every_image_passes_once() -> None:
    setup = prepare(resolve(frozen()))
    whole = prepare(resolve(frozen(model__freeze="")))
    line = cost_line(setup.config, setup.task)
    assert line.startswith(cost_line(whole.config, whole.task).split(",")[0])
    assert line.endswith("it is frozen, so every image passes through it only once")
    parameters = first_line(whole.config, whole.task, "x").split(", ")[1].split(" parameters")[0]
    line = first_line(setup.config, setup.task, "x")
    assert f", {parameters} parameters (650 trained)" in line
