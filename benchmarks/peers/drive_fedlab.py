"""FedLab's FedAvg in several processes: a server, and one process per core that trains clients.

On a GPU, its standalone pipeline trains all clients in one process.

python benchmarks/peers/drive_fedlab.py a --rounds 4 --out fedlab.json
"""

import os
import random
import socket
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from driver import Outcome, Task, compute, cores, drive, quiet
from jobs import Data
from torch import Tensor
from torch_model import (
    Batches,
    configure_torch,
    evaluate,
    import_torchvision,
    network,
    tensors,
    wait,
)

RANK = "FEDLAB_RANK"
PORT = "FEDLAB_PORT"
"""Environment variables of the client processes: their rank, and the server's port."""


def train(task: Task) -> Outcome | None:
    """Start the client processes and run the server; in a client process, train clients."""
    quiet()
    import_torchvision()
    if task.device == "cuda":
        configure_torch(task.threads, task.onednn)
        return run_alone(task)
    configure_torch(1, task.onednn)
    if RANK in os.environ:
        return serve_clients(task, int(os.environ[RANK]), os.environ[PORT])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, __file__, *task.arguments]
    processes = [
        subprocess.Popen(
            command, env=os.environ | {RANK: str(rank + 1), PORT: port, "OMP_NUM_THREADS": "1"}
        )
        for rank in range(cores())
    ]
    try:
        return serve(task, port)
    finally:
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def make_handler(task: Task, data: Data) -> Any:
    """Return the server's side, with the job's network."""
    from fedlab.contrib.algorithm.fedavg import FedAvgServerHandler
    from fedlab.utils import Aggregators, SerializationTool

    class Handler(FedAvgServerHandler):
        """FedAvg weighted by the numbers of images; records when a round ends."""

        times: list[float]
        steps: list[int]

        def start_clock(self) -> None:
            self.times = [time.perf_counter()]
            self.steps = []

        def global_update(self, buffer: list[list[Tensor]]) -> None:
            models, sizes, steps = zip(*buffer, strict=True)
            weights = torch.cat(sizes)
            SerializationTool.deserialize_model(
                self._model, Aggregators.fedavg_aggregate(list(models), weights)
            )
            wait(task.device)
            self.times.append(time.perf_counter())
            self.steps.append(int(torch.cat(steps).sum()))

    random.seed(0)
    job = task.job
    share = job.cohort / job.clients
    return Handler(
        network(data), task.rounds, share, cuda=task.device == "cuda", device=task.device
    )


def make_trainer(task: Task, data: Data, clients: int) -> Any:
    """Return the clients' side, which trains one client after another."""
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer
    from fedlab.contrib.dataset.basic_dataset import FedDataset

    job = task.job

    class Shards(FedDataset):
        """The clients' data."""

        def get_dataloader(self, id: int, batch_size: int, *_: str) -> Batches:
            return Batches(*tensors(data, id, task.device), batch_size)

    class Trainer(FedAvgSerialClientTrainer):
        """A trainer that sends the number of images and of steps along with every model."""

        def train(self, model_parameters: Tensor, train_loader: Any) -> list[Tensor]:
            size = len(train_loader.y)
            pack = super().train(model_parameters, train_loader)
            return [*pack, torch.tensor([float(size)]), torch.tensor([float(job.steps(size))])]

    trainer = Trainer(network(data), clients, cuda=task.device == "cuda", device=task.device)
    trainer.setup_dataset(Shards())
    trainer.setup_optim(job.epochs, job.batch, job.lr)
    return trainer


def outcome(handler: Any, data: Data, how: str) -> Outcome:
    """Return the outcome of all rounds."""
    seconds = [after - before for before, after in pairwise(handler.times)]
    return Outcome(seconds, *evaluate(handler.model, data), handler.steps, how)


def run_alone(task: Task) -> Outcome:
    """Run the rounds in this process."""
    from fedlab.core.standalone import StandalonePipeline

    class Pipeline(StandalonePipeline):
        """A pipeline that evaluates nothing between rounds."""

        def evaluate(self) -> None:
            pass

    data = task.data()
    handler = make_handler(task, data)
    pipeline = Pipeline(handler, make_trainer(task, data, task.job.clients))
    handler.start_clock()
    pipeline.main()
    return outcome(handler, data, f"1 process, {compute(task.device, task.threads)}")


def serve(task: Task, port: str) -> Outcome:
    """Run the rounds with the client processes."""
    from fedlab.core.network import DistNetwork
    from fedlab.core.server.manager import SynchronousServerManager

    class Manager(SynchronousServerManager):
        """A manager that records when the first round starts."""

        def main_loop(self) -> None:
            self._handler.start_clock()
            super().main_loop()

    data = task.data()
    handler = make_handler(task, data)
    Manager(DistNetwork(("127.0.0.1", port), cores() + 1, 0), handler, mode="GLOBAL").run()
    return outcome(handler, data, f"a server and {cores()} client processes, 1 PyTorch thread each")


def serve_clients(task: Task, rank: int, port: str) -> None:
    """Train this process's clients whenever the server requests it."""
    from fedlab.core.client.manager import PassiveClientManager
    from fedlab.core.network import DistNetwork

    clients = task.job.clients
    share = clients // cores() + (rank <= clients % cores())
    trainer = make_trainer(task, task.data(), share)
    PassiveClientManager(DistNetwork(("127.0.0.1", port), cores() + 1, rank), trainer).run()


if __name__ == "__main__":
    drive("fedlab", __doc__, ["fedlab", "torch"], train)
