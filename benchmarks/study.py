"""Measures what a run costs in a study of many short runs, and alone.

    python benchmarks/study.py --devices cuda --jobs 1,4,8

20 clients have 250 random images each, which are decoded before anything is timed. The model is the
four-layer CNN, and a run has 40 rounds. Of the single run, the seconds of its rounds are given too,
and beside it those of a process that only imports PyTorch and puts one number on the device: no run
can take less. Each result is written as soon as it is there.

Python keeps its bytecode here, in a temporary folder, also where it is told not to
(PYTHONDONTWRITEBYTECODE, as in many containers) and the packages were installed without any. There,
every process spends seconds on compiling PyTorch's modules anew.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cafedcl.core.environment import environment

CLIENTS = 20
TRAIN_IMAGES = 5_000
TEST_IMAGES = 10_000
CLASSES = 10
NAME = "random-rgb"


def write_images(folder: Path) -> None:
    """Write random images of CIFAR's shape as a data set."""
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, number in (("train", TRAIN_IMAGES), ("test", TEST_IMAGES)):
        parts[f"x_{part}"] = rng.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
        parts[f"y_{part}"] = rng.integers(0, CLASSES, number)
    np.savez(folder / f"{NAME}.npz", **parts)


def options(folder: Path, rounds: int) -> list[str]:
    """Return the options that all runs share."""
    settings = {
        "model.name": "cnn4",
        "train.batch_size": 50,
        "train.epochs": 5,
        "data.dir": folder,
        "federation.clients": CLIENTS,
        "federation.rounds": rounds,
        # The server's model is scored four times and the clients' models once, as in studies.
        "evaluate.every": max(rounds // 4, 1),
        "evaluate.own_every": rounds,
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def seconds_of(folder: Path, *words: str) -> float:
    """Return how long a command of Python takes, from its start to its end.

    Its bytecode is kept in a folder within ``folder``.
    """
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, env=variables)
    return time.perf_counter() - began


def seconds_of_command(folder: Path, *words: str) -> float:
    """Return how long a command of cafedcl takes."""
    return seconds_of(folder, "-m", "cafedcl", *words, "--quiet")


def seconds_of_rounds(run: Path) -> float:
    """Return how long the rounds of a run took."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(sum(json.loads(line)["seconds"].values()) for line in lines)


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--jobs", default="1,4,8", help="runs at a time, several to compare")
    parser.add_argument("--methods", default="fedavg,cafedcl")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/study.json"))
    asked = parser.parse_args()
    device = asked.devices.partition(",")[0]
    studies: dict[str, Any] = {}
    result: dict[str, Any] = {
        "command": ["python", *sys.argv],
        "environment": environment([], device),
        "rounds": asked.rounds,
    }

    def save(**found: Any) -> None:
        result.update(found)
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        shared = options(folder, asked.rounds)
        opening = f"import torch; torch.zeros(1, device={device!r})"
        opened = min(seconds_of(folder, "-c", opening) for _ in range(2))
        singles = []
        for number in range(3):
            out = folder / f"single-{number}"
            words = ["run", "--method", "fedavg", "--data", NAME, "--device", device]
            took = seconds_of_command(folder, *words, *shared, "--out", str(out))
            singles.append((took, seconds_of_rounds(out)))
        # The first run decodes the images and compiles the modules.
        single, rounds = min(singles[1:])
        print(f"a single run: {single:.2f} s, its rounds {rounds:.2f} s", flush=True)
        print(f"importing PyTorch and opening the device: {opened:.2f} s", flush=True)
        save(single_s=single, single_rounds_s=rounds, open_s=opened)
        runs = asked.seeds * len(asked.methods.split(","))
        for jobs in asked.jobs.split(","):
            words = ["compare", "--methods", asked.methods, "--data", NAME, "--jobs", jobs]
            words += ["--splits", "dirichlet:0.5", "--seeds", str(asked.seeds)]
            words += ["--devices", asked.devices, *shared]
            took = seconds_of_command(folder, *words, "--out", str(folder / f"study-{jobs}"))
            studies[jobs] = {"runs": runs, "seconds": took, "seconds_per_run": took / runs}
            print(f"{jobs} at a time: {took / runs:.2f} s a run", flush=True)
            save(studies=studies)


if __name__ == "__main__":
    main()
