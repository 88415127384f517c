"""The client of drive_flower.py.

It has its own module, so that Ray's processes import it once and keep its cache.
"""

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jobs import Data, load
from torch import nn
from torch_model import Batches, configure_torch, network, tensors

app = ClientApp()


@lru_cache(maxsize=1)
def site(path: str, onednn: bool, device: str) -> tuple[Data, nn.Sequential]:
    """Return the data and a network on a device; a process uses them for all its clients."""
    configure_torch(1, onednn)
    data = load(Path(path))
    return data, network(data).to(device)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's data."""
    config = message.content["config"]
    device = config["device"]
    data, model = site(config["path"], config["onednn"], device)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    x, y = tensors(data, int(context.node_config["partition-id"]), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    steps = 0
    for _ in range(config["epochs"]):
        for images, labels in Batches(x, y, config["batch"]):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    arrays = ArrayRecord(model.state_dict())
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
