"""A model's probabilities, fitted to labelled images that somebody has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cafedcl
from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.data.grey_values import WHOLE_16_BITS, Window
from cafedcl.data.images import read_images
from cafedcl.federation.own_calibration import load_labelled
from cafedcl.federation.result import Run
from cafedcl.federation.served_model import ServedModel

SETTINGS = {
    "model.name": "mlp",
    "train.epochs": 1,
    "engine.workers": 1,
    "split.validation": 0.0,
    "store.own": True,
}


@pytest.fixture(scope="module")
def run() -> Run:
    """A run without validation images, as in a deployment."""
    return cafedcl.run("cafedcl:best", clients=3, rounds=3, settings=SETTINGS, callbacks=[])


def sample(digits: Dataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that the run has not seen, and their labels; of three classes only few are left."""
    x, y = digits.test_x.numpy(), digits.test_y.numpy()
    draws = np.random.default_rng(seed)
    rows = np.flatnonzero((y > 2) | (draws.random(len(y)) < 0.15))
    return x[rows], y[rows]


def save(file: Path, x: np.ndarray, y: np.ndarray) -> Path:
    """Write a data set whose test images these are; its training images are a part of them."""
    names = y.astype(str)
    np.savez(file, x_train=x[:200], y_train=names[:200], x_test=x, y_test=names)
    return file


@pytest.fixture
def mine(tmp_path: Path, digits: Dataset) -> Path:
    return save(tmp_path / "mine.npz", *sample(digits, 0))


def cross_entropy(p: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(p[np.arange(len(y)), y]).mean())


def test_the_probabilities_are_the_best_of_their_family(
    run: Run, mine: Path, digits: Dataset
) -> None:
    """A grid of temperatures and weights of the prior, computed anew, has none that are better."""
    x, y = sample(digits, 0)
    before = run.predict(x).probabilities.numpy()
    after = run.calibrated(mine).predict(x).probabilities.numpy()
    scores = run.model.scores(torch.from_numpy(x)).double().numpy()
    prior = np.log((np.bincount(y, minlength=10) + 1) / (len(y) + 10))
    losses = []
    for temperature in np.geomspace(0.01, 10, 61):
        for weight in np.linspace(0, 2, 41):
            logits = scores / temperature + weight * prior
            logits -= logits.max(1, keepdims=True)
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            losses.append(cross_entropy(p, y))
    assert cross_entropy(after, y) < cross_entropy(before, y) - 0.05
    assert cross_entropy(after, y) == pytest.approx(min(losses), abs=0.01)


def test_classes_stay_and_unusual_images_are_known(run: Run, mine: Path, digits: Dataset) -> None:
    x, _ = sample(digits, 0)
    assert run.predict(x).strangeness is None
    calibrated = run.calibrated(mine)
    found = calibrated.predict(x)
    assert torch.equal(found.labels, run.predict(x).labels)
    assert float((found.strangeness > 1).double().mean()) < 0.1
    assert float(calibrated.predict(np.zeros((1, 8, 8), np.uint8)).strangeness) > 1
    assert not run.model.is_calibrated, "the run itself stays as it was"
    assert calibrated.model.calibration_images == len(x)


def test_a_clients_own_model_has_a_calibration_of_its_own(run: Run, mine: Path) -> None:
    calibrated = run.calibrated(mine, 1)
    assert calibrated.served(1).calibrated_later
    assert not calibrated.served(2).is_calibrated
    assert not calibrated.model.is_calibrated


def test_all_images_are_used_if_asked_for(run: Run, mine: Path, digits: Dataset) -> None:
    x, _ = sample(digits, 0)
    assert run.calibrated(mine, all_images=True).model.calibration_images == len(x) + 200


def test_images_of_classes_that_cannot_be_predicted_do_not_calibrate(
    run: Run, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(_: ServedModel, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), len(run.names)), -1e9)

    monkeypatch.setattr(ServedModel, "scores", impossible)
    with pytest.raises(CafedclError, match="no image is of a class that this model can predict"):
        run.calibrated(mine)


def test_all_images_of_training_are_refused(run: Run, mine: Path) -> None:
    trained = replace(run.config, data=replace(run.config.data, name=str(mine.resolve())))
    with pytest.raises(CafedclError, match="the model was trained on these images"):
        replace(run, config=trained).calibrated(mine, all_images=True)


def test_images_in_colour_become_what_the_model_takes(
    run: Run, mine: Path, digits: Dataset, tmp_path: Path
) -> None:
    x, y = sample(digits, 0)
    rgb = save(tmp_path / "rgb.npz", np.repeat(x, 3, axis=1), y)
    one, other = (run.calibrated(file).predict(x).probabilities for file in (mine, rgb))
    assert torch.equal(one, other)


