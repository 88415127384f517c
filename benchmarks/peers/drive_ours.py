"""cafedcl through its Python API, with the engine's defaults.

python benchmarks/peers/drive_ours.py a --rounds 4 --out ours.json
"""

import time
from typing import Any

import torch
from driver import Outcome, Task, cores, drive
from jobs import Data
from torch_model import evaluate, network, wait

from cafedcl import Federation, resolve
from cafedcl.data import Dataset
from cafedcl.task.build import prepare


def options(task: Task) -> dict[str, Any]:
    """Return the job as a config.

    It has one round more than is run: the last round evaluates, which is not timed. Clients' own
    models are never scored, because the other systems do not score them either.
    """
    job = task.job
    rounds = task.rounds + 1
    small = "cnn8" if job.shape[1] < 16 else "cnn4"
    return {
        "method": {"name": "fedavg"},
        "split": {"kind": "natural", "validation": 0.0},
        "model": {"name": "resnet18" if job.model == "resnet" else small},
        "train": {
            "epochs": job.epochs,
            "batch_size": job.batch,
            "lr": job.lr,
            "lr_decay": 1.0,
            "weight_decay": 0.0,
            "clip": 0.0,
        },
        "federation": {
            "clients": job.clients,
            "rounds": rounds,
            "participation": job.cohort / job.clients,
        },
        "evaluate": {"every": rounds, "own_every": 0},
        "engine": {"device": task.device},
    }


def dataset(data: Data) -> Dataset:
    """Return the job's data with their natural clients."""
    train = (data.train_x, data.train_y)
    test = (data.test_x, data.test_y)
    arrays = [torch.from_numpy(part) for part in (*train, *test)]
    names = tuple(str(label) for label in range(10))
    return Dataset.of(*arrays, names, torch.from_numpy(data.owners))


def plain_name(name: str) -> str:
    """Return a weight's name without the prefixes of the state and the encoder."""
    return name.removeprefix("model/").removeprefix("encoder.")


def train(task: Task) -> Outcome:
    """Run the rounds."""
    data = task.data()
    seconds = []
    steps = []
    with Federation(prepare(resolve(options(task)), dataset(data))) as federation:
        federation.state = {
            name: torch.from_numpy(data.weights[plain_name(name)]).to(value.device)
            for name, value in federation.state.items()
        }
        sizes = [len(shard) for shard in federation.task.clients.shards.train]
        for _ in range(task.rounds):
            began = time.perf_counter()
            record = federation.step()
            wait(task.device)
            seconds.append(time.perf_counter() - began)
            failed = {failure["client"] for failure in record.failed}
            trained = [client for client in record.participants if client not in failed]
            steps.append(sum(task.job.steps(sizes[client]) for client in trained))
        final = {plain_name(name): value for name, value in federation.state.items()}
    model = network(data).to(task.device)
    model.load_state_dict(final)
    used = f"{cores()} cores"
    if task.device == "cuda":
        used = f"cuda: {federation.engine.name}, {getattr(federation.engine, 'precision', 'fp32')}"
    return Outcome(seconds, *evaluate(model, data), steps, f"the engine's defaults on {used}")


if __name__ == "__main__":
    drive("ours", __doc__, ["cafedcl", "torch"], train)
