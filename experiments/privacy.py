"""What privacy costs: accuracy of common and rare classes against ε, and what clients withhold.

    python experiments/privacy.py --seeds 3 --jobs 2
    python experiments/privacy.py --data fashion-mnist --data-dir FOLDER   # or ham10000
    python experiments/privacy.py --read              # only print the tables

200 clients, Dirichlet 0.5, 20 rounds, everyone in every round. The digits and Fashion-MNIST have a
long tail (ir = 5), HAM10000 has its own. `noise` adds client-level noise to FedAvg and to CAFedCL
with different weights of clients. `release` limits what 20 clients tell, one limit after the
other; only the digits have this study. The results, experiments/results/privacy-DATA.json, grow run
by run: what the file has is not repeated.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from growing import GrowingResult, cell

RESULTS = Path(__file__).parent / "results"
ROUNDS = 20
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
    "train.epochs": 3,
    "train.iterations": 2,
    "evaluate.every": ROUNDS,
    "evaluate.own_every": 1000,
    "evaluate.loop": 0,
    "evaluate.full": False,
    "engine.workers": 1,
}
"""The options of all runs."""


FEW_OWN = {**SETTINGS, "evaluate.own_images": 10}
"""The same without scoring 200 own models on thousands of images, which nobody looks at here."""
SMALL = {"model.name": "mlp", "model.width": 0.25}
"""A small network: the norm of the noise grows with the number of weights."""


class Job(NamedTuple):
    """A data set: how it is split, and with which options clients train."""

    split: str
    settings: dict[str, Any]
    studies: tuple[str, ...] = ("noise",)


JOBS = {
    "digits": Job("dirichlet:0.5,ir=5", {**SETTINGS, **SMALL}, ("noise", "release")),
    "fashion-mnist": Job("dirichlet:0.5,ir=5", {**FEW_OWN, **SMALL, "data.images": 10_000}),
    # The small network needs more local steps to tell skin lesions apart, and fewer pixels.
    "ham10000": Job(
        "dirichlet:0.5",
        {**FEW_OWN, **SMALL, "data.size": 16, "train.epochs": 5, "train.iterations": 4},
    ),
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


def shared(data: str, folder: str) -> dict[str, Any]:
    """Return the options of all runs on a data set; without a folder, it is looked for as ever."""
    return {**JOBS[data].settings, "data.dir": folder}


def run_one(data: str, folder: str, key: Key) -> dict[str, Any]:
    """Train once; return the scores of the server's model, and ε."""
    import torch

    import cafedcl

    torch.set_num_threads(1)
    job = JOBS[data]
    settings = {**shared(data, folder), **METHODS[key.method], **LIMITS[key.limit]}
    if key.noise:
        settings |= {**PRIVATE, "privacy.noise": key.noise}
    run = cafedcl.run(
        key.method.partition(",")[0],
        data=data,
        split=job.split,
        clients=200 if key.study == "noise" else 20,
        rounds=ROUNDS,
        seed=key.seed,
        device="cpu" if data == "digits" else "auto",
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


def mean_weight(data: str, folder: str, method: str) -> float:
    """Return the mean weight of clients in the first round of seed 0, in units of its bound."""
    from cafedcl.api import as_words
    from cafedcl.federation.rounds import Federation
    from cafedcl.task.resolve import gather

    federation = Federation(
        gather(
            method=method.partition(",")[0],
            data=data,
            split=JOBS[data].split,
            clients=200,
            rounds=ROUNDS,
            device="cpu",
            settings=as_words({**shared(data, folder), **METHODS[method], **PRIVATE}),
        )
    )
    aggregator = federation.aggregator()
    ups = [reply.up for reply in federation.train(federation.down(), list(range(200)))]
    vectors = [aggregator.contributor.contribution(up) for up in ups]
    return round(mean(float(aggregator.layout.sums(one)["weight"]) for one in vectors), 3)


def rarest(data: str, folder: str) -> list[int]:
    """Return the two classes with the fewest training images."""
    import cafedcl

    split = JOBS[data].split
    counts = cafedcl.split(split, data, clients=200, settings=shared(data, folder))
    ordered = counts.sum().to_numpy().argsort(kind="stable")
    return sorted(int(c) for c in ordered[:2])


def keys(data: str, seeds: int) -> Iterator[Key]:
    """Yield all runs, one seed after the other."""
    studies = JOBS[data].studies
    for seed in range(seeds):
        for noise in NOISES:
            for method in METHODS:
                yield Key("noise", method, noise, "none", seed)
        for limit in LIMITS if "release" in studies else ():
            for method in LIMITED:
                yield Key("release", method, 0.0, limit, seed)


def results(data: str) -> GrowingResult[Key]:
    """Return the results of a data set so far."""
    job = JOBS[data]
    about = {"data": data, "split": job.split, "rounds": ROUNDS, "settings": job.settings}
    return GrowingResult(RESULTS / f"privacy-{data}.json", Key, about)


def values(result: GrowingResult[Key], score: str, **wanted: Any) -> list[float]:
    """Return a score of all seeds in %; ``wanted`` chooses the runs."""
    return [
        100 * row[score]
        for row in result.rows
        if all(row[name] == value for name, value in wanted.items())
    ]


def epsilon(result: GrowingResult[Key], noise: float) -> str:
    """Return the ε that a noise multiplier has after all rounds."""
    found = {row["epsilon"] for row in result.rows if row["noise"] == noise and "epsilon" in row}
    return f"{max(found):.1f}" if found else "∞"


def noise_table(result: GrowingResult[Key], score: str) -> str:
    """Return a score per method and noise, as mean ± standard error over seeds."""
    heads = [f"ε = {epsilon(result, noise)}" for noise in NOISES]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in METHODS:
        chosen = {"study": "noise", "method": method}
        cells = [cell(values(result, score, noise=noise, **chosen)) for noise in NOISES]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def release_table(result: GrowingResult[Key]) -> str:
    """Return the balanced accuracy per limit and method, as mean ± standard error over seeds."""
    lines = [f"| limit | {' | '.join(LIMITED)} |", "|---" * (len(LIMITED) + 1) + "|"]
    for limit in LIMITS:
        chosen = {"study": "release", "limit": limit}
        cells = [cell(values(result, "balanced", method=method, **chosen)) for method in LIMITED]
        lines.append(f"| {limit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rare_recall(result: GrowingResult[Key], method: str, noise: float) -> list[float]:
    """Return the mean recall of the two rarest classes in %, of all seeds."""
    rows = [row for row in result.rows if row["study"] == "noise" and row["method"] == method]
    rare = result.content["rarest"]
    return [50 * sum(row["recall"][c] for c in rare) for row in rows if row["noise"] == noise]


def rare_table(result: GrowingResult[Key]) -> str:
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
    parser.add_argument("--data", choices=list(JOBS), default="digits")
    parser.add_argument("--data-dir", default="", help="folder with data files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args()
    result = results(given.data)
    if not given.read:
        where = (given.data, given.data_dir)
        if "rarest" not in result.content:
            result.content["rarest"] = rarest(*where)
        result.run_missing(keys(given.data, given.seeds), partial(run_one, *where), given.jobs)
        if "weights" not in result.content:
            result.content["weights"] = {method: mean_weight(*where, method) for method in METHODS}
            result.write()
    for title, score in (("balanced accuracy", "balanced"), ("client std", "client_std")):
        print(f"{title}, %\n\n{noise_table(result, score)}\n")
    print(f"recall of the two rarest classes, %\n\n{rare_table(result)}\n")
    if "release" in JOBS[given.data].studies:
        print(f"balanced accuracy with limits, %\n\n{release_table(result)}")


if __name__ == "__main__":
    main()
