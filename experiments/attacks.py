"""What lying clients do to the server's model, and what each defence saves.

    python experiments/attacks.py --seeds 10 --jobs 2
    python experiments/attacks.py --data cifar10 --seeds 3 --jobs 4   # where there is a GPU
    python experiments/attacks.py --read                              # only print the tables

20 clients, Dirichlet 0.1, of which 4 lie. On the digits a run has 20 rounds of one local epoch. On
CIFAR-10 it is the `short` scale of `cafedcl reproduce`. The results,
experiments/results/attacks-DATA.json, grow run by run: what the file has is not repeated.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from growing import GrowingResult, cell

RESULTS = Path(__file__).parent / "results"
ATTACKS = (
    "none",
    "label-flip:4",
    "sign-flip:4",
    "sign-flip:4,claim=most",
    "sign-flip:4,claim=most,since=11",
    "scale:4,claim=most",
    "noise:4,claim=most",
    "swap:4,claim=most",
    "sums:4",
    "long:4,claim=most",
    "huge:4",
    "counts:4",
)
DEFENCES = (
    "none",
    "clip",
    "peers",
    "peers:2,cross_check=true",
    "clip:1e6,cross_check=true",
    "trimmed-mean:0.2",
    "median",
    "multi-krum:0.2",
)
REJECTED = ("long:4,claim=most", "huge:4", "counts:4")
"""Attacks whose replies are rejected, so that most defences never see them."""
FITTED = ("cafedcl:best",)
"""Methods whose server fits its classifier to sums over images. Clients weigh the same in them,
whatever confidence they claim.
"""
ON_CIFAR10 = (
    "none",
    "label-flip:4",
    "sign-flip:4,claim=most",
    "scale:4,claim=most",
    "noise:4,claim=most",
    "swap:4,claim=most",
    "sums:4",
)
QUICK: dict[str, Any] = {"evaluate.loop": 0, "engine.workers": 1, "store.notes": False}


class Job(NamedTuple):
    """The setting of one data set."""

    methods: tuple[str, ...]
    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    rounds: int
    settings: dict[str, Any]


JOBS = {
    "digits": Job(
        ("cafedcl", "fedavg", "cafedcl:fixed-anchors", "cafedcl:best"),
        ATTACKS,
        DEFENCES,
        20,
        {**QUICK, "train.epochs": 1, "evaluate.every": 20, "evaluate.own_every": 20},
    ),
    "cifar10": Job(
        ("cafedcl", "fedavg"),
        ON_CIFAR10,
        ("none", "peers"),
        40,
        {
            **QUICK,
            "data.images": 10000,
            "model.name": "cnn4",
            "evaluate.every": 40,
            "evaluate.own_every": 40,
        },
    ),
}


class Key(NamedTuple):
    """One run."""

    method: str
    attack: str
    defence: str
    seed: int


def run_one(data: str, folder: str, key: Key) -> dict[str, Any]:
    """Train once; return the server's accuracy and whom the defence left out."""
    import torch

    import cafedcl
    from cafedcl.task.liars import liars

    torch.set_num_threads(1)
    job = JOBS[data]
    run = cafedcl.run(
        key.method,
        data=data,
        split="dirichlet:0.1",
        clients=20,
        rounds=job.rounds,
        seed=key.seed,
        attack=key.attack,
        defence=key.defence,
        device="cpu" if data == "digits" else "auto",
        settings={**job.settings, **({"data.dir": folder} if folder else {})},
    )
    lying = liars(run.config, len(run.counts))
    left_out = [client for line in run.records for client in line["left_out"]]
    return {
        **key._asdict(),
        "accuracy": round(run.records[-1]["server"]["accuracy"], 6),
        "liars_left_out": sum(client in lying for client in left_out),
        "honest_left_out": sum(client not in lying for client in left_out),
    }


def has_effect(key: Key) -> bool:
    """Return whether a run differs from the others: what a method does not send, nobody changes."""
    if key.attack in REJECTED and key.defence not in ("none", "peers"):
        return False
    if key.method in FITTED:
        return key.attack != "sign-flip:4" and "cross_check" not in key.defence
    return not key.attack.startswith("sums")


def keys(job: Job, methods: list[str], seeds: int) -> Iterator[Key]:
    """Yield all runs, one seed after the other."""
    for seed in range(seeds):
        for attack in job.attacks:
            for defence in job.defences:
                made = (Key(method, attack, defence, seed) for method in methods)
                yield from filter(has_effect, made)


def results(data: str) -> GrowingResult[Key]:
    """Return the results of a data set so far."""
    job = JOBS[data]
    shared = {"data": data, "rounds": job.rounds, "settings": job.settings}
    return GrowingResult(RESULTS / f"attacks-{data}.json", Key, shared)


def accuracies(result: GrowingResult[Key], method: str) -> dict[tuple[str, str], list[float]]:
    """Return the accuracies in % of all seeds, by attack and defence."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in result.rows:
        if row["method"] == method:
            found.setdefault((row["attack"], row["defence"]), []).append(100 * row["accuracy"])
    return found


def table(result: GrowingResult[Key], method: str) -> str:
    """Return accuracy in % per attack and defence, as mean ± standard error over seeds."""
    found = accuracies(result, method)
    defences = [name for name in DEFENCES if any(name == defence for _, defence in found)]
    attacks = [name for name in ATTACKS if any(name == attack for attack, _ in found)]
    names = [f"`{name}`" for name in defences]
    lines = [f"| attack | {' | '.join(names)} |", "|---" * (len(defences) + 1) + "|"]
    for attack in attacks:
        cells = [cell(found.get((attack, defence), [])) for defence in defences]
        lines.append(f"| `{attack}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def losses(result: GrowingResult[Key], method: str, defence: str) -> dict[str, tuple[float, float]]:
    """Return the points lost by each attack under a defence, with their standard errors.

    They are paired by seed with the honest run without any defence, whose clients and images are
    the same. The loss by `none` is what the defence costs where nobody lies.
    """
    runs = {result.key_of(row): 100 * row["accuracy"] for row in result.rows}
    lost: dict[str, tuple[float, float]] = {}
    for attack in ATTACKS:
        points = [
            runs[Key(method, "none", "none", key.seed)] - value
            for key, value in runs.items()
            if (key.method, key.attack, key.defence) == (method, attack, defence)
        ]
        if len(points) > 1:
            lost[attack] = (mean(points), stdev(points) / len(points) ** 0.5)
    return lost


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", choices=list(JOBS), default="digits")
    parser.add_argument("--folder", default="", help="where the data set is, if not in data.dir")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--methods", nargs="+", help="default: all of the study")
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args()
    job = JOBS[given.data]
    methods = given.methods or list(job.methods)
    result = results(given.data)
    if not given.read:
        work = partial(run_one, given.data, given.folder)
        result.run_missing(keys(job, methods, given.seeds), work, given.jobs)
    for method in methods:
        print(f"\n{method}\n\n{table(result, method)}")
        for attack, (points, error) in losses(result, method, "peers").items():
            print(f"lost under peers by {attack}: {points:.1f} ± {error:.1f}")


if __name__ == "__main__":
    main()
