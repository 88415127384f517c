"""The prototype bias loop: some clients are corrupted in one round, and the drift is measured.

    python experiments/bias_loop.py --seeds 3 --jobs 2

trains CAFedCL on the embedded digits (20 clients, Dirichlet 0.3, one local epoch). Only in round 6,
six clients are corrupted: they have one image per class left (`few`), wrong labels, each class
shifted to the next (`labels`), or inverted images (`biased`). Each run is compared with the run
without corruption: how much further are global prototypes from their classes' centres, in every
round? This is repeated with four weightings of clients, and with feedback (clients train with the
averaged prototypes as anchors) and without (with the anchors of round 0). Writes
experiments/results/bias_loop.json and docs/images/bias-loop.svg; `--figure` only draws the figure
from the file.
"""

import argparse
import copy
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cafedcl.core.contract import Job, Reply
from cafedcl.core.environment import environment
from cafedcl.core.tensors import Tensors
from cafedcl.data.shards import ClientRows
from cafedcl.engine.base import Results
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation
from cafedcl.methods.cafedcl import CAFedCL
from cafedcl.models.base import Network
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve
from cafedcl.task.task import Task

HOME = Path(__file__).parent
RESULT = HOME / "results" / "bias_loop.json"
FIGURE = HOME.parent / "docs" / "images" / "bias-loop.svg"
WEIGHTS = ("uniform", "counts", "confidence", "inverse-variance")
KINDS = ("few", "labels", "biased")
ROUNDS = 16
CORRUPTED_ROUND = 6
CORRUPTED = 6
FOLLOWED = ("drift", "feedback", "heterogeneity", "variance")


class WithoutFeedback(CAFedCL):
    """CAFedCL whose clients always get the anchors of round 0.

    The server still averages prototypes, but clients never see them.
    """

    def start(self, model: Network) -> Tensors:
        """Return the state with a copy of the first anchors."""
        state = super().start(model)
        return {**state, "server/first": state["anchors/prototypes"].clone()}

    def broadcast(self, state: Tensors) -> Tensors:
        """Send the first anchors."""
        return {**super().broadcast(state), "anchors/prototypes": state["server/first"]}


def corrupt(task: Task, kind: str, clients: list[int]) -> Task:
    """Return the task with corrupted data of the given clients."""
    data = task.clients.data
    shards = task.clients.shards
    classes = task.clients.data.classes
    network = copy.deepcopy(task.network)
    rows = torch.cat([torch.cat([shards.train[k], shards.validation[k]]) for k in clients])
    if kind == "biased":
        x = data.train_x.clone()
        x[rows] = 255 - x[rows]
        return replace(task.with_clients(data=replace(data, train_x=x)), network=network)
    y = data.train_y.clone()
    train = list(shards.train)
    if kind == "labels":
        y[rows] = (y[rows] + 1) % classes
    else:
        for k in clients:
            train[k] = torch.stack([train[k][y[train[k]] == c][0] for c in y[train[k]].unique()])
    counts = torch.stack([torch.bincount(y[part], minlength=classes) for part in train])
    dirty = replace(shards, train=ClientRows.of(train), counts=counts)
    return replace(task.with_clients(data=replace(data, train_y=y), shards=dirty), network=network)


class SometimesCorrupted(ReferenceEngine):
    """The reference engine, but in one round some clients have corrupted data."""

    def __init__(self, task: Task, kind: str, clients: list[int]) -> None:
        super().__init__(task)
        self.clients = clients
        self.dirty = ReferenceEngine(corrupt(task, kind, clients)) if clients else None

    def train(self, jobs: Iterable[Job]) -> Results:
        """Run the jobs one after another."""
        for job in jobs:
            if self.dirty and job.client in self.clients and job.down.round == CORRUPTED_ROUND:
                result = self.dirty.attempt(job)
                if isinstance(result, Reply):
                    # The server weights a client by its true number of images.
                    enrolled = self.task.clients.client(job.client).samples
                    result = replace(result, up=replace(result.up, samples=enrolled))
                yield result
            else:
                yield self.attempt(job)


