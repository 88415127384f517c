"""The networks in PyTorch, and the fastest threads and kernels for them on this machine.

    python benchmarks/peers/torch_model.py a

times one local step of a job with one thread and with all, with oneDNN's kernels and with PyTorch's
own, and prints the milliseconds as JSON. The runner gives every PyTorch system the fastest of these
settings.
"""

import argparse
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module

import torch
import torch.nn.functional as F
from driver import cores
from jobs import SCALES, Data, JobError, data_file, find_job, layers, load
from torch import Tensor, nn

TIMED_SECONDS = 1.5


def network(data: Data) -> nn.Sequential:
    """Build the network of a job, with the initial weights of its data."""
    model = _resnet(data) if "norm.weight" in data.weights else _cnn(data)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in data.weights.items()})
    return model


def _cnn(data: Data) -> nn.Sequential:
    """Build the 4-layer CNN, or the small one for 8×8 images."""
    small = data.train_x.shape[2] < 16
    shapes = layers(data.train_x.shape[1:])
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for name in ("conv1", "conv2"):
        outputs, inputs, kernel, _ = shapes[name]
        stride, padding = (2, 1) if small else (1, 0)
        parts[name] = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        parts[f"relu_{name}"] = nn.ReLU()
        if not small:
            parts[f"pool_{name}"] = nn.MaxPool2d(2)
    parts["flatten"] = nn.Flatten()
    parts["full"] = nn.Linear(*reversed(shapes["full"]))
    parts["relu_full"] = nn.ReLU()
    parts["head"] = nn.Linear(*reversed(shapes["head"]))
    return nn.Sequential(parts)


class Block(nn.Module):
    """A block of ResNet-18: two 3×3 convolutions and a shortcut; more channels halve the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1, self.norm1 = _normed(inputs, outputs, 3, stride)
        self.conv2, self.norm2 = _normed(outputs, outputs, 3, 1)
        self.shortcut = nn.Sequential()
        if stride == 2:
            self.shortcut.conv, self.shortcut.norm = _normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, after its ReLU."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def _normed(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.GroupNorm]:
    """Return a convolution and its GroupNorm, of two groups."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return convolution, nn.GroupNorm(2, outputs)


def _resnet(data: Data) -> nn.Sequential:
    """Build ResNet-18 with GroupNorm, for images as small as CIFAR's."""
    shapes = layers(data.train_x.shape[1:], "resnet")
    outputs, inputs, kernel, _ = shapes["conv"]
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv"], parts["norm"] = _normed(inputs, outputs, kernel, 1)
    parts["relu"] = nn.ReLU()
    blocks = [form for name, form in shapes.items() if name.endswith("conv1")]
    parts["blocks"] = nn.Sequential(*(Block(inputs, outputs) for outputs, inputs, *_ in blocks))
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(*reversed(shapes["head"]))
    return nn.Sequential(parts)


def configure_torch(threads: int, onednn: bool) -> None:
    """Set PyTorch's threads and kernels for this process."""
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = onednn


def wait(device: str) -> None:
    """Wait until the GPU has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def tensors(data: Data, client: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return a client's images and labels on a device."""
    x, y = data.client(client)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


class Batches:
    """A client's data in shuffled batches, without a DataLoader's calls per image."""

    def __init__(self, x: Tensor, y: Tensor, size: int) -> None:
        self.x = x
        self.y = y
        self.size = size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y), device=self.y.device)
        return zip(self.x[order].split(self.size), self.y[order].split(self.size), strict=True)


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> tuple[float, float]:
    """Return a model's accuracy and mean cross-entropy on the held-out images."""
    device = next(model.eval().parameters()).device
    x = torch.from_numpy(data.images(data.test_x)).to(device)
    labels = torch.from_numpy(data.test_y).to(device)
    logits = model(x)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return accuracy, float(F.cross_entropy(logits, labels))


def import_torchvision() -> None:
    """Import torchvision, also if its compiled operators do not fit a PyTorch without CUDA.

    Two peers import it for data sets and models that are not used here. Its import fails only
    because two operators were not loaded; declaring them is enough.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float least) -> Tensor"
            )
        import_module("torchvision")


def step_time(data: Data, batch: int, threads: int, onednn: bool) -> float:
    """Return the milliseconds of one step of SGD: the minimum of several."""
    configure_torch(threads, onednn)
    model = network(data).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = (part[:batch] for part in tensors(data, 0))
    times: list[float] = []
    while len(times) < 5 or sum(times) < TIMED_SECONDS:
        began = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def main() -> None:
    """Time a step with every setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    parser.add_argument("--scale", choices=SCALES, default="full")
    arguments = parser.parse_args()
    try:
        job = find_job(arguments.job, arguments.scale)
        data = load(data_file(job.name, arguments.scale))
    except JobError as error:
        sys.exit(f"error: {error}")
    settings = [(threads, onednn) for threads in sorted({1, cores()}) for onednn in (True, False)]
    times = [
        {
            "threads": threads,
            "onednn": onednn,
            "milliseconds": step_time(data, job.batch, threads, onednn),
        }
        for threads, onednn in settings
    ]
    print(json.dumps(times))


if __name__ == "__main__":
    main()
