"""What privacy costs: accuracy of common and rare classes against ε, and what clients do not tell.

    python experiments/privacy.py --seeds 3 --jobs 2
    python experiments/privacy.py --read              # only print the tables

The digits with a long tail (ir = 5) at 200 clients, Dirichlet 0.5, 20 rounds, everyone in every
round. `noise` adds client-level noise to FedAvg and to CAFedCL with different weights of clients.
`release` limits what 20 clients tell, one limit after the other. The results,
experiments/results/privacy.json, grow run by run: what the file has is not repeated.
"""

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from attacks import cell

FILE = Path(__file__).parent / "results" / "privacy.json"
ROUNDS = 20
SPLIT = "dirichlet:0.5,ir=5"
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "cafedcl, confidence": {"method.data_scale": "saturating"},
    "cafedcl, confidence of present classes": {
        "method.data_scale": "saturating",
        "method.half": 1.0,
        "method.conf_over": "present",
    },
    "cafedcl, counts": {"method.weights": "counts"},
    "cafedcl, uniform": {"method.weights": "uniform"},
    "cafedcl, fixed anchors": {"method.data_scale": "saturating", "method.anchors": "fixed"},
}
"""The methods of both studies, with their options."""
NOISES = (0.0, 0.5, 1.0, 2.0)
"""Noise multipliers; 0 is a run without privacy."""
LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "fewest = 5": {"release.fewest": 5},
    "counts rounded": {"release.counts": "rounded"},
    "counts withheld": {"release.counts": "withheld"},
    "unit prototypes": {"release.prototypes": "unit"},
    "all defaults of a deployment": {
        "release.fewest": 5,
        "release.counts": "rounded",
        "release.prototypes": "unit",
        "release.notes": "off",
    },
}
LIMITED = ("fedavg", "cafedcl, confidence")
"""The methods whose clients tell less."""
SETTINGS: dict[str, Any] = {
    "model.name": "mlp",
    "model.width": 0.25,
    "train.epochs": 3,
    "train.iterations": 2,
    "evaluate.every": ROUNDS,
    "evaluate.own_every": 1000,
    "evaluate.loop": 0,
    "evaluate.full": False,
    "engine.workers": 1,
}
PRIVATE = {"privacy.kind": "clients", "privacy.samples": 3, "privacy.quantile": 0.5}
SCORES = ("accuracy", "balanced", "worst_class", "client_std")


class Key(NamedTuple):
    """One run: noise and no limit, or a limit and no noise."""

    study: str
    method: str
    noise: float
    limit: str
    seed: int


def run_one(key: Key) -> dict[str, Any]:
    """Train once; return the scores of the server's model, and ε."""
    import torch

    import cafedcl

    torch.set_num_threads(1)
    settings = {**SETTINGS, **METHODS[key.method], **LIMITS[key.limit]}
    if key.noise:
        settings |= {**PRIVATE, "privacy.noise": key.noise}
    run = cafedcl.run(
        key.method.partition(",")[0],
        data="digits",
        split=SPLIT,
        clients=200 if key.study == "noise" else 20,
        rounds=ROUNDS,
        seed=key.seed,
        device="cpu",
        settings=settings,
    )
    line = run.records[-1]
    confusion = run.tables["server/confusion"].double()
    recall = confusion.diag() / confusion.sum(1)
    row = {**key._asdict(), **{name: round(line["server"][name], 5) for name in SCORES}}
    row["recall"] = [round(float(value), 4) for value in recall]
    if "epsilon" in line["privacy"]:
        row["epsilon"] = round(line["privacy"]["epsilon"], 4)
    return row


def mean_weight(method: str) -> float:
    """Return the mean weight of clients in the first round of seed 0, in units of its bound."""
    from cafedcl.federation.rounds import Federation
    from cafedcl.task.resolve import gather

    chosen = {**SETTINGS, **METHODS[method], **PRIVATE, "federation.rounds": ROUNDS}
    federation = Federation(
        gather(
            method=method.partition(",")[0],
            data="digits",
            split=SPLIT,
            clients=200,
            device="cpu",
            settings=[f"{name}={json.dumps(value)}" for name, value in chosen.items()],
        )
    )
    aggregator = federation.aggregator()
    ups = [reply.up for reply in federation.train(federation.down(), list(range(200)))]
    vectors = [aggregator.contributor.contribution(up) for up in ups]
    return round(mean(float(aggregator.layout.sums(one)["weight"]) for one in vectors), 3)


