"""The effect of tail augmentation on a long-tailed split of Fashion-MNIST.

    python experiments/augmentation.py --out runs/augmentation --jobs 4

trains with every kind of tail augmentation, five seeds each, and writes
experiments/results/augmentation.json: accuracy, balanced accuracy, few-shot accuracy, the standard
deviation over clients, and the time. `--read` writes the file from existing runs. Generated images
are also classified by an independent network, trained on the whole balanced training set. 20
clients, imbalance ratio 50, Dirichlet 0.3, 30 rounds, 4-layer CNN.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ttest_rel
from torch import Tensor, nn

from cafedcl.augment.gan import GENERATOR, unscale_images
from cafedcl.augment.networks import NOISE, Generator
from cafedcl.augment.quality import COPIES, FINE
from cafedcl.config.sections import DataOptions
from cafedcl.core.environment import environment
from cafedcl.core.rng import torch_stream
from cafedcl.core.tensors import under
from cafedcl.data import Dataset, load_dataset
from cafedcl.federation.runs import load
from cafedcl.models.small import CNN4

RESULT = Path(__file__).parent / "results" / "augmentation.json"
KINDS = ("none", "resample", "mixup", "cutmix", "gaussian", "gan")
ROWS = {"cafedcl": KINDS}
SETTINGS = {
    "data.name": "fashion_mnist",
    "split.kind": "dirichlet",
    "split.alpha": "0.3",
    "split.ir": "50",
    "model.name": "cnn4",
    "federation.clients": "20",
    "federation.rounds": "30",
    "evaluate.every": "30",
    "evaluate.own_every": "30",
    "evaluate.shots": "[1000, 300]",
    "evaluate.loop": "0",
    "store.checkpoint_every": "30",
}
"""Classes with fewer than 300 training images are few-shot: three of the ten, which have 286, 185
and 120.
"""
SCORES = ("accuracy", "balanced", "few", "client_std")
PER_CLASS = 100
"""Generated images per client and class that the independent network classifies."""


def labels() -> list[str]:
    """Return the names of all rows for `cafedcl compare`."""
    return [
        method if kind == "none" else f"{method}+{kind}"
        for method, kinds in ROWS.items()
        for kind in kinds
    ]


def train(out: Path, seeds: int, jobs: int, data_dir: str) -> int:
    """Run the missing runs and return the exit status."""
    command = [sys.executable, "-m", "cafedcl", "compare", "--methods", ",".join(labels())]
    command += ["--seeds", str(seeds), "--jobs", str(jobs), "--out", str(out)]
    if data_dir:
        command += ["--data-dir", data_dir]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    return subprocess.run(command, check=False).returncode


def read(out: Path) -> list[dict[str, Any]]:
    """Return the last scores and the time of every finished run."""
    found = []
    for path in sorted(out.glob("**/metrics.jsonl")):
        run = load(path.parent)
        if len(run.records) < run.config.federation.rounds:
            continue
        last = run.records[-1]
        seconds = [sum(record["seconds"].values()) for record in run.records]
        scores = last["server"] or {}
        own = {f"own_{name}": last["own"][name] for name in ("client_mean", "client_std")}
        found.append(
            {
                "method": run.config.method.name,
                "augment": run.config.augment.name,
                "seed": run.config.run.seed,
                **{name: scores.get(name) for name in SCORES},
                **own,
                "seconds": sum(seconds),
                "round_seconds": median(seconds),
                "recognised": None,
                "path": str(path.parent),
            }
        )
    return found


def train_classifier(data: Dataset, device: torch.device) -> nn.Module:
    """Train a network on the whole training set."""
    with torch_stream(1, "judge"):
        network = nn.Sequential(CNN4(data.shape, 1.0), nn.Linear(512, data.classes)).to(device)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(8):
            for rows in torch.randperm(len(data.train_y)).to(device).split(256):
                optimizer.zero_grad()
                logits = network(data.images(data.train_x[rows]))
                F.cross_entropy(logits, data.train_y[rows]).backward()
                optimizer.step()
    return network.eval()


@torch.no_grad()
def accuracy_of(network: nn.Module, data: Dataset, x: Tensor, y: Tensor) -> float:
    """Return the network's accuracy on images."""
    predicted = torch.cat([network(data.images(part)).argmax(1) for part in x.split(1000)])
    return float(predicted.eq(y).double().mean())


