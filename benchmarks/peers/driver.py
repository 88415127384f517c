"""What all drivers share: the command line, and the result file.

    python benchmarks/peers/drive_plain.py a --rounds 4 --out plain.json

is how a driver is called; all take the same arguments.
"""

import argparse
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jobs import SCALES, Data, Job, JobError, data_file, find_job, load

DEVICES = ("cpu", "cuda")
ON_GPU = ("ours", "plain")
"""Systems whose drivers can train on a GPU, and the only ones that run its network."""


@dataclass(frozen=True)
class Task:
    """What a driver is asked to run, and how PyTorch is to be set for it."""

    job: Job
    rounds: int
    path: Path
    threads: int
    onednn: bool
    device: str
    arguments: list[str]
    """The command line, for drivers that start themselves again in several processes."""

    def data(self) -> Data:
        """Read the job's data."""
        data = load(self.path)
        if len(data.sizes) != self.job.clients or len(data.train_y) != self.job.images:
            raise JobError(f"{self.path}: not the data of job {self.job.name} at this scale")
        return data


@dataclass(frozen=True)
class Outcome:
    """What a run has to show for itself."""

    seconds: list[float]
    """Wall time of every round, the first one included."""
    accuracy: float
    """Of the final global model on the held-out images."""
    loss: float
    """Mean cross-entropy of the final global model on the held-out images."""
    steps: list[int]
    """Optimizer steps of every round."""
    cores: str
    """How the system used the cores, or the GPU."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_system(system: str, job: Job, device: str) -> None:
    """Refuse a system that cannot run a job on a device."""
    if system not in ON_GPU and (device == "cuda" or job.model == "resnet"):
        raise JobError(
            f"job {job.name} on {device}: {system} is not set up for it; only {' and '.join(ON_GPU)} are"
        )


def gpu() -> str:
    """Return the name of the GPU that PyTorch uses."""
    import torch

    if not torch.cuda.is_available():
        raise JobError("device cuda: PyTorch finds no CUDA GPU on this machine")
    return torch.cuda.get_device_name()


def release(package: str) -> str:
    """Return a package's version, also where it is not installed but on Python's path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(import_module(package).__version__)


def drive(
    system: str, doc: str, packages: list[str], train: Callable[[Task], Outcome | None]
) -> None:
    """Run a driver from its command line and write its result; a process that is only a helper
    returns None.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    parser.add_argument(
        "--rounds", type=int, help="how many rounds; the job's own number if not given"
    )
    parser.add_argument(
        "--data", type=Path, help="the job's data file; where jobs.py puts it if not given"
    )
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument(
        "--threads",
        type=int,
        default=cores(),
        help="PyTorch's threads where one process trains alone",
    )
    parser.add_argument(
        "--onednn", choices=("on", "off"), default="on", help="PyTorch's CPU kernels by oneDNN"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="where the clients train; the job's own if not given"
    )
    arguments = parser.parse_args()
    try:
        task = read_task(arguments)
        check_system(system, task.job, task.device)
        if task.device == "cuda":
            gpu()
        outcome = train(task)
    except JobError as error:
        sys.exit(f"error: {error}")
    if outcome is None:
        return
    result: dict[str, Any] = {
        "system": system,
        "job": task.job.name,
        "scale": arguments.scale,
        "rounds": task.rounds,
    }
    result |= asdict(outcome)
    result["versions"] = {"python": platform.python_version()} | {
        name: release(name) for name in packages
    }
    try:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        sys.exit(f"error: {arguments.out}: cannot be written: {error.strerror}")


def read_task(arguments: argparse.Namespace) -> Task:
    """Return what the command line asks for, or say what is wrong with it."""
    job = find_job(arguments.job, arguments.scale)
    rounds = job.rounds if arguments.rounds is None else arguments.rounds
    if rounds < 2:
        raise JobError(f"--rounds {rounds}: the first round is a warm-up, so at least 2 are needed")
    if arguments.threads < 1:
        raise JobError(f"--threads {arguments.threads}: at least 1 is needed")
    path = arguments.data or data_file(job.name, arguments.scale)
    onednn, device = arguments.onednn == "on", arguments.device or job.device
    return Task(job, rounds, path.resolve(), arguments.threads, onednn, device, sys.argv[1:])


def quiet() -> None:
    """Silence the peers' deprecation warnings, which are no part of the result."""
    warnings.simplefilter("ignore")
