"""Where runs are executed: on the cores and GPUs of this machine, or on a Ray cluster."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import DeviceShare, Handle, Launcher
from cafedcl.compare.mps import MultiProcessService, runs_per_gpu
from cafedcl.compare.pool import POLL
from cafedcl.compare.processes import LocalLauncher
from cafedcl.core.environment import QUEUES, cores
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import LOG_ENCODING, optional, python_command

QUEUES_OF_MANY = "8"
"""Hardware queues for each of the runs that share a GPU. By default every process requests all of
them, and a dozen processes would request more than exist.
"""
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
"""The variable that sets how many kernels PyTorch compiles at a time. By default every process
compiles on all cores, and a dozen processes would slow each other down.
"""


def choose_launcher(
    devices: Sequence[str], jobs: int | None, threads: int, ray: str | None
) -> Launcher:
    """Return a launcher for runs, by default on all GPUs of this machine, or else on its cores."""
    if jobs is not None and jobs < 1:
        raise CafedclError(f"--jobs {jobs}: it must be at least 1")
    if ray is not None:
        return RayLauncher(ray, devices, jobs, threads)
    import torch

    here = list(devices)
    if not here:
        here = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    if here == ["cpu"]:
        each = jobs or max(1, cores() // threads)
        return LocalLauncher([device_share("cpu")] * each)
    each = jobs or runs_per_gpu()
    shares = [device_share(device, each, each * len(here)) for device in here]
    service = None
    if each > 1 and any(share.device == "cuda" for share in shares):
        service = MultiProcessService()
        if not service.start() and jobs is None:
            # Without the service, runs that share a GPU would only wait for each other.
            return LocalLauncher([device_share(device, 1, len(here)) for device in here])
        shares = [
            replace(share, variables={**share.variables, **service.variables}) for share in shares
        ]
    return LocalLauncher(shares * each, service)


def device_share(device: str, jobs: int = 1, processes: int = 1) -> DeviceShare:
    """Return a share of a device, which ``jobs`` runs use at the same time.

    ``processes`` is the number of simultaneous runs on all devices of the machine. A run sees only
    its own GPU, as ``cuda``, so it can be resumed on another one later.
    """
    import torch

    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise CafedclError(
            f"--devices {device}: there is no such device; "
            "cpu, cuda:0, cuda:1, … or mps is expected"
        )
    if kind != "cuda":
        return DeviceShare(kind)
    there = torch.cuda.device_count()
    number = int(index or 0)
    if number >= there:
        raise CafedclError(
            f"--devices {device}: this machine has {there} CUDA devices; choose another one, or cpu"
        )
    # If the user has restricted the GPUs, number 0 is the first of those that are left.
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return DeviceShare(
        "cuda",
        {
            "CUDA_VISIBLE_DEVICES": visible[number] if visible else str(number),
            **shared(jobs, processes),
        },
    )


def shared(jobs: int, processes: int) -> dict[str, str]:
    """Return the environment of runs that share a GPU, or the cores that compile for several.

    Variables that the user has set are kept.
    """
    wanted = {}
    if jobs > 1:
        wanted[QUEUES] = QUEUES_OF_MANY
    if processes > 1:
        wanted[COMPILERS] = str(max(1, cores() // processes))
    return {name: value for name, value in wanted.items() if name not in os.environ}


class RayLauncher:
    """Launches runs as tasks of a Ray cluster whose machines share a file system.

    Each task gets cores or a share of a GPU.
    """

    def __init__(
        self, address: str, devices: Sequence[str], jobs: int | None, threads: int
    ) -> None:
        self.ray = optional("ray", "ray", "--ray")
        kinds = {device.partition(":")[0] for device in devices} or {"cpu"}
        if kinds not in ({"cpu"}, {"cuda"}):
            raise CafedclError(
                "--devices: with --ray, give cpu or cuda; the cluster knows their number"
            )
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CafedclError(f"--ray {address}: cannot connect to the cluster: {error}") from None
        there: dict[str, float] = self.ray.cluster_resources()
        if kinds == {"cuda"}:
            each = jobs or 1
            self.wanted: dict[str, float] = {"num_cpus": 0, "num_gpus": 1 / each}
            number = int(there.get("GPU", 0)) * each
        else:
            self.wanted = {"num_cpus": threads}
            number = jobs or int(there.get("CPU", 0)) // threads
        if not number:
            raise CafedclError(
                f"--ray {address}: the cluster has no {kinds.pop()} device for a job"
            )
        variables = shared(jobs or 1, jobs or 1) if kinds == {"cuda"} else {}
        self.slots: Sequence[DeviceShare] = [DeviceShare(kinds.pop(), variables)] * number

    def launch(self, arguments: list[str], slot: DeviceShare, log: Path) -> Handle:
        """Start a task."""
        task = self.ray.remote(max_retries=0, **self.wanted)(work)
        return RayTask(
            self.ray,
            task.remote(arguments, slot.variables, str(Path.cwd()), str(log.resolve())),
            log,
        )

    def close(self) -> None:
        """Do nothing: a task ends with its run."""


class RayTask:
    """A run in a task of a Ray cluster."""

    def __init__(self, ray: Any, reference: Any, log: Path) -> None:
        self.ray = ray
        self.reference = reference
        self.log = log

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            return int(self.ray.get(self.reference))
        except self.ray.exceptions.RayError as error:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(" ".join(str(error).split()) + "\n")
            return 1

    def stop(self) -> None:
        """Ask it to save itself and end."""
        self.ray.cancel(self.reference)

    def kill(self) -> None:
        """End it at once."""
        self.ray.cancel(self.reference, force=True)


def work(arguments: list[str], variables: dict[str, str], home: str, log: str) -> int:
    """Execute a run on a machine of the cluster, in the user's working directory."""
    with Path(log).open("wb") as errors:
        process = subprocess.Popen(
            [*python_command("cafedcl"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=home,
            env={**os.environ, **LOG_ENCODING, **variables},
            start_new_session=True,
        )
    # Ray cancels a task with an interrupt, which a cluster started in the background ignores.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Polling, because Python handles the interrupt only between two steps, not inside wait().
        while process.poll() is None:
            time.sleep(POLL)
    except KeyboardInterrupt:
        process.terminate()
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    return process.wait()
