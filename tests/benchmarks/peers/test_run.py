"""The runner: environments of the peers, and what it refuses."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[3] / "benchmarks" / "peers"


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


def test_job_on_a_gpu_is_not_timed_on_the_cpu(
    run: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched = []

    def launch(
        system: str, job: str, rounds: int, device: str, setting: dict[str, Any], *rest: Any
    ) -> dict[str, Any]:
        launched.append((system, job, rounds, device, setting, *rest[:2]))
        rest_of_it = {"accuracy": 0.9, "loss": 0.5, "steps": [10, 10], "cores": "2"}
        return {"system": system, "job": job, "seconds": [1.0, 1.0], "wall": 2.0, **rest_of_it}

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
