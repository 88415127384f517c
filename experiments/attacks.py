"""What lying clients do to the server's model, and what each defence saves.

    python experiments/attacks.py --seeds 10 --jobs 2

trains every method against every attack with every defence on the digits: 20 clients, Dirichlet
0.1, 20 rounds of one local epoch, 4 of 20 clients lie. It writes experiments/results/attacks.json.
A run that the file has is not repeated; `--read` only prints the table.
"""

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULT = Path(__file__).parent / "results" / "attacks.json"
METHODS = ("cafedcl", "cafedcl:best", "fedavg")
ATTACKS = (
    "none",
    "label-flip:4",
    "sign-flip:4",
    "sign-flip:4,claim=most",
    "scale:4,claim=most",
    "noise:4,claim=most",
    "swap:4,claim=most",
    "long:4,claim=most",
    "huge:4",
    "counts:4",
)
DEFENCES = ("none", "clip", "agree", "trimmed-mean:0.2", "median", "multi-krum:0.2")
SETTINGS = {
    "train.epochs": 1,
    "evaluate.every": 20,
    "evaluate.own_every": 20,
    "evaluate.loop": 0,
    "engine.workers": 1,
}
Key = tuple[str, str, str, int]


def run_one(key: Key) -> dict[str, Any]:
    """Train once, and return the server's accuracy."""
    import torch

    import cafedcl

    torch.set_num_threads(1)
    method, attack, defence, seed = key
    run = cafedcl.run(
        method,
        split="dirichlet:0.1",
        clients=20,
        rounds=20,
        seed=seed,
        attack=attack,
        defence=defence,
        device="cpu",
        settings=SETTINGS,
    )
    accuracy = run.records[-1]["server"]["accuracy"]
    names = ("method", "attack", "defence", "seed")
    return {**dict(zip(names, key, strict=True)), "accuracy": round(accuracy, 6)}


def keys(methods: list[str], attacks: list[str], defences: list[str], seeds: int) -> Iterator[Key]:
    """Yield all runs, one seed after the other."""
    for seed in range(seeds):
        for method in methods:
            for attack in attacks:
                for defence in defences:
                    yield method, attack, defence, seed


def key_of(row: dict[str, Any]) -> Key:
    """Return what a row is the result of."""
    return row["method"], row["attack"], row["defence"], row["seed"]


def read() -> dict[str, Any]:
    """Return the results so far."""
    if not RESULT.exists():
        return {"settings": SETTINGS, "runs": []}
    stored: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return stored


def write(result: dict[str, Any]) -> None:
    """Write the results."""
    result["runs"].sort(key=lambda row: [str(part) for part in key_of(row)])
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def table(result: dict[str, Any], method: str) -> str:
    """Return accuracy in % per attack and defence, as mean ± standard error over seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in result["runs"]:
        if row["method"] == method:
            found.setdefault((row["attack"], row["defence"]), []).append(100 * row["accuracy"])
    defences = [name for name in DEFENCES if any(name == defence for _, defence in found)]
    lines = [f"| attack | {' | '.join(defences)} |", "|---" * (len(defences) + 1) + "|"]
    for attack in ATTACKS:
        cells = [cell(found.get((attack, defence), [])) for defence in defences]
        lines.append(f"| `{attack}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float]) -> str:
    """Return a mean with its standard error."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{mean(values):.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES))
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args()
    result = read()
    if not given.read:
        done = {key_of(row) for row in result["runs"]}
        wanted = keys(given.methods, given.attacks, given.defences, given.seeds)
        missing = [key for key in wanted if key not in done]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(given.jobs) as pool:
            for future in as_completed([pool.submit(run_one, key) for key in missing]):
                result["runs"].append(future.result())
                write(result)
    for method in given.methods:
        print(f"\n{method}\n\n{table(result, method)}")


if __name__ == "__main__":
    main()