def test_images_that_cannot_serve_are_refused(run: Run, digits: Dataset, tmp_path: Path) -> None:
    x, y = sample(digits, 0)
    few = tmp_path / "few.npz"
    names = y.astype(str)
    np.savez(few, x_train=x, y_train=names, x_test=x[:19], y_test=names[:19])
    with pytest.raises(CafedclError, match=r"few.npz: 19 images for testing; .* at least 20"):
        run.calibrated(few)
    other = tmp_path / "other.npz"
    eels = np.where(y == 3, "eel", names)
    np.savez(other, x_train=x, y_train=eels, x_test=x, y_test=eels)
    with pytest.raises(CafedclError, match="the class 'eel' is not a class of this run"):
        run.calibrated(other)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Grey images of 16 bits in a folder per class."""
    draws = np.random.default_rng(0)
    for label in ("eel", "owl"):
        (tmp_path / "deep" / label).mkdir(parents=True)
        for number in range(10):
            values = draws.integers(500, 4000, (8, 8)).astype(np.uint16)
            Image.fromarray(values).save(tmp_path / "deep" / label / f"{number}.png")
    return tmp_path / "deep"


@pytest.mark.parametrize(
    "window",
    [
        Window((600.125, 3500.75), prefers_own=False),
        Window((19.53, 59979.568)),
        WHOLE_16_BITS,
    ],
    ids=["given", "chosen", "whole"],
)
def test_images_of_more_than_8_bits_are_those_that_predict_sees(deep: Path, window: Window) -> None:
    data = load_labelled(deep, DataOptions(), (1, 8, 8), window, all_images=True)
    files = sorted(deep.glob("*/*.png"))
    seen = {tuple(image.flatten().tolist()) for image in read_images(files, (1, 8, 8), window)}
    x = torch.cat([data.train_x, data.test_x])
    assert {tuple(image.flatten().tolist()) for image in x} == seen


def test_images_that_predict_cannot_read_do_not_calibrate(deep: Path) -> None:
    """A run without such images has no window."""
    with pytest.raises(CafedclError, match="more than 8 bits, and those of the run had not"):
        load_labelled(deep, DataOptions(), (1, 8, 8), Window(), all_images=True)


@pytest.mark.parametrize("column", ["group", "client"])
def test_the_images_for_testing_are_those_of_training(column: str, tmp_path: Path) -> None:
    """Which they are depends on the columns of groups and clients that the run was told."""
    draws = np.random.default_rng(1)
    lines = ["file,label,case,ward"]
    for number in range(120):
        file = tmp_path / f"{number}.png"
        Image.fromarray(draws.integers(0, 256, (8, 8)).astype(np.uint8)).save(file)
        lines.append(f"{file.name},{number % 2},{number // 3},{number % 4}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))
    options = DataOptions(str(table), **{column: {"group": "case", "client": "ward"}[column]})
    trained = cafedcl.data.load_dataset(options)
    found = load_labelled(table, options, (1, 8, 8), Window(), all_images=False)
    assert torch.equal(found.test_x, trained.test_x)
    # With all images nothing is chosen for testing, and what is a patient still counts.
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace("case", "patient"))
    whole = load_labelled(other, options, (1, 8, 8), Window(), all_images=True)
    assert len(whole.groups) + len(whole.test_groups) == 120


def test_what_is_unusual_does_not_depend_on_the_order_of_images(
    run: Run, digits: Dataset, tmp_path: Path
) -> None:
    """Of two classes that alternate, every second image is of the same class."""
    x, y = digits.test_x.numpy(), digits.test_y.numpy()
    rows = np.stack([np.flatnonzero(y == 3)[:25], np.flatnonzero(y == 7)[:25]])
    shown = digits.test_x.numpy()[np.isin(y, (0, 6))]
    rates = []
    for order in (rows.T.flatten(), rows.flatten()):
        file = save(tmp_path / f"{len(rates)}.npz", x[order], y[order])
        found = run.calibrated(file).predict(shown)
        rates.append(float(found.strangeness.median()))
    assert min(rates) > 2


def test_what_training_knows_of_unusual_images_stays(digits: Dataset, tmp_path: Path) -> None:
    known = cafedcl.run(
        "fedavg",
        clients=3,
        rounds=1,
        settings={**SETTINGS, "split.validation": 0.2, "store.own": False},
        callbacks=[],
    )
    x, y = sample(digits, 0)
    before = known.predict(x).strangeness
    few = tmp_path / "few.npz"
    np.savez(few, x_train=x, y_train=y.astype(str), x_test=x[:25], y_test=y[:25].astype(str))
    assert torch.equal(known.calibrated(few).predict(x).strangeness, before)
