"""How time and memory grow with the number of clients.

    python benchmarks/growth.py --out benchmarks/results/growth-cpu.json

Time: the same 5,000 images (3×32×32, 4-layer CNN, batch 10, one epoch, FedAvg) over 20 and over 500
clients, all of which take part. Memory: the same 20,000 images (8×8, small CNN) over 100 and over
10,000 clients, all of which take part; it is the peak memory of the server's process. Every
measurement runs in its own process.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from cafedcl.core.environment import environment
from cafedcl.federation.rounds import Federation
from cafedcl.speed.measure import RGB, Workload, make_config, median_of, peak_memory, random_images
from cafedcl.task.build import prepare

TIME = Workload("cnn4", RGB, 20, 250, 10, 1, "5,000 images, 4-layer CNN")
MEMORY = Workload("cnn8", (1, 8, 8), 100, 200, 10, 1, "20,000 images, small CNN")
CASES = {
    "time-20": TIME,
    "time-500": replace(TIME, clients=500, images=10),
    "memory-100": MEMORY,
    "memory-10000": replace(MEMORY, clients=10_000, images=2),
}


def measure(case: str, rounds: int, device: str) -> dict[str, Any]:
    """Run a case in this process."""
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


def main() -> None:
    """Measure every case and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of timed rounds")
    parser.add_argument("--repeats", type=int, default=2, help="measurements of every case")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "growth-cpu.json"
    )
    parser.add_argument(
        "--case", choices=list(CASES), help="measure one case in this process and print it"
    )
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.rounds, arguments.device)))
        return
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for _ in range(arguments.repeats):
        for case, runs in found.items():
            command = [sys.executable, __file__, "--case", case, "--rounds", str(arguments.rounds)]
            command += ["--device", arguments.device]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            run = json.loads(done.stdout.splitlines()[-1])
            runs.append(run)
            print(f"{case}: {run['round_s']:.2f} s/round, {run['peak_mib']:.0f} MiB", flush=True)
    seconds = {case: median(run["round_s"] for run in runs) for case, runs in found.items()}
    memory = {case: median(run["peak_mib"] for run in runs) for case, runs in found.items()}
    growth = {
        "round_20_to_500_clients": seconds["time-500"] / seconds["time-20"],
        "memory_100_to_10000_clients": memory["memory-10000"] / memory["memory-100"],
    }
    command = ["python", "benchmarks/growth.py"]
    command += ["--rounds", str(arguments.rounds), "--repeats", str(arguments.repeats)]
    result = {
        "growth": growth,
        "runs": found,
        "environment": environment(command, arguments.device),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(growth))


if __name__ == "__main__":
    main()
