"""Measures training steps with large encoders, beside plain PyTorch.

    python benchmarks/encoders.py --device cuda

Ten clients train on random images of 224×224 pixels with batches of 32: a ViT-S and a ResNet-50,
fine-tuned as a whole and with a frozen encoder, where only the head learns. The encoders have the
architecture of pretrained ones and random weights, which take as long. Plain PyTorch trains the
same network on one client's images: in single precision, with automatic mixed precision (bf16),
and with that compiled.

A frozen encoder runs in every step if images are flipped at random (`ours`). Else it runs once over
all images: that pass is timed per image, and so is a step on the features (`features`).

It needs the extra `transformers`.
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cafedcl.core.contract import Down, Job
from cafedcl.core.environment import environment
from cafedcl.models.base import Network
from cafedcl.speed.measure import (
    Workload,
    drain,
    make_config,
    median_of,
    random_images,
    training_alone,
)
from cafedcl.task.build import Setup, prepare
from cafedcl.task.frozen_encoder import encoded
from cafedcl.task.task import arithmetic

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit-s": (
        "ViTConfig",
        {
            "hidden_size": 384,
            "num_hidden_layers": 12,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
        },
    ),
    # The defaults are those of ResNet-50.
    "resnet-50": ("ResNetConfig", {}),
    # For tests.
    "tiny": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"},
    ),
}
PLAIN = {"fp32": (False, False), "amp": (True, False), "amp+compile": (True, True)}
"""Plain PyTorch: whether it uses mixed precision, and whether it is compiled."""


def write_encoder(name: str, folder: Path) -> str:
    """Write an encoder with random weights, and return the name under which cafedcl loads it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**options)
    transformers.AutoModel.from_config(config).save_pretrained(folder / name)
    return f"hf:{folder / name}"


def make_setup(model: str, asked: argparse.Namespace, *, frozen: bool, once: bool = False) -> Setup:
    """Return clients with random images, and the encoder with FedAvg's head.

    A frozen encoder runs ``once``, or in every step on images that are flipped at random.
    """
    workload = Workload(
        model=model,
        shape=(3, asked.size, asked.size),
        clients=asked.clients,
        images=asked.images,
        batch=asked.batch,
        epochs=1,
        title="",
    )
    settings: dict[str, dict[str, Any]] = {
        "engine": {"device": asked.device, "compile": asked.compile},
        "model": {"freeze": "all" if frozen else "", "size": asked.size},
        "train": {"flip": frozen and not once},
    }
    config = make_config(workload, "fedavg", asked.rounds, settings)
    return prepare(config, random_images(workload, test=asked.batch))


def our_step_ms(setup: Setup, rounds: int) -> float:
    """Return the milliseconds of a client's step."""
    task = setup.task
    clients = range(len(task.clients.shards))
    steps = sum(map(task.schedule.steps, task.clients.shards.train.sizes.tolist()))
    down = Down(0, task.method.broadcast(setup.start()))
    jobs = [Job(client, down, {}, False) for client in clients]
    with closing(training_alone(setup)) as engine:
        drain(engine, jobs)
        return 1000 * median_of(lambda: drain(engine, jobs), rounds, task.device) / steps


def plain_step_ms(setup: Setup, rounds: int, *, mixed: bool, compiled: bool) -> float:
    """Return the milliseconds of a step in plain PyTorch, on the images of one client."""
    task = setup.task
    network: Network = copy.deepcopy(task.network).to(task.device).train()
    rows = task.clients.shards.train[0]
    images = task.clients.data.train_x[rows]
    labels = task.clients.data.train_y[rows]
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    forward: nn.Module | Callable[..., Any] = torch.compile(network) if compiled else network
    batch = setup.config.train.batch_size
    starts = range(0, len(labels), batch)

    def epoch() -> None:
        for start in starts:
            x = task.clients.data.images(images[start : start + batch])
            with torch.autocast(task.device.type, torch.bfloat16, enabled=mixed):
                loss = F.cross_entropy(forward(x), labels[start : start + batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    # The first steps compile and choose kernels.
    epoch()
    epoch()
    return 1000 * median_of(epoch, rounds, task.device) / len(starts)


def pass_ms(setup: Setup, rounds: int) -> float:
    """Return the milliseconds per image of the single pass through a frozen encoder."""
    task = setup.task
    data = task.clients.data
    assert task.frozen_encoder is not None
    encoder = task.frozen_encoder.to(task.device)
    images = len(data.train_y) + len(data.test_y)

    def once() -> None:
        with arithmetic(task):
            encoded(data, encoder, task.eval_batch)

    return 1000 * median_of(once, rounds, task.device) / images


def measured(model: str, asked: argparse.Namespace, *, frozen: bool) -> dict[str, float]:
    """Return the milliseconds per step of ours and of plain PyTorch, in turn."""
    setup = make_setup(model, asked, frozen=frozen)
    found = {"ours": our_step_ms(setup, asked.rounds)}
    for name in asked.plain.split(","):
        mixed, compiled = PLAIN[name]
        found[name] = plain_step_ms(setup, asked.rounds, mixed=mixed, compiled=compiled)
    return found


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--encoders", default="vit-s,resnet-50", help=", ".join(CONFIGS))
    parser.add_argument("--plain", default=",".join(PLAIN), help="ways of plain PyTorch")
    parser.add_argument("--compile", default="off", help="engine.compile of ours: on, off or auto")
    parser.add_argument("--size", type=int, default=224, help="pixels")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=200, help="images per client")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many is taken")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/encoders.json"))
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    result = {
        "command": ["python", *sys.argv],
        "environment": environment([], asked.device),
        "compile": asked.compile,
        "pixels": asked.size,
        "batch": asked.batch,
        "clients": asked.clients,
        "rows": rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.encoders.split(","):
            model = write_encoder(name, Path(folder))
            for frozen in (False, True):
                found = measured(model, asked, frozen=frozen)
                row: dict[str, Any] = {"encoder": name, "frozen": frozen, "step_ms": found}
                if frozen:
                    setup = make_setup(model, asked, frozen=True, once=True)
                    found["features"] = our_step_ms(setup, asked.rounds)
                    row["pass_ms"] = pass_ms(setup, asked.rounds)
                rows.append(row)
                listed = ", ".join(f"{way} {ms:.2f} ms" for way, ms in found.items())
                print(f"{name}, {'frozen' if frozen else 'fine-tuned'}: {listed}", flush=True)
                if frozen:
                    print(f"  one pass: {row['pass_ms']:.2f} ms per image", flush=True)
                # Compiling takes minutes, so what is measured is not left to the end.
                asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
