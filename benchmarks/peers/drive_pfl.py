"""pfl-research's simulation: federated averaging in one process per core, which torchrun starts.

On a GPU, one process trains all clients.

python benchmarks/peers/drive_pfl.py a --rounds 4 --out pfl.json
"""

import os
import random
import subprocess
import sys
import time
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from driver import Outcome, Task, compute, cores, drive, quiet
from torch import Tensor, nn
from torch_model import configure_torch, evaluate, network, tensors, wait


class Learner(nn.Module):
    """The network with the methods that pfl needs of a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        return self.inner(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss; pfl calls this once per step."""
        self.steps += 1
        return F.cross_entropy(self(x), y)

    def metrics(self, *_: Tensor) -> dict[str, float]:
        """Return nothing: no metrics are measured in training."""
        return {}


def train(task: Task) -> Outcome | None:
    """Start a process per core; in these processes, or alone on a GPU, run the rounds."""
    # Under torchrun, pfl gives every process a GPU of its own, so that one GPU is one process.
    if task.device == "cuda" or "TORCHELASTIC_RUN_ID" in os.environ:
        return work(task)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc_per_node={cores()}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    status = subprocess.run([*launcher, __file__, *task.arguments], env=environment).returncode
    if status:
        sys.exit(status)
    return None


def work(task: Task) -> Outcome | None:
    """Run the rounds; the first process returns the outcome."""
    quiet()
    configure_torch(1, task.onednn)
    os.environ["PFL_PYTORCH_DEVICE"] = task.device
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    job = task.job
    data = task.data()
    learner = Learner(network(data)).to(task.device)

    class Timer(TrainingProcessCallback):
        """Records the time of every round and the steps of this process."""

        def __init__(self) -> None:
            self.times = [time.perf_counter()]
            self.steps = []

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            wait(task.device)
            self.times.append(time.perf_counter())
            self.steps.append(learner.steps)
            learner.steps = 0
            return False, Metrics()

    @cache
    def user(index: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(tensors(data, index, task.device), user_id=str(index))

    users = random.sample(range(job.clients), job.clients)
    clients = FederatedDataset(user, get_user_sampler("minimize_reuse", users))
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    timer = Timer()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        callbacks=[timer],
    )
    steps = torch.tensor(timer.steps)
    seconds = [after - before for before, after in pairwise(timer.times)]
    how = f"1 process, {compute(task.device, 1)}"
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(steps)
        if torch.distributed.get_rank():
            return None
        how = f"{cores()} processes of torchrun, 1 PyTorch thread each"
    return Outcome(seconds, *evaluate(learner, data), steps.tolist(), how)


if __name__ == "__main__":
    drive("pfl", __doc__, ["pfl", "torch"], train)
