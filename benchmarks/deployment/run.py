"""Overhead of a deployment: seconds per round beyond training, and bytes on the wire.

    python benchmarks/deployment/run.py --out benchmarks/results/deployment.json

runs a server and three sites on one machine, each in a network namespace with its own address, with
TLS and keys. This needs root. Bytes are counted at the server's cable, with all headers. Training
time is that of the slowest client's job in one process on the same machine. The first round, in
which sites load their data, and the last one, in which models are evaluated, are left out. Clients
have few images, because training is not what is measured.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from hosts import Hosts

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Job, Reply
from cafedcl.core.environment import environment
from cafedcl.deploy.folders import ServerOptions, make_folders
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.journal import NAME
from cafedcl.task.build import prepare
from cafedcl.task.resolve import gather

SITES = ("north", "south", "west")
SETTINGS = [
    "train.epochs=1",
    "train.iterations=2",
    "split.alpha=1.0",
    "split.validation=0.9",
    "engine.device=cpu",
    "federation.clients=3",
    "evaluate.every=1000",
    "evaluate.own_every=1000",
]
CASES = {
    "prototypes only": ("fedproto", ["model.name=cnn8"]),
    "small CNN": ("cafedcl", ["model.name=cnn8"]),
    "ResNet-18": ("fedavg", ["model.name=resnet18"]),
}


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = environment(["python", *sys.argv], "cpu")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(Path(folder), options.rounds):
            results.append(result)
            print(json.dumps(result), flush=True)
            options.out.write_text(
                json.dumps({"environment": about, "results": results}, indent=1) + "\n"
            )


def measure(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Run every case on one deployment."""
    with Hosts(SITES) as hosts:
        options = ServerOptions(host=f"{hosts.net}.1")
        server, *sites = make_folders(
            folder / "d", options, dict.fromkeys(SITES, ""), simulated=True
        )
        processes = [hosts.start("server", folder / "server.log", "deploy", "server", server)]
        try:
            wait(lambda: "ready" in (folder / "server.log").read_text())
            for name, site in zip(SITES, sites, strict=True):
                processes.append(hosts.start(name, folder / f"{name}.log", "deploy", "site", site))
            for name in CASES:
                result = case(hosts, server, folder, name, rounds)
                yield {**result, "load": round(os.getloadavg()[0], 1)}
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                process.wait(30)


def case(hosts: Hosts, server: Path, folder: Path, name: str, rounds: int) -> dict[str, Any]:
    """Run one case and take the median over its rounds."""
    method, settings = CASES[name]
    out = folder / name.replace(" ", "-")
    log = folder / "run.log"
    command = ["deploy", "run", server, "--method", method, "--rounds", rounds]
    command += ["--out", out, "--quiet"]
    for setting in (*SETTINGS, *settings):
        command += ["--set", setting]
    process = hosts.start("server", log, *command)
    # Time, and bytes at the server's cable, at the start and the end of every round.
    seen: dict[tuple[str, int], tuple[float, int]] = {}
    read = 0
    while process.poll() is None:
        lines = (out / NAME).read_text().splitlines() if (out / NAME).exists() else []
        for event in map(json.loads, lines[read:]):
            if event["event"] in ("round", "done"):
                traffic = sum(hosts.traffic("server"))
                seen[event["event"], event["round"]] = (event["time"], traffic)
        read = len(lines)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(log.read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    later = range(1, rounds - 1)
    seconds = median(seen["done", t][0] - seen["round", t][0] for t in later)
    training = slowest(gather(method=method, settings=[*SETTINGS, *settings]))
    payload = median(
        lines[t]["traffic"]["down_bytes"] + lines[t]["traffic"]["up_bytes"] for t in later
    )
    wire = median(seen["done", t][1] - seen["round", t][1] for t in later)
    return {
        "case": name,
        "method": method,
        "seconds_round": round(seconds, 3),
        "seconds_training": round(training, 3),
        "seconds_overhead": round(seconds - training, 3),
        "payload_bytes": int(payload),
        "wire_bytes": int(wire),
        "wire_over_payload": round(wire / payload, 3),
    }


def slowest(config: Config) -> float:
    """Return the seconds of the slowest client's job in one process."""
    setup = prepare(config)
    engine = ReferenceEngine(setup.task)
    down = Down(0, setup.task.method.broadcast(setup.start()))
    # The first job is a warm-up and does not count.
    clients = (0, *range(len(setup.task.clients.shards)))
    replies = list(engine.train([Job(client, down, {}, False) for client in clients]))
    return max(reply.up.seconds for reply in replies[1:] if isinstance(reply, Reply))


def wait(ready: Callable[[], bool]) -> None:
    """Wait until ``ready()``, for two minutes at most."""
    until = time.monotonic() + 120
    while not ready():
        if time.monotonic() > until:
            raise SystemExit("it took too long")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
