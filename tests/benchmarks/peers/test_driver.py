"""The two drivers that need no other package, and what all drivers share."""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def torch_as_before() -> Any:
    """Drivers choose threads and kernels for their process."""
    threads = torch.get_num_threads()
    onednn = torch.backends.mkldnn.enabled
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = onednn


@pytest.mark.usefixtures("peers", "torch_as_before")
def test_ours_and_the_plain_loop_do_the_same_work(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripts run in this process: each would import PyTorch anew."""
    path = tmp_path / "digits.npz"
    results = {}
    jobs.save(jobs.make(jobs.find_job("digits", "tiny")), path)
    for system in ("ours", "plain"):
        out = tmp_path / f"{system}.json"
        words = ["digits", "--scale", "tiny", "--rounds", "2", "--data", path, "--out", out]
        monkeypatch.setattr(sys, "argv", [f"drive_{system}.py", *map(str, words)])
        runpy.run_path(str(FOLDER / f"drive_{system}.py"), run_name="__main__")
        results[system] = json.loads(out.read_text())
    ours, plain = results["ours"], results["plain"]
    assert ours["steps"] == plain["steps"] == [60, 60]
    assert len(ours["seconds"]) == len(plain["seconds"]) == 2
    assert ours["loss"] == pytest.approx(plain["loss"], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "error: there is no job 'nonsense'; the jobs are a, b, c, d, digits"),
        (
            ["a", "--rounds", "1"],
            "error: --rounds 1: the first round is a warm-up, so at least 2 are needed",
        ),
        (["a", "--data", "nowhere.npz"], "nowhere.npz: no such file"),
    ],
)
def test_bad_arguments_get_one_line(
    peers: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["drive_none.py", *arguments, "--out", "none.json"])
    with pytest.raises(SystemExit) as ended:
        peers("driver").drive("none", "", [], lambda task: task.data() and None)
    assert said in ended.value.code
    assert "\n" not in ended.value.code


def test_device_is_the_jobs_own_unless_another_is_asked_for(
    peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, seen = peers("driver"), []

    def drive(system: str, *arguments: str) -> None:
        monkeypatch.setattr(
            sys,
            "argv",
            ["drive.py", *arguments, "--scale", "tiny", "--out", str(tmp_path / "none")],
        )
        driver.drive(system, "", [], lambda task: seen.append(task.device))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    drive("plain", "a")
    drive("plain", "d", "--device", "cpu")
    with pytest.raises(
        SystemExit, match=r"^error: device cuda: PyTorch finds no CUDA GPU on this machine$"
    ):
        drive("plain", "d")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    drive("plain", "d")
    assert seen == ["cpu", "cpu", "cuda"]


def test_only_fedjax_cannot_train_on_a_gpu(run: Any, peers: Any, jobs: Any) -> None:
    refused = []
    for system in run.SYSTEMS:
        for name, device in (("d", "cuda"), ("d", "cpu"), ("a", "cuda"), ("a", "cpu")):
            try:
                peers("driver").check_system(system, jobs.JOBS[name], device)
            except jobs.JobError:
                refused.append((system, name, device))
    assert refused == [("fedjax", "d", "cuda"), ("fedjax", "d", "cpu"), ("fedjax", "a", "cuda")]


def test_gpus_are_hidden_from_a_run_on_the_cpu(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = peers("driver")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    os.environ["CUDA_VISIBLE_DEVICES"] = "3"
    driver.use_device("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    driver.use_device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("device", "share", "gpus", "per_client", "processes"),
    [("cpu", 0.1, 0, 0.0, 16), ("cuda", 0.1, 1, 0.1, 10), ("cuda", 0.01, 1, 0.01, 16)],
)
def test_clients_of_flower_share_the_gpu(
    jobs: Any,
    peers: Any,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    share: float,
    gpus: int,
    per_client: float,
    processes: int,
) -> None:
    flower = peers("drive_flower")
    monkeypatch.setattr(flower, "cores", lambda: 16)
    task = peers("driver").Task(jobs.JOBS["d"], 2, Path("d.npz"), 1, True, device, share, [])
    assert flower.resources(task) == {
        "client_resources": {"num_cpus": 1, "num_gpus": per_client},
        "init_args": {"num_cpus": 16, "num_gpus": gpus},
    }
    assert flower.processes(task) == processes


def test_version_of_a_package_that_is_only_on_the_path(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cafedcl

    driver = peers("driver")

    def absent(name: str) -> str:
        raise driver.PackageNotFoundError(name)

    monkeypatch.setattr(driver, "version", absent)
    assert driver.release("cafedcl") == cafedcl.__version__