def keys(seeds: int) -> Iterator[Key]:
    """Yield all runs, one seed after the other."""
    for seed in range(seeds):
        for noise in NOISES:
            for method in METHODS:
                yield Key("noise", method, noise, "none", seed)
        for limit in LIMITS:
            for method in LIMITED:
                yield Key("release", method, 0.0, limit, seed)


def key_of(row: dict[str, Any]) -> Key:
    """Return which run a row is the result of."""
    return Key(*(row[name] for name in Key._fields))


def read() -> dict[str, Any]:
    """Return the results so far."""
    if not FILE.exists():
        return {
            "data": "digits",
            "split": SPLIT,
            "rounds": ROUNDS,
            "settings": SETTINGS,
            "runs": [],
        }
    stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


def write(result: dict[str, Any]) -> None:
    """Write the results."""
    result["runs"].sort(key=lambda row: [str(part) for part in key_of(row)])
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["runs"])
    head = json.dumps({name: value for name, value in result.items() if name != "runs"}, indent=1)
    FILE.write_text(f'{head[:-2]},\n "runs": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def values(result: dict[str, Any], score: str, **wanted: Any) -> list[float]:
    """Return a score of all seeds in %; ``wanted`` chooses the runs."""
    return [
        100 * row[score]
        for row in result["runs"]
        if all(row[name] == value for name, value in wanted.items())
    ]


def epsilon(result: dict[str, Any], noise: float) -> str:
    """Return the ε that a noise multiplier has after all rounds."""
    found = {row["epsilon"] for row in result["runs"] if row["noise"] == noise and "epsilon" in row}
    return f"{max(found):.1f}" if found else "∞"


def noise_table(result: dict[str, Any], score: str) -> str:
    """Return a score per method and noise, as mean ± standard error over seeds."""
    heads = [f"ε = {epsilon(result, noise)}" for noise in NOISES]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in METHODS:
        chosen = {"study": "noise", "method": method}
        cells = [cell(values(result, score, noise=noise, **chosen)) for noise in NOISES]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def release_table(result: dict[str, Any]) -> str:
    """Return the balanced accuracy per limit and method, as mean ± standard error over seeds."""
    lines = [f"| limit | {' | '.join(LIMITED)} |", "|---" * (len(LIMITED) + 1) + "|"]
    for limit in LIMITS:
        chosen = {"study": "release", "limit": limit}
        cells = [cell(values(result, "balanced", method=method, **chosen)) for method in LIMITED]
        lines.append(f"| {limit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rare_recall(result: dict[str, Any], method: str, noise: float) -> list[float]:
    """Return the mean recall of the two rarest classes in %, of all seeds."""
    rows = [row for row in result["runs"] if row["study"] == "noise" and row["method"] == method]
    return [50 * sum(row["recall"][-2:]) for row in rows if row["noise"] == noise]


def rare_table(result: dict[str, Any]) -> str:
    """Return the recall of the two rarest classes per method and noise."""
    heads = [f"ε = {epsilon(result, noise)}" for noise in NOISES]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in METHODS:
        cells = [cell(rare_recall(result, method, noise)) for noise in NOISES]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args()
    result = read()
    if not given.read:
        done = {key_of(row) for row in result["runs"]}
        missing = [key for key in keys(given.seeds) if key not in done]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(given.jobs) as pool:
            waiting = [pool.submit(run_one, key) for key in missing]
            for future in as_completed(waiting):
                result["runs"].append(future.result())
                write(result)
        if "weights" not in result:
            result["weights"] = {method: mean_weight(method) for method in METHODS}
            write(result)
    for title, score in (("balanced accuracy", "balanced"), ("client std", "client_std")):
        print(f"{title}, %\n\n{noise_table(result, score)}\n")
    print(f"recall of the two rarest classes, %\n\n{rare_table(result)}\n")
    print(f"balanced accuracy with limits, %\n\n{release_table(result)}")


if __name__ == "__main__":
    main()
