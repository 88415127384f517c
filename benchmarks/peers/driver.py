"""The command line and the result file of all drivers.

    python benchmarks/peers/drive_plain.py a --rounds 4 --out plain.json

is the command of a driver; all drivers have the same arguments.
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
CPU_ONLY = ("fedjax",)
"""Systems whose drivers have neither the network of the job for a GPU nor a way to use one."""
GPU_SHARE = 0.1
"""The part of a GPU that a client occupies, in systems that train several clients at once."""


@dataclass(frozen=True)
class Task:
    """The job of a driver, and the settings of PyTorch."""

    job: Job
    rounds: int
    path: Path
    threads: int
    onednn: bool
    device: str
    gpu_share: float
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
    """The result of a run."""

    seconds: list[float]
    """Wall time of every round, the first one included."""
    accuracy: float
    """Accuracy of the final global model on the held-out images."""
    loss: float
    """Mean cross-entropy of the final global model on the held-out images."""
    steps: list[int]
    """Optimizer steps of every round."""
    cores: str
    """How the system used the cores, or the GPU."""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_system(system: str, job: Job, device: str) -> None:
    """Refuse a system that cannot run a job on a device."""
    if system in CPU_ONLY and (device == "cuda" or job.model == "resnet"):
        raise JobError(f"job {job.name} on {device}: {system} cannot run it; the others can")


def check_share(share: float) -> None:
    """Refuse a part of a GPU that no client can occupy."""
    if not 0 < share <= 1:
        raise JobError(f"--gpu-share {share:g}: above 0 and at most 1 is needed")


def gpu() -> str:
    """Return the name of the GPU that PyTorch uses."""
    import torch

    if not torch.cuda.is_available():
        raise JobError("device cuda: PyTorch finds no CUDA GPU on this machine")
    return torch.cuda.get_device_name()


def use_device(device: str) -> None:
    """Make sure that the GPU to train on exists, or hide all GPUs if the CPU is to be used.

    Some peers take a GPU wherever PyTorch finds one. The processes that they start inherit this.
    """
    if device == "cuda":
        gpu()
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def compute(device: str, threads: int) -> str:
    """Return what a PyTorch process computes with, in words."""
    return "cuda, PyTorch's defaults" if device == "cuda" else f"{threads} PyTorch threads"


def release(package: str) -> str:
    """Return a package's version, also if it is only on Python's path and not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(import_module(package).__version__)


def drive(
    system: str, doc: str, packages: list[str], train: Callable[[Task], Outcome | None]
) -> None:
    """Run a driver from its command line and write its result.

    ``train`` returns None in helper processes, which write nothing.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    parser.add_argument("--rounds", type=int, help="number of rounds; default: the job's own")
    parser.add_argument("--data", type=Path, help="data file; default: where jobs.py writes it")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument(
        "--threads",
        type=int,
        default=cores(),
        help="PyTorch's threads if one process trains alone",
    )
    parser.add_argument(
        "--onednn", choices=("on", "off"), default="on", help="whether PyTorch uses oneDNN on a CPU"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="device to train on; default: the job's own"
    )
    parser.add_argument(
        "--gpu-share",
        type=float,
        default=GPU_SHARE,
        help="part of the GPU per client, in systems that train several clients at once",
    )
    arguments = parser.parse_args()
    try:
        task = read_task(arguments)
        check_system(system, task.job, task.device)
        use_device(task.device)
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
    """Return the task of the command line; wrong arguments are a JobError."""
    job = find_job(arguments.job, arguments.scale)
    rounds = job.rounds if arguments.rounds is None else arguments.rounds
    if rounds < 2:
        raise JobError(f"--rounds {rounds}: the first round is a warm-up, so at least 2 are needed")
    if arguments.threads < 1:
        raise JobError(f"--threads {arguments.threads}: at least 1 is needed")
    check_share(arguments.gpu_share)
    path = arguments.data or data_file(job.name, arguments.scale)
    onednn = arguments.onednn == "on"
    device = arguments.device or job.device
    return Task(
        job,
        rounds,
        path.resolve(),
        arguments.threads,
        onednn,
        device,
        arguments.gpu_share,
        sys.argv[1:],
    )


def quiet() -> None:
    """Silence the peers' deprecation warnings."""
    warnings.simplefilter("ignore")
