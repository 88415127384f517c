"""A plain PyTorch loop as in PFLlib: one client after another, each with its own model.

python benchmarks/peers/drive_plain.py a --rounds 4 --out plain.json
"""

import random
import time
from copy import deepcopy

import torch
from driver import Outcome, Task, compute, drive
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_model import configure_torch, evaluate, network, tensors, wait


class Client:
    """A client with its own data, model and optimizer."""

    def __init__(self, index: int, model: nn.Module, task: Task, dataset: TensorDataset) -> None:
        self.index = index
        self.job = task.job
        self.device = task.device
        self.dataset = dataset
        self.model = deepcopy(model)
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=task.job.lr)

    def set_parameters(self, model: nn.Module) -> None:
        """Copy the server's weights."""
        for new, old in zip(model.parameters(), self.model.parameters(), strict=True):
            old.data = new.data.clone()

    def train(self) -> int:
        """Train for the local epochs and return the number of steps."""
        self.model.train()
        loader = DataLoader(self.dataset, batch_size=self.job.batch, shuffle=True)
        steps = 0
        for _ in range(self.job.epochs):
            for batch in loader:
                x, y = (part.to(self.device) for part in batch)
                self.optimizer.zero_grad()
                loss = self.loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                steps += 1
        return steps


class Server:
    """A server that sends its model to a random cohort and averages the trained models."""

    def __init__(self, task: Task) -> None:
        data = task.data()
        self.job = task.job
        self.data = data
        self.model = network(data).to(task.device)
        self.clients = [
            Client(k, self.model, task, TensorDataset(*tensors(data, k)))
            for k in range(task.job.clients)
        ]

    def round(self) -> int:
        """Run one round and return its optimizer steps."""
        cohort = random.sample(self.clients, self.job.cohort)
        for client in cohort:
            client.set_parameters(self.model)
        steps = sum(client.train() for client in cohort)
        total = sum(len(client.dataset) for client in cohort)
        for weight in self.model.parameters():
            weight.data.zero_()
        for client in cohort:
            share = len(client.dataset) / total
            for weight, trained in zip(
                self.model.parameters(), client.model.parameters(), strict=True
            ):
                weight.data += trained.data * share
        return steps


def train(task: Task) -> Outcome:
    """Run the rounds."""
    configure_torch(task.threads, task.onednn)
    random.seed(0)
    torch.manual_seed(0)
    server = Server(task)
    seconds = []
    steps = []
    for _ in range(task.rounds):
        began = time.perf_counter()
        steps.append(server.round())
        wait(task.device)
        seconds.append(time.perf_counter() - began)
    how = f"1 process, {compute(task.device, task.threads)}"
    return Outcome(seconds, *evaluate(server.model, server.data), steps, how)


if __name__ == "__main__":
    drive("plain", __doc__, ["torch"], train)
