"""FedJAX's federated averaging, compiled by XLA, which uses all cores for every operation.

python benchmarks/peers/drive_fedjax.py a --rounds 4 --out fedjax.json
"""

import random
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from driver import Outcome, Task, cores, drive, quiet
from jax import lax

Weights = dict[str, Any]
LAYOUT = ("NHWC", "HWIO", "NHWC")


def channels_last(weights: Weights) -> Weights:
    """Return the initial weights for channels-last images, which XLA prefers on a CPU."""
    channels = weights["conv2.weight"].shape[0]
    outputs, inputs = weights["full.weight"].shape
    side = round((inputs // channels) ** 0.5)
    full = weights["full.weight"].reshape(outputs, channels, side, side).transpose(2, 3, 1, 0)
    kernels = {f"conv{i}.weight": weights[f"conv{i}.weight"].transpose(2, 3, 1, 0) for i in (1, 2)}
    head = {"full.weight": full.reshape(inputs, outputs), "head.weight": weights["head.weight"].T}
    return {name: jnp.asarray(value) for name, value in {**weights, **kernels, **head}.items()}


def scores(weights: Weights, x: jax.Array) -> jax.Array:
    """Return the network's logits."""
    small = x.shape[1] < 16
    for layer in ("conv1", "conv2"):
        kernel = weights[f"{layer}.weight"]
        stride, pad = ((2, 2), 2 * [(1, 1)]) if small else ((1, 1), 2 * [(0, 0)])
        x = (
            lax.conv_general_dilated(x, kernel, stride, pad, dimension_numbers=LAYOUT)
            + weights[f"{layer}.bias"]
        )
        x = jax.nn.relu(x)
        if not small:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ weights["full.weight"] + weights["full.bias"])
    return x @ weights["head.weight"] + weights["head.bias"]


def loss(weights: Weights, batch: dict[str, jax.Array], _: Any = None) -> jax.Array:
    """Return the mean cross-entropy of a batch."""
    chances = jax.nn.log_softmax(scores(weights, batch["x"]))
    return -jnp.take_along_axis(chances, batch["y"][:, None], axis=1).mean()


def train(task: Task) -> Outcome:
    """Run the rounds."""
    quiet()
    jax.tree_map = jax.tree_util.tree_map  # FedJAX calls it by the name it had before JAX 0.6
    import fedjax

    job = task.job
    data = task.data()
    per_client = job.steps(max(data.sizes))
    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=job.batch, num_epochs=None, num_steps=per_client
        ),
    )
    clients = []
    for k in range(job.clients):
        x, y = data.client(k)
        clients.append(
            fedjax.ClientDataset({"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y})
        )
    state = algorithm.init(channels_last(data.weights))
    rng = jax.random.PRNGKey(0)
    chosen = random.Random(0)
    seconds = []
    steps = []
    for _ in range(task.rounds):
        began = time.perf_counter()
        rng, *keys = jax.random.split(rng, job.cohort + 1)
        cohort = chosen.sample(range(job.clients), job.cohort)
        state, _ = algorithm.apply(
            state, [(k, clients[k], key) for k, key in zip(cohort, keys, strict=True)]
        )
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - began)
        steps.append(per_client * len(cohort))
    test = {
        "x": jnp.asarray(data.images(data.test_x).transpose(0, 2, 3, 1)),
        "y": jnp.asarray(data.test_y),
    }
    accuracy = float((scores(state.params, test["x"]).argmax(1) == test["y"]).mean())
    how = f"1 process, XLA's threads on {cores()} cores, jit backend"
    return Outcome(seconds, accuracy, float(loss(state.params, test)), steps, how)


if __name__ == "__main__":
    drive("fedjax", __doc__, ["fedjax", "jax", "jaxlib"], train)