@torch.no_grad()
def recognised(path: str, network: nn.Module, data: Dataset) -> dict[str, float]:
    """Return the network's accuracy on a run's generated images, over all clients and classes."""
    run = load(path)
    device = data.train_x.device
    shares = []
    qualities = []
    draws = torch.Generator().manual_seed(0)
    for memory in run.memories.values():
        if "augment/verdict" not in memory:
            continue
        weights = {
            name: value.to(device) for name, value in under(f"augment/{GENERATOR}", memory).items()
        }
        if not weights:
            continue
        generator = Generator(run.shape, len(run.names), weights["last.weight"].shape[1]).to(device)
        generator.load_state_dict(weights)
        generated = np.isin(memory["augment/verdict"].numpy(), (FINE, COPIES))
        for label in np.flatnonzero(generated).tolist():
            y = torch.full((PER_CLASS,), label, device=device)
            noise = torch.randn(PER_CLASS, NOISE, generator=draws).to(device)
            x = unscale_images(generator(noise, y))
            shares.append(accuracy_of(network, data, x, y))
            qualities.append(float(memory["augment/quality"][label]))
    return {
        "pairs": len(shares),
        "mean": float(np.mean(shares)),
        "above_half": float(np.mean(np.asarray(shares) > 0.5)),
        "correlation_with_quality": float(np.corrcoef(shares, qualities)[0, 1]),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per method and augmentation, with paired t-tests against no augmentation."""
    rows = []
    for method, kinds in ROWS.items():
        base = {
            run["seed"]: run for run in runs if (run["method"], run["augment"]) == (method, "none")
        }
        for kind in kinds:
            mine = {
                run["seed"]: run
                for run in runs
                if (run["method"], run["augment"]) == (method, kind)
            }
            row: dict[str, Any] = {"method": method, "augment": kind, "seeds": len(mine)}
            for name in (*SCORES, "own_client_mean", "own_client_std", "seconds", "round_seconds"):
                values = [run[name] for run in mine.values() if run[name] is not None]
                row[name] = None
                if len(values) > 1:
                    row[name] = [float(np.mean(values)), float(np.std(values, ddof=1))]
                both = [seed for seed in mine if seed in base and mine[seed][name] is not None]
                if kind != "none" and len(both) > 2 and "seconds" not in name:
                    test = ttest_rel([mine[s][name] for s in both], [base[s][name] for s in both])
                    row[f"{name}_p"] = float(test.pvalue)
            rows.append(row)
    return rows


def main() -> None:
    """Train, read the runs, classify generated images, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/augmentation"), help="folder of all runs"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--data-dir", default="", help="folder with data files")
    parser.add_argument("--read", action="store_true", help="train nothing; read existing runs")
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if not arguments.read:
        failed = train(arguments.out, arguments.seeds, arguments.jobs, arguments.data_dir)
        if failed:
            sys.exit("not all runs are finished; run the same command again to resume")
    runs = read(arguments.out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_dataset(DataOptions(name="fashion_mnist", dir=arguments.data_dir)).to(device)
    network = train_classifier(data, device)
    for run in runs:
        path = run.pop("path")
        if run["augment"] == "gan":
            run["recognised"] = recognised(path, network, data)
    command = ["python", "experiments/augmentation.py"]
    command += ["--out", str(arguments.out), "--jobs", str(arguments.jobs)]
    result = {
        "about": "Fashion-MNIST, imbalance ratio 50, Dirichlet 0.3, 20 clients, 30 rounds, cnn4; "
        "last round",
        "settings": SETTINGS,
        "judge_accuracy": accuracy_of(network, data, data.test_x, data.test_y),
        "summary": summary(runs),
        "runs": runs,
        "environment": environment(command, str(device)),
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in result["summary"]:
        means = {name: row[name] and round(row[name][0], 4) for name in SCORES}
        print(row["method"], row["augment"], means, flush=True)


if __name__ == "__main__":
    main()
