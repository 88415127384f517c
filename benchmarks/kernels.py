"""Measures where the time of a training step goes: the kernels of one client's steps, by kind.

    python benchmarks/kernels.py --device cuda --tasks resnet-250,resnet-50

One client of a standard workload (`cafedcl bench`) trains alone, under PyTorch's profiler. The
times of kernels are summed by kind and divided by the number of steps; the largest of no known kind
are named. Several clients at a time, as in a run, take less than the sum, because their kernels
overlap: that time is given beside it. On a CPU, operators take the place of kernels.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from cafedcl.core.contract import Down, Job
from cafedcl.core.environment import environment
from cafedcl.speed.measure import (
    drain,
    find_workload,
    make_config,
    median_of,
    random_images,
    synchronize,
    training_alone,
)
from cafedcl.task.build import Setup, prepare

KINDS = {
    "convolutions, forward": ("fprop", "implicit_convolve", "::convolution"),
    "convolutions, gradient of images": ("dgrad",),
    "convolutions, gradient of filters": ("wgrad", "init_device_workspace"),
    "normalisation, shortcut, ReLU": ("normalise", "differentiate", "group_norm"),
    "clipping and update": ("linalg_vector_norm", "descend"),
}
"""Parts of the names of kernels, in lower case; the first kind with such a part has the kernel."""
OTHER = "other"
NAMED = 10
"""How many kernels of no known kind are named."""
TEST_IMAGES = 100


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel by its name."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS.items() if any(it in name for it in parts)), OTHER)


def make_setup(task: str, device: str, streams: int) -> Setup:
    """Return a workload with FedAvg, compiled on a GPU."""
    workload = find_workload(task)
    settings: dict[str, Any] = {"engine": {"device": device, "workers": 1}}
    if device != "cpu":
        settings["engine"] |= {"compile": "on", "streams": streams}
    return prepare(
        make_config(workload, "fedavg", 1, settings), random_images(workload, TEST_IMAGES)
    )


def jobs_of(setup: Setup) -> list[Job]:
    """Return a visit of every client in the first round."""
    down = Down(0, setup.task.method.broadcast(setup.start()))
    return [Job(client, down, {}, False) for client in range(len(setup.task.clients.shards))]


def steps_of(setup: Setup, clients: int) -> int:
    """Return the number of steps of the first clients."""
    sizes = setup.task.clients.shards.train.sizes.tolist()[:clients]
    return sum(map(setup.task.schedule.steps, sizes))


def profiled(setup: Setup) -> dict[str, float]:
    """Return the milliseconds per step of every kernel, for one client alone."""
    on_gpu = setup.task.device.type == "cuda"
    one = jobs_of(setup)[:1]
    with closing(training_alone(setup)) as engine:
        drain(engine, one)
        activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
        with profile(activities=[activity], acc_events=True) as found:
            drain(engine, one)
            synchronize(setup.task.device)
    steps = steps_of(setup, 1)
    return {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        / 1000
        / steps
        for event in found.key_averages()
    }


def by_kind(kernels: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of every kind's times."""
    times = dict.fromkeys([*KINDS, OTHER], 0.0)
    for name, took in kernels.items():
        times[kind_of(name)] += took
    return times


def largest_other(kernels: Mapping[str, float]) -> dict[str, float]:
    """Return the times of the largest kernels of no known kind, the largest first."""
    others = {name: took for name, took in kernels.items() if kind_of(name) == OTHER}
    return dict(sorted(others.items(), key=lambda entry: -entry[1])[:NAMED])


def together(setup: Setup) -> float:
    """Return the milliseconds per step with all clients, as many at a time as in a run."""
    jobs = jobs_of(setup)
    with closing(training_alone(setup)) as engine:
        drain(engine, jobs)
        seconds = median_of(lambda: drain(engine, jobs), 2, setup.task.device)
    return 1000 * seconds / steps_of(setup, len(jobs))


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tasks", default="resnet-250,resnet-50")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for task in asked.tasks.split(","):
        kernels = profiled(make_setup(task, asked.device, streams=1))
        times = by_kind(kernels)
        others = largest_other(kernels)
        found[task] = {
            "kernels_ms": times,
            "largest_other_ms": others,
            "together_ms": together(make_setup(task, asked.device, 0)),
        }
        print(f"{task}: one client's kernels take {sum(times.values()):.2f} ms a step", flush=True)
        for kind, took in times.items():
            print(f"  {took:8.3f} ms  {kind}", flush=True)
        for name, took in others.items():
            print(f"    {took:8.3f} ms  {name[:80]}", flush=True)
        print(f"  {found[task]['together_ms']:8.3f} ms  a step, with all clients", flush=True)
        result = {
            "command": ["python", *sys.argv],
            "environment": environment([], asked.device),
            "tasks": found,
        }
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
