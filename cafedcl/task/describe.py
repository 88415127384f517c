"""A run in a line or two, before its first round: what will be trained, where, and on what."""

import time

import torch

from cafedcl.config.sections import Config
from cafedcl.core.environment import cores
from cafedcl.core.steps import spoken
from cafedcl.task.build import OWNED
from cafedcl.task.cost import operations
from cafedcl.task.task import Task

LONG = 10.0
"""Scoring that takes this many seconds is announced."""
MANY_IMAGES = 100_000
"""Scoring fewer images takes no time worth announcing."""
LONG_RUN = 1800.0
"""Seconds of training from which a faster model is suggested."""
CORE_OPERATIONS = 5e10
"""Floating-point operations a second that a core reaches in training, roughly."""
SMALL = ("cnn4", "cnn8", "mlp")
"""The fast models."""
TRAINING = 3
"""A training step costs about three forward passes: one forward, two for the gradient."""


def first_line(config: Config, task: Task, engine: str) -> str:
    """Return a run's model, parameters, device, engine, clients and images in one line."""
    weights = list(task.network.parameters())
    if task.frozen_encoder is not None:
        weights += task.frozen_encoder.parameters()
    parameters = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    size = f"{magnitude(parameters).strip()} parameters"
    if trained < parameters:
        size += f" ({magnitude(trained).strip()} trained)"
    where = str(task.device)
    if task.device.type == "cuda":
        where += f" ({torch.cuda.get_device_name(task.device)})"
    shape = "×".join(map(str, task.clients.data.shape[1:]))
    images = int(task.clients.shards.counts.sum())
    tested = len(task.clients.test_set(None)[1])
    test = f" and {tested:,} test" if tested else ""
    clients = config.federation.clients
    who = f"{clients:,} client{'s' * (clients != 1)}"
    if config.split.kind not in (*OWNED, "file") and not config.at_sites:
        # A user whose images have no clients should see that these are made up.
        who += f" ({config.split.kind})"
    return (
        f"{config.label} on {config.data.name}: {config.model.name}, {size}; {engine} engine on "
        f"{where}; {who}, {images:,} training{test} images of {shape} pixels, "
        f"{task.clients.data.classes} classes"
    )


def cost_line(config: Config, task: Task) -> str:
    """Return the cost of an image and a step, and why this model was chosen if none was named."""
    shape = task.clients.data.shape
    forward = operations(task.frozen_encoder or task.network.encoder, shape)
    batch = task.schedule.batch_size(task.schedule.typical)
    how = config.model.name
    if task.frozen_encoder is not None:
        return (
            f"{how}: {magnitude(forward)}FLOP per image; it is frozen, so every image passes "
            "through it only once"
        )
    if task.network.chosen:
        how += f", chosen for images of {shape[1]}×{shape[2]}"
    return (
        f"{how}: {magnitude(forward)}FLOP per image, {magnitude(TRAINING * forward * batch)}FLOP "
        f"per training step of {batch} images{_advice(config, task, forward)}"
    )


def _advice(config: Config, task: Task, forward: float) -> str:
    """Return advice for a faster model if none was chosen and this one takes hours on a CPU."""
    if task.device.type != "cpu" or not task.network.chosen or config.model.name in SMALL:
        return ""
    visits = config.federation.rounds * config.federation.participants(len(task.clients.shards))
    images = visits * task.schedule.typical * config.train.epochs
    seconds = TRAINING * forward * images / (CORE_OPERATIONS * cores())
    if seconds < LONG_RUN:
        return ""
    # The gradient of every image, one client after another, takes several times as long.
    about = "far more than" if config.privacy.protects_records else "about"
    return f"; without a GPU that takes {about} {spoken(seconds)}, and --model cnn4 far less"


def scoring_line(config: Config, task: Task) -> str:
    """Return how long it takes to score the clients' own models; nothing if that is short."""
    clients = config.federation.participants(len(task.clients.shards))
    everything = len(task.clients.test_set(None)[1])
    images = len(task.clients.test_labels(0))
    if task.clients.shards.test:
        images = everything // len(task.clients.shards)
    # Too few images to take long; time an image only where it may matter.
    if not task.scores_own or task.clients.remote or images * clients < MANY_IMAGES:
        return ""
    processes = 1
    if task.device.type == "cpu":
        processes = config.engine.workers or cores()
    seconds = seconds_per_image(task) * images * clients / processes
    if seconds < LONG:
        return ""
    return (
        f"scoring {clients:,} own models on {images:,} test images each takes about "
        f"{spoken(seconds)} whenever it is due; evaluate.own_images scores them on fewer images, "
        "evaluate.own_every less often or never"
    )


def seconds_per_image(task: Task) -> float:
    """Return the seconds that a forward pass takes per image, measured on a batch."""
    x = task.clients.test_set(0)[0][: task.eval_batch]
    network = task.network
    training = network.training
    network.eval()
    with torch.no_grad():
        images = task.clients.inputs.images(x)
        # The first pass prepares kernels and memory. Reading a number waits for the device.
        float(network.features(images).sum())
        began = time.perf_counter()
        float(network.features(images).sum())
        seconds = time.perf_counter() - began
    network.train(training)
    return seconds / len(x)


def magnitude(number: float) -> str:
    """Return a number with three digits and a unit, such as ``11.2 M``."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            digits = f"{number:.3g}" if number < 100 else f"{number:.0f}"
            return f"{digits} {unit}"
        number /= 1000
    raise AssertionError
