"""How time, memory and the run folder grow with the number of clients.

    python benchmarks/growth.py --out benchmarks/results/growth-cpu.json
    python benchmarks/growth.py --many --out benchmarks/results/growth-many-cpu.json

Time: the same 5,000 images (3×32×32, 4-layer CNN, batch 10, one epoch, FedAvg) over 20 and over 500
clients, all of which take part. Memory: the same 20,000 images (8×8, small CNN) over 100 and over
10,000 clients, all of which take part; it is the peak memory of the server's process. Every
measurement runs in its own process.

With ``--many``: 10,000, 100,000 and 1,000,000 clients with two images each (8×8, small CNN), 1,000
of which take part in a round. Every round is scored, own models on 100 of 1,000 test images, and
recorded in a run folder with a checkpoint. Set-up is everything from the images in memory to the
first round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cafedcl.core.environment import environment
from cafedcl.federation.recorder import Recorder
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.speed.measure import RGB, Workload, make_config, median_of, peak_memory, random_images
from cafedcl.task.build import prepare

TIME = Workload("cnn4", RGB, 20, 250, 10, 1, "5,000 images, 4-layer CNN")
MEMORY = Workload("cnn8", (1, 8, 8), 100, 200, 10, 1, "20,000 images, small CNN")
COUNTS = (10_000, 100_000, 1_000_000)
CASES = {
    "time-20": TIME,
    "time-500": replace(TIME, clients=500, images=10),
    "memory-100": MEMORY,
    "memory-10000": replace(MEMORY, clients=10_000, images=2),
}


MANY = {
    f"many-{clients}": replace(MEMORY, clients=clients, images=2, title="two images per client")
    for clients in COUNTS
}
PARTICIPANTS = 1000


def measure_many(case: str, rounds: int, device: str) -> dict[str, Any]:
    """Run a case of many clients in this process, with its run folder."""
    task = MANY[case]
    images = random_images(task, 1000)
    before = peak_memory(torch.device("cpu"))
    settings = {
        "split": {"validation": 0.0},
        "federation": {"participation": PARTICIPANTS / task.clients, "clients": task.clients},
        "evaluate": {"own_every": 1, "own_images": 100, "loop": 0, "full": False},
        "store": {"checkpoint_every": 1},
        "engine": {"device": device},
    }
    began = time.perf_counter()
    setup = prepare(make_config(task, "fedavg", rounds, settings), images)
    with tempfile.TemporaryDirectory() as home, Federation(setup) as federation:
        folder = RunFolder.create(Path(home) / "run")
        recorder = Recorder(folder)
        recorder.begin(federation, [])
        federation.callbacks = [recorder]
        setup_s = time.perf_counter() - began
        sizes = []
        seconds = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            federation.step()
            seconds.append(time.perf_counter() - began)
            files = (file for file in folder.path.rglob("*") if "checkpoints" not in file.parts)
            sizes.append(sum(file.stat().st_size for file in files if file.is_file()))
        folder.unlock()
    return {
        "case": case,
        "setup_s": setup_s,
        "round_s": median(seconds[1:]),
        "images_mib": before / 2**20,
        "peak_mib": peak_memory(setup.task.device) / 2**20,
        "folder_kib_per_round": (sizes[-1] - sizes[0]) / rounds / 2**10,
        "task": asdict(task),
    }


def measure(case: str, rounds: int, device: str) -> dict[str, Any]:
    """Run a case in this process."""
    if case in MANY:
        return measure_many(case, rounds, device)
    task = CASES[case]
    settings = {
        "split": {"validation": 0.0},
        "evaluate": {"every": 1000 * rounds},
        "engine": {"device": device},
    }
    setup = prepare(make_config(task, "fedavg", rounds, settings), random_images(task, 100))
    with Federation(setup) as federation:
        began = time.perf_counter()
        federation.step()
        first = time.perf_counter() - began
        seconds = median_of(federation.step, rounds, setup.task.device)
    memory = peak_memory(setup.task.device)
    return {
        "case": case,
        "first_round_s": first,
        "round_s": seconds,
        "peak_mib": memory / 2**20,
        "task": asdict(task),
    }


def growth_of(found: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return the ratios of the page from the measurements of every case."""
    seconds = {case: median(run["round_s"] for run in runs) for case, runs in found.items()}
    memory = {case: median(run["peak_mib"] for run in runs) for case, runs in found.items()}
    if "time-20" in found:
        return {
            "round_20_to_500_clients": seconds["time-500"] / seconds["time-20"],
            "memory_100_to_10000_clients": memory["memory-10000"] / memory["memory-100"],
        }
    fewer, more = COUNTS[1:]
    further = memory[f"many-{more}"] - memory[f"many-{fewer}"]
    return {
        "round_100000_to_1000000_clients": seconds[f"many-{more}"] / seconds[f"many-{fewer}"],
        "bytes_per_further_client": further * 2**20 / (more - fewer),
    }


def main() -> None:
    """Measure every case and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of timed rounds")
    parser.add_argument("--repeats", type=int, default=2, help="measurements of every case")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--many", action="store_true", help="measure up to a million clients")
    parser.add_argument("--out", type=Path, help="by default a file in benchmarks/results")
    parser.add_argument(
        "--case", choices=[*CASES, *MANY], help="measure one case in this process and print it"
    )
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.rounds, arguments.device)))
        return
    cases = MANY if arguments.many else CASES
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(arguments.repeats):
        for case, runs in found.items():
            command = [sys.executable, __file__, "--case", case, "--rounds", str(arguments.rounds)]
            command += ["--device", arguments.device]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            run = json.loads(done.stdout.splitlines()[-1])
            runs.append(run)
            print(f"{case}: {run['round_s']:.2f} s/round, {run['peak_mib']:.0f} MiB", flush=True)
    growth = growth_of(found)
    command = ["python", "benchmarks/growth.py", *(["--many"] if arguments.many else [])]
    command += ["--rounds", str(arguments.rounds), "--repeats", str(arguments.repeats)]
    result = {
        "growth": growth,
        "runs": found,
        "environment": environment(command, arguments.device),
    }
    name = "growth-many-cpu.json" if arguments.many else "growth-cpu.json"
    out = arguments.out or Path(__file__).parent / "results" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(growth))


if __name__ == "__main__":
    main()
