"""The comparison with other simulators: its data, the two drivers that need no other package, and
its arithmetic.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture(autouse=True)
def gpus_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver hides GPUs from its process if it trains on the CPU; this process is not its own."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.fixture(scope="module")
def peers() -> Any:
    """Return a function that imports a module of the folder, which is no package."""
    sys.path.insert(0, str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def jobs(peers: Any) -> Any:
    return peers("jobs")


@pytest.fixture(scope="module")
def run(peers: Any) -> Any:
    return peers("run")


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


def test_job_on_a_gpu_is_not_timed_on_the_cpu(
    run: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched = []

    def launch(
        system: str, job: str, rounds: int, device: str, setting: dict[str, Any], *rest: Any
    ) -> dict[str, Any]:
        launched.append((system, job, rounds, device, setting, *rest[:2]))
        return result(system, job, [1.0, 1.0], 2.0)

    monkeypatch.setattr(jobs, "CACHE", tmp_path)
    monkeypatch.setattr(run, "gpu", lambda: "a GPU")
    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(run, "set_up", lambda *_: "")
    monkeypatch.setattr(run, "cores", lambda: 16)
    monkeypatch.setattr(run, "calibrate", lambda job, scale: pytest.fail("timed on the CPU"))
    arguments = ["--jobs", "d", "--peers", "plain,fluke,pfl", "--repeats", "1", "--scale", "tiny"]
    arguments += ["--gpu-share", "0.25"]
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments, "--out", str(tmp_path / "out.json")])
    run.main()
    threads = {"ours": 1, "plain": 1, "fluke": 16, "pfl": 1}
    assert launched == [
        (system, "d", 2, "cuda", {"threads": number, "onednn": True}, "tiny", 0.25)
        for system, number in threads.items()
    ]
    measured = json.loads((tmp_path / "out.json").read_text())["measured"]["d"]
    assert measured["machine"]["gpu"] == "a GPU"
    assert measured["local_step"] == []


def result(
    system: str, job: str, seconds: list[float], wall: float, **parts: Any
) -> dict[str, Any]:
    rest = {"accuracy": 0.9, "loss": 0.5, "steps": [10] * len(seconds), "cores": "2"}
    return {"system": system, "job": job, "seconds": seconds, "wall": wall, **rest, **parts}


def test_ratios(run: Any) -> None:
    runs = [
        result("ours", "a", [9.0, 2.0, 2.0, 5.0], 20.0),
        result("plain", "a", [9.0, 6.0, 6.0], 30.0),
        result("flower", "a", [9.0, 4.0, 4.0], 50.0),
        {"system": "pfl", "job": "a", "failed": "no such module"},
        result("ours", "digits", [1.0, 0.5], 4.0),
        result("plain", "digits", [1.0, 0.25], 1.0),
        result("ours", "a", [9.0, 2.0, 2.0], 20.0),
        result("plain", "a", [9.0, 8.0, 8.0], 40.0),
    ]
    compared = run.compare(runs)
    rows = compared["jobs"]["a"]
    assert [rows[system]["round"] for system in ("ours", "plain", "flower")] == [2.0, 7.0, 4.0]
    assert [rows[system]["ratio"] for system in ("ours", "plain", "flower")] == [1.0, 3.5, 2.0]
    assert rows["plain"]["wall_ratio"] == 1.75
    assert rows["pfl"] == {"failed": "no such module"}
    assert compared["fastest_peer"]["a"]["fastest"] == "flower"
    assert compared["fastest_peer"]["a"]["fastest_wall"] == "plain"
    assert compared["fastest_peer"]["digits"]["ratio"] == 0.5
    assert compared["geometric_mean"]["ratio"] == pytest.approx(1.0)
    assert compared["geometric_mean"]["wall_ratio"] == pytest.approx((1.75 * 0.25) ** 0.5)
    assert compared["warnings"] == []


def test_jobs_that_are_measured_later_are_added(run: Any) -> None:
    def measured(command: str, *runs: dict[str, Any]) -> dict[str, Any]:
        return {
            "measured": {r["job"]: {"command": command} for r in runs},
            "runs": list(runs),
            **run.compare(runs),
        }

    old = measured(
        "old",
        *(
            result(s, job, [1.0, n], 2.0)
            for s, n in (("ours", 1), ("pfl", 2))
            for job in ("a", "c")
        ),
    )
    new = measured("new", result("ours", "a", [1.0, 1.0], 2.0), result("pfl", "a", [1.0, 8.0], 2.0))
    both = run.together(old, new)
    assert {job: about["command"] for job, about in both["measured"].items()} == {
        "a": "new",
        "c": "old",
    }
    assert {job: lead["ratio"] for job, lead in both["fastest_peer"].items()} == {
        "a": 8.0,
        "c": 2.0,
    }
    assert both["geometric_mean"]["ratio"] == pytest.approx(4.0)
    assert len(both["runs"]) == 4


def test_other_work_is_warned_about(run: Any) -> None:
    runs = [result(system, "a", [1.0, 1.0], 2.0) for system in ("ours", "plain", "pfl", "fluke")]
    runs += [
        result("flower", "a", [1.0, 1.0], 2.0, accuracy=0.5),
        result("fedjax", "a", [1.0, 1.0], 2.0, steps=[9, 9]),
    ]
    warnings = run.compare(runs)["warnings"]
    assert len(warnings) == 2
    assert "flower ends with accuracy 0.500" in warnings[0]
    assert "fedjax did 9 steps per round" in warnings[1]


def test_every_system_gets_its_fastest_setting(run: Any) -> None:
    timed = [(1, True, 30.0), (1, False, 20.0), (2, True, 15.0), (2, False, 18.0)]
    settings = [{"threads": t, "onednn": o, "milliseconds": ms} for t, o, ms in timed]
    assert run.fastest(settings, "plain", "fastest") == settings[2]
    assert run.fastest(settings, "flower", "fastest") == settings[1]
    assert run.fastest(settings, "flower", "on") == settings[0]
    assert (
        run.fastest([settings[1], {**settings[3], "milliseconds": 19.0}], "plain", "fastest")
        == settings[1]
    )


def test_everything_is_there_for_every_system(run: Any) -> None:
    for system in run.SYSTEMS:
        assert (FOLDER / f"drive_{system}.py").exists()
        assert system in run.HERE_TOO or (FOLDER / "requirements" / f"{system}.txt").exists()


def test_wheels_for_a_gpu_are_pinned_as_for_a_cpu(run: Any, peers: Any) -> None:
    lists = FOLDER / "requirements"
    elsewhere = {*run.HERE_TOO, *peers("driver").CPU_ONLY}
    there = {path.stem for path in (lists / "wheels").glob("*.txt")}
    assert there == set(run.SYSTEMS) - elsewhere
    for system in there:
        pins = (lists / f"{system}.txt").read_text().splitlines()
        wheels = (lists / "wheels" / f"{system}.txt").read_text().splitlines()
        assert set(wheels) <= set(pins)
        names = {line.split("==")[0] for line in wheels}
        assert names.isdisjoint({"torch", "torchvision", "numpy", "scipy", "pandas"})


def test_environment_from_wheels_needs_no_network(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip installs only the named packages; those of this environment stay visible."""
    wheels = tmp_path / "wheels" / "pfl"
    wheels.mkdir(parents=True)
    files = {
        "peer_of_a_test.py": "",
        "peer_of_a_test-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: peer-of-a-test\n"
        "Version: 1.0\nRequires-Dist: a-package-that-does-not-exist\n",
        "peer_of_a_test-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "peer_of_a_test-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(wheels / "peer_of_a_test-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, "peer_of_a_test-1.0.dist-info/RECORD": record}.items():
            wheel.writestr(name, text)
    wanted = tmp_path / "requirements" / "wheels" / "pfl.txt"
    wanted.parent.mkdir(parents=True)
    wanted.write_text("peer-of-a-test==1.0\n")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "ENVIRONMENTS", tmp_path / "envs")
    said = []
    console = SimpleNamespace(print=lambda text, **_: said.append(text))
    assert run.set_up("pfl", tmp_path / "wheels", console) == ""
    script = "import numpy, peer_of_a_test; print(numpy.__file__); print(peer_of_a_test.__file__)"
    done = subprocess.run(
        [str(run.interpreter("pfl")), "-c", script], capture_output=True, text=True, check=True
    )
    numpy_file, peer_file = done.stdout.splitlines()
    assert Path(numpy_file).is_relative_to(sysconfig.get_path("platlib"))
    assert Path(peer_file).is_relative_to(tmp_path / "envs" / "pfl")
    assert run.set_up("pfl", tmp_path / "wheels", console) == ""
    assert len(said) == 1
    wanted.write_text("peer-of-a-test==2.0\n")
    problem = run.set_up("pfl", tmp_path / "wheels", console)
    assert problem.startswith("cannot be installed: ")
    assert "peer-of-a-test==2.0" in problem


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs", "a,z"], "--jobs 'a,z': one or more of a, b, c, d, digits is expected"),
        (["--peers", "tff"], "--peers 'tff': one or more of ours, plain,"),
        (["--rounds", "1"], "--rounds 1: the first round is a warm-up"),
        (["--jobs", "d"], "job d on cuda: fedjax cannot run it; the others can"),
        (
            ["--jobs", "d", "--peers", "plain,fedjax", "--device", "cpu"],
            "job d on cpu: fedjax cannot run it",
        ),
        (
            ["--jobs", "a", "--peers", "fedjax", "--device", "cuda"],
            "job a on cuda: fedjax cannot run it",
        ),
        (["--gpu-share", "0"], "--gpu-share 0: above 0 and at most 1 is needed"),
        (["--wheels", "nowhere"], "--wheels nowhere: no such folder"),
        (["--wheels", "."], "--wheels: there is no list of wheels for fedjax"),
        (
            ["--jobs", "d", "--peers", "plain"],
            "device cuda: PyTorch finds no CUDA GPU on this machine",
        ),
    ],
)
def test_runner_refuses_what_it_does_not_know(
    run: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert said in ended.value.code
    assert "\n" not in ended.value.code
