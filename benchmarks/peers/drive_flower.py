"""Flower's simulation: its FedAvg strategy, and virtual clients in Ray processes, one per core.

On a GPU, as many processes share it as the share of a client allows.

python benchmarks/peers/drive_flower.py a --rounds 4 --out flower.json
"""

import os
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from driver import Outcome, Task, cores, drive, quiet


def resources(task: Task) -> dict[str, dict[str, float]]:
    """Return what Ray may use, and what a client occupies of that."""
    gpus = int(task.device == "cuda")
    return {
        "client_resources": {"num_cpus": 1, "num_gpus": gpus * task.gpu_share},
        "init_args": {"num_cpus": cores(), "num_gpus": gpus},
    }


def processes(task: Task) -> int:
    """Return how many processes Flower starts with these resources."""
    return min(cores(), int(1 / task.gpu_share)) if task.device == "cuda" else cores()


def train(task: Task) -> Outcome:
    """Run the rounds."""
    quiet()
    data = task.data()
    with tempfile.TemporaryDirectory(prefix="flower-") as home:
        os.environ |= {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        from flower_client import app as client_app
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
        from flwr.serverapp import Grid, ServerApp
        from flwr.serverapp.strategy import FedAvg
        from flwr.simulation import run_simulation
        from torch_model import evaluate, network

        model = network(data)
        job = task.job
        began: list[float] = []
        steps: list[int] = []

        class Timed(FedAvg):
            """FedAvg that records when a round starts."""

            def configure_train(self, *details: Any) -> Iterable[Message]:
                began.append(time.perf_counter())
                return super().configure_train(*details)

        def add_up(replies: list[RecordDict], _: str) -> MetricRecord:
            steps.append(sum(int(reply["metrics"]["steps"]) for reply in replies))
            return MetricRecord({"steps": steps[-1]})

        server_app = ServerApp()

        @server_app.main()
        def serve(grid: Grid, _: Context) -> None:
            strategy = Timed(
                fraction_train=job.cohort / job.clients,
                fraction_evaluate=0.0,
                min_train_nodes=job.cohort,
                min_available_nodes=job.clients,
                train_metrics_aggr_fn=add_up,
            )
            config = {
                "path": str(task.path),
                "lr": job.lr,
                "epochs": job.epochs,
                "batch": job.batch,
            }
            result = strategy.start(
                grid,
                ArrayRecord(model.state_dict()),
                num_rounds=task.rounds,
                train_config=ConfigRecord({**config, "onednn": task.onednn, "device": task.device}),
            )
            began.append(time.perf_counter())
            model.load_state_dict(result.arrays.to_torch_state_dict())

        run_simulation(server_app, client_app, job.clients, backend_config=resources(task))
    seconds = [after - before for before, after in pairwise(began)]
    how = f"{processes(task)} Ray processes, 1 PyTorch thread each"
    if task.device == "cuda":
        how += ", sharing one GPU with PyTorch's defaults"
    return Outcome(seconds, *evaluate(model.to(task.device), data), steps, how)


if __name__ == "__main__":
    drive("flower", __doc__, ["flwr", "ray", "torch"], train)
