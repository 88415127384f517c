"""Where and how a run was made."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The variable that sets from how many queues a GPU takes a process's work."""
PACKAGES = ("cafedcl", "torch", "numpy", "scikit-learn", "safetensors", "pandas")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> float:
    """Return the machine's memory in bytes; infinite where it is not known."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def is_arm() -> bool:
    """Return whether this machine's processor is an ARM."""
    return platform.machine().lower() in ("aarch64", "arm64")


def environment(command: list[str], device: str) -> dict[str, Any]:
    """Return versions, machine, device, commit and command."""
    import torch

    name = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else platform.processor() or platform.machine()
    )
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {package: package_version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device,
        "device_name": name,
        "commit": _commit(),
    }


@cache
def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    """Return the commit of the checkout this package runs from, marked if it was changed; None
    outside of a checkout.

    It is looked up once per process, because a process does not run what is committed later.
    """
    home = Path(__file__).parent
    git = ["git", "-C", str(home)]
    try:
        inside = subprocess.run(
            [*git, "ls-files", "--error-unmatch", __file__],
            capture_output=True,
            timeout=5,
            check=False,
        )
        if inside.returncode:
            return None
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None
