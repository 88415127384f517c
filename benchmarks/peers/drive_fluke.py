"""fluke's FedAVG: clients one after another in one process.

python benchmarks/peers/drive_fluke.py a --rounds 4 --out fluke.json
"""

import time
from typing import Any

import torch
from driver import Outcome, Task, compute, drive, quiet
from torch import nn
from torch_model import configure_torch, evaluate, import_torchvision, network, tensors, wait


def train(task: Task) -> Outcome:
    """Run the rounds."""
    quiet()
    import_torchvision()
    from fluke import FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader
    from fluke.server import Server
    from fluke.utils import ClientObserver, FederationObserver

    configure_torch(task.threads, task.onednn)
    environment = FlukeENV()
    environment.set_seed(0)
    # On a GPU, fluke's seed also asks for deterministic kernels, which no other system uses.
    torch.backends.cudnn.deterministic = False
    environment.set_device(task.device)
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    job = task.job
    data = task.data()

    class Timer(FederationObserver, ClientObserver):
        """Records the time and the steps of every round."""

        def __init__(self) -> None:
            self.began = 0.0
            self.seconds = []
            self.steps = []

        def start_round(self, **_: Any) -> None:
            self.began = time.perf_counter()
            self.steps.append(0)

        def end_fit(self, client_id: int, **_: Any) -> None:
            self.steps[-1] += job.epochs * len(clients[client_id].train_set)

        def end_round(self, **_: Any) -> None:
            wait(task.device)
            self.seconds.append(time.perf_counter() - self.began)

    settings = {"loss_fn": nn.CrossEntropyLoss(), "local_epochs": job.epochs, "persistency": False}
    optimizer = OptimizerConfigurator({"name": "SGD", "lr": job.lr})
    clients = [
        Client(
            index=k,
            train_set=FastDataLoader(
                *tensors(data, k, task.device), num_labels=10, batch_size=job.batch, shuffle=True
            ),
            test_set=None,
            optimizer_cfg=optimizer,
            **settings,
        )
        for k in range(job.clients)
    ]
    server = Server(model=network(data), test_set=None, clients=clients, weighted=True)
    algorithm = FedAVG(job.clients, None, {}, clients=clients, server=server)
    timer = Timer()
    algorithm.set_callbacks([timer])
    algorithm.run(n_rounds=task.rounds, eligible_perc=job.cohort / job.clients, finalize=False)
    how = f"1 process, {compute(task.device, task.threads)}"
    # fluke keeps the global model in main memory and moves it to the GPU for every client.
    final = server.model.to(task.device)
    return Outcome(timer.seconds, *evaluate(final, data), timer.steps, how)


if __name__ == "__main__":
    drive("fluke", __doc__, ["fluke-fl", "torch"], train)
