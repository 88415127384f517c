"""Flower's simulation: its FedAvg strategy, and virtual clients in Ray processes, one per core.

python benchmarks/peers/drive_flower.py a --rounds 4 --out flower.json
"""

import os
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from driver import Outcome, Task, cores, drive, quiet


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
                train_config=ConfigRecord({**config, "onednn": task.onednn}),
            )
            began.append(time.perf_counter())
            model.load_state_dict(result.arrays.to_torch_state_dict())

        resources = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": cores()},
        }
        run_simulation(server_app, client_app, job.clients, backend_config=resources)
    seconds = [after - before for before, after in pairwise(began)]
    how = f"{cores()} Ray processes, 1 PyTorch thread each"
    return Outcome(seconds, *evaluate(model, data), steps, how)


if __name__ == "__main__":
    drive("flower", __doc__, ["flwr", "ray", "torch"], train)
