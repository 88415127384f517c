"""The data and networks of the jobs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "digits"])
def test_data_are_the_same_every_time(jobs: Any, name: str, tmp_path: Path) -> None:
    job = jobs.find_job(name, "tiny")
    first, second = jobs.make(job), jobs.make(job)
    jobs.save(first, tmp_path / "data.npz")
    parts = [name for name in vars(first) if name != "weights"]
    for other in (second, jobs.load(tmp_path / "data.npz")):
        assert all(np.array_equal(getattr(first, name), getattr(other, name)) for name in parts)
        assert all(
            np.array_equal(value, other.weights[name]) for name, value in first.weights.items()
        )
    assert first.train_x.shape == (80, *job.shape)
    assert first.train_x.dtype == np.uint8
    assert first.train_y.dtype == first.owners.dtype == np.int64
    assert len(first.test_y) == (359 if name == "digits" else 1000)
    assert first.sizes == [20] * 4


def test_data_of_a_changed_job_are_not_found_under_its_old_name(
    jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [jobs.data_file(name, scale) for name in ("a", "digits") for scale in ("full", "tiny")]
    assert len(set(before)) == 4
    assert jobs.data_file("a", "full") == before[0]
    monkeypatch.setitem(jobs.JOBS, "a", replace(jobs.JOBS["a"], batch=51))
    assert jobs.data_file("a", "full") not in before
    assert jobs.data_file("digits", "full") == before[2]


def test_jobs_have_the_sizes_they_are_said_to_have(jobs: Any) -> None:
    sizes = {
        name: (job.clients, job.cohort, job.steps(job.images // job.clients))
        for name, job in jobs.JOBS.items()
    }
    assert sizes == {
        "a": (20, 20, 25),
        "b": (100, 100, 25),
        "c": (1000, 50, 5),
        "d": (20, 20, 50),
        "digits": (20, 20, 45),
    }
    elsewhere = {
        name: (job.model, job.device) for name, job in jobs.JOBS.items() if job.device != "cpu"
    }
    assert elsewhere == {"d": ("resnet", "cuda")}
    assert all(job.model == "cnn" for job in jobs.JOBS.values() if job.device == "cpu")


def test_digits_are_dealt_in_equal_and_skewed_parts(jobs: Any) -> None:
    data = jobs.make(jobs.JOBS["digits"])
    assert sorted(data.sizes) == [71] * 2 + [72] * 18
    counts = np.zeros((20, 10))
    np.add.at(counts, (data.owners, data.train_y), 1)
    assert np.median(counts.max(1) / counts.sum(1)) > 0.4


def test_images_are_normalised(jobs: Any) -> None:
    data = jobs.make(jobs.find_job("a", "tiny"))
    seen = data.images(data.train_x)
    assert seen.dtype == np.float32
    assert np.allclose(seen.mean((0, 2, 3)), 0, atol=1e-3)
    assert np.allclose(seen.std((0, 2, 3)), 1, atol=1e-3)


def test_network_has_the_layers_of_ours(jobs: Any, peers: Any) -> None:
    from cafedcl.models.small import CNN4, CNN8

    for name, encoder in (("a", CNN4), ("digits", CNN8)):
        job = jobs.find_job(name, "tiny")
        own = encoder(job.shape, 1.0).state_dict()
        model = peers("torch_model").network(jobs.make(job))
        shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        assert {key: shapes[key] for key in own} == {
            key: tuple(value.shape) for key, value in own.items()
        }


def test_resnet_gives_what_ours_gives(jobs: Any, peers: Any) -> None:
    from cafedcl.models.resnet import ResNet18

    data = jobs.make(jobs.find_job("d", "tiny"))
    model, own = peers("torch_model").network(data).double(), ResNet18((3, 32, 32)).double()
    weights = model.state_dict()
    head = [weights.pop(name) for name in ("head.weight", "head.bias")]
    own.load_state_dict(weights)
    x = torch.from_numpy(data.images(data.test_x[:4])).double()
    with torch.no_grad():
        ours, theirs = torch.nn.functional.linear(own(x), *head), model(x)
    assert ours.shape == (4, 10)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-9)
    assert float(ours.std()) > 0.01


def test_ours_and_the_plain_loop_train_the_same_resnet(
    jobs: Any, peers: Any, tmp_path: Path
) -> None:
    """Every client has one batch, so that no order of batches comes between the two."""
    job = replace(jobs.find_job("d", "tiny"), clients=2, cohort=2, images=4, epochs=2, batch=2)
    data = jobs.make(job)
    jobs.save(replace(data, test_x=data.test_x[:8], test_y=data.test_y[:8]), tmp_path / "d.npz")
    setting = (torch.get_num_threads(), torch.backends.mkldnn.enabled, "cpu", 0.1, [])
    task = peers("driver").Task(job, 2, tmp_path / "d.npz", *setting)
    ours, plain = (peers(f"drive_{system}").train(task) for system in ("ours", "plain"))
    assert ours.steps == plain.steps == [4, 4]
    assert ours.accuracy == plain.accuracy
    assert ours.loss == pytest.approx(plain.loss, rel=1e-3)