class LoopRecorder(Callback):
    """Records the bias loop and the accuracy of every round."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def round_done(self, _federation: Federation, record: Record) -> None:
        """Record a round."""
        row = {
            name: [round(v, 6) for v in record.tables[f"loop/{name}"].tolist()] for name in FOLLOWED
        }
        assert record.server is not None
        assert not record.failed
        self.rows.append({**row, "accuracy": record.server["accuracy"]})


def run(case: tuple[str, bool, str, int]) -> dict[str, Any]:
    """Train one run."""
    weights, feedback, kind, seed = case
    torch.set_num_threads(1)
    tables = {
        "method": {"name": "cafedcl", "weights": weights},
        "run": {"seed": seed},
        "split": {"kind": "dirichlet", "alpha": 0.3},
        "train": {"epochs": 1},
        "federation": {"rounds": ROUNDS},
        "evaluate": {"own_every": ROUNDS, "loop": 10_000},
        "engine": {"device": "cpu"},
    }
    setup = prepare(resolve(tables))
    if not feedback:
        old = setup.task.method
        method = WithoutFeedback(old.options, old.classes, old.dim, old.clients)
        state = {**setup.state, "server/first": setup.state["anchors/prototypes"].clone()}
        setup = replace(setup, task=replace(setup.task, method=method), state=state)
    clients: list[int] = []
    if kind != "none":
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(setup.task.clients.shards), CORRUPTED, replace=False)
        clients = sorted(int(client) for client in chosen)
    recorder = LoopRecorder()
    with Federation(setup, [recorder], SometimesCorrupted(setup.task, kind, clients)) as federation:
        federation.run()
    return {
        "weights": weights,
        "feedback": feedback,
        "kind": kind,
        "seed": seed,
        "rounds": recorder.rows,
    }


def excess(runs: list[dict[str, Any]], weights: str, feedback: bool, kind: str) -> np.ndarray:
    """Return squared drift minus that without corruption, mean over classes, (seeds, rounds)."""
    chosen = [r for r in runs if r["weights"] == weights and r["feedback"] == feedback]
    seeds = sorted({r["seed"] for r in chosen})
    drift = {
        (r["kind"], r["seed"]): np.nanmean([row["drift"] for row in r["rounds"]], axis=1)
        for r in chosen
    }
    return np.stack([drift[kind, seed] - drift["none", seed] for seed in seeds])


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the excess drift in the corrupted round and later, per weighting and corruption."""
    rows = []
    for kind, feedback, weights in product(KINDS, (True, False), WEIGHTS):
        values = excess(runs, weights, feedback, kind)
        later = values[:, CORRUPTED_ROUND + 1 :]
        rows.append(
            {
                "kind": kind,
                "feedback": feedback,
                "weights": weights,
                "at_once": float(values[:, CORRUPTED_ROUND].mean()),
                "next_round": float(later[:, 0].mean()),
                "five_rounds_later": float(later[:, 4].mean()),
                "largest_before": float(np.abs(values[:, :CORRUPTED_ROUND]).max()),
            }
        )
    return rows


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the excess drift over rounds: columns by corruption, rows with and without feedback."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "svg.hashsalt": "cafedcl",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    colours = dict(zip(WEIGHTS, ("#999999", "#0072B2", "#D55E00", "#009E73"), strict=True))
    titles = {
        "few": "one image per class left",
        "labels": "labels shifted",
        "biased": "images inverted",
    }
    figure, axes = plt.subplots(
        2, 3, figsize=(9, 4.8), sharex=True, sharey="col", constrained_layout=True
    )
    for (row, feedback), (column, kind) in product(enumerate((True, False)), enumerate(KINDS)):
        ax = axes[row][column]
        ax.axvline(CORRUPTED_ROUND, color="#dddddd", linewidth=6, zorder=0)
        ax.axhline(0, color="#bbbbbb", linewidth=0.8)
        for weights in WEIGHTS:
            values = excess(runs, weights, feedback, kind)
            mean = values.mean(0)
            error = values.std(0, ddof=1) / np.sqrt(len(values))
            ax.plot(mean, color=colours[weights], label=weights, linewidth=1.6)
            ax.fill_between(
                range(len(mean)),
                mean - error,
                mean + error,
                color=colours[weights],
                alpha=0.15,
                linewidth=0,
            )
        ax.set_xlim(CORRUPTED_ROUND - 3, ROUNDS - 1)
        ax.set_xticks(range(CORRUPTED_ROUND - 2, ROUNDS, 2))
        if row == 0:
            ax.set_title(titles[kind], fontsize=10)
        if column == 0:
            title = "with feedback" if feedback else "without feedback"
            ax.set_ylabel(f"{title}\nexcess squared drift")
        if row == 1:
            ax.set_xlabel("round")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run everything, write the result and draw the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--figure", action="store_true", help="only draw the figure from the result"
    )
    arguments = parser.parse_args()
    if not arguments.figure:
        cases = list(product(WEIGHTS, (True, False), ("none", *KINDS), range(arguments.seeds)))
        with ProcessPoolExecutor(arguments.jobs) as pool:
            runs = list(pool.map(run, cases))
        command = ["python", "experiments/bias_loop.py", "--seeds", str(arguments.seeds)]
        result = {
            "summary": summary(runs),
            "environment": environment(command, "cpu"),
            "runs": runs,
        }
        RESULT.write_text(json.dumps(result) + "\n", encoding="utf-8")
    draw(json.loads(RESULT.read_text(encoding="utf-8"))["runs"], FIGURE)


if __name__ == "__main__":
    main()
