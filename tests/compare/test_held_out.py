from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cafedcl.compare.held_out import write_held_out
from cafedcl.compare.sweep import Sweep
from cafedcl.core.errors import CafedclError
from cafedcl.data import load_dataset
from cafedcl.task.resolve import resolve


def plan(settings: dict[str, Any]) -> Sweep:
    return Sweep.make(
        settings,
        tune=1,
        grid={},
        ranges={"train.lr": "0.01..0.1"},
        choices={},
        score=None,
        on=None,
        hold_out=0.2,
        prune=False,
        seeds=None,
        first_seed=None,
    )


def test_images_are_held_out_of_the_training_set(tmp_path: Path) -> None:
    tables = {"split": {"kind": "iid"}}
    said = write_held_out(tmp_path, tables, 0.1)
    before = load_dataset(resolve(tables).data)
    after = load_dataset(resolve({"data": {"name": str(tmp_path / "held-out.npz")}}).data)
    held = f"{len(after.test_y)} images held out of the training set of digits"
    assert said == f"{held}; the test set was not used"
    assert len(after.train_y) + len(after.test_y) == len(before.train_y)
    assert abs(len(after.test_y) / len(before.train_y) - 0.1) < 0.01
    assert set(after.test_y.tolist()) == set(range(10))
    assert after.names == before.names
    images = {image.tobytes() for image in before.train_x.numpy()}
    assert all(
        image.tobytes() in images
        for image in np.concatenate([after.train_x.numpy(), after.test_x.numpy()])
    )
    written = (tmp_path / "held-out.npz").stat().st_mtime_ns
    assert write_held_out(tmp_path, tables, 0.1) == said
    assert (tmp_path / "held-out.npz").stat().st_mtime_ns == written
    listed = {"split": {"kind": "file", "file": "clients.csv"}}
    with pytest.raises(CafedclError, match="the file names images of the whole"):
        write_held_out(tmp_path / "other", listed, 0.1)
    job = plan({"split.kind": "iid"}).jobs(tmp_path, "x", {})[0]
    assert str(tmp_path / "held-out.npz") in job.arguments


@pytest.mark.parametrize(("word", "split"), [("ward", "natural"), ("source", "source")])
def test_clients_keep_their_images_and_patients_stay_together(
    tmp_path: Path, word: str, split: str
) -> None:
    """Three wards, four images of every patient; their arrays have names that the config gives."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (240, 8, 8), dtype=np.uint8)
    labels = np.tile([0, 0, 0, 0, 1, 1, 1, 1], 30)
    wards = np.repeat(["north", "east", "south"], 80)
    people = np.repeat(np.arange(60), 4)
    file = tmp_path / "own.npz"
    of_train = {"x_train": images, "y_train": labels, f"{word}_train": wards, "who_train": people}
    of_test = {"x_test": images[:40], "y_test": labels[:40], "who_test": people[:40] + 100}
    np.savez(file, **of_train, **of_test)
    own = {"data.name": str(file), "data.group": "who", "split.kind": split}
    if split == "natural":
        own["data.client"] = word
    searched = plan(own)
    searched.prepare(tmp_path)
    tables = searched.jobs(tmp_path, "x", {})[0].tables
    data = load_dataset(resolve(tables).data)
    assert tables["data"] == {"name": str(tmp_path / "held-out.npz")}
    assert data.owner_kind == split
    assert data.owner_names == ("east", "north", "south")
    known = {image.tobytes(): at for at, image in enumerate(images)}
    kept = [known[image.numpy().tobytes()] for image in data.train_x]
    held = [known[image.numpy().tobytes()] for image in data.test_x]
    assert sorted(kept + held) == list(range(240))
    assert [data.owner_names[int(owner)] for owner in data.owners] == wards[kept].tolist()
    assert not set(people[kept]) & set(people[held])
    # A fifth of the ten patients of every ward and class.
    for ward in ("north", "east", "south"):
        for label in (0, 1):
            assert len({people[at] for at in held if (wards[at], labels[at]) == (ward, label)}) == 2


def test_too_few_images_are_refused_before_any_run_starts(tmp_path: Path) -> None:
    x = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    labels = np.arange(4) % 2
    arrays = {"x_train": x[:2], "y_train": labels[:2], "x_test": x[2:], "y_test": labels[2:]}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(CafedclError, match="too few training images to hold some out"):
        write_held_out(tmp_path, {"data": {"name": str(tmp_path / "own.npz")}}, 0.2)
    assert not (tmp_path / "held-out.npz").exists()


def test_options_of_the_data_cannot_be_swept_on_held_out_images(tmp_path: Path) -> None:
    said = r"data\.images: it cannot be swept on held-out images.*--on test"
    with pytest.raises(CafedclError, match=said):
        write_held_out(tmp_path, {"split": {"kind": "iid"}}, 0.1, ["train.lr", "data.images"])
    assert not any(tmp_path.iterdir())
