"""The networks in PyTorch, and which threads and kernels are fastest for them on this machine.

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
    """A block of ResNet-18: two 3×3 convolutions and a shortcut, smaller images where there are
    more channels.
    """

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
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.GroupNorm(
        2, outputs
    )


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


def settle(threads: int, onednn: bool) -> None:
    """Set PyTorch's threads and kernels for this process."""
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = onednn


def wait(device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def tensors(data: Data, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images and labels."""
    x, y = data.client(client)
    return torch.from_numpy(x), torch.from_numpy(y)


class Batches:
    """A client's data in shuffled batches; an index per batch instead of a DataLoader's calls per
    image.
    """

    def __init__(self, x: Tensor, y: Tensor, size: int) -> None:
        self.x, self.y, self.size = x, y, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y))
        return zip(self.x[order].split(self.size), self.y[order].split(self.size), strict=True)


@torch.no_grad()
def judge(model: nn.Module, data: Data) -> tuple[float, float]:
    """Return a model's accuracy and mean cross-entropy on the held-out images, worked out where the
    model is.
    """
    device = next(model.eval().parameters()).device
    x, labels = (
        torch.from_numpy(part).to(device) for part in (data.images(data.test_x), data.test_y)
    )
    scores = model(x)
    return float((scores.argmax(1) == labels).double().mean()), float(
        F.cross_entropy(scores, labels)
    )


def import_torchvision() -> None:
    """Import torchvision, also where its compiled operators do not fit a PyTorch without CUDA.

    Two peers import it for data sets and models that are not used here. It only refuses to be
    imported because it describes two operators that were not loaded; declaring them is enough.
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
    """Return the milliseconds of one step of SGD, of several the least."""
    settle(threads, onednn)
    model = network(data).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = (part[:batch] for part in tensors(data, 0))
    took: list[float] = []
    while len(took) < 5 or sum(took) < TIMED_SECONDS:
        began = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
    return 1000 * min(took)


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
