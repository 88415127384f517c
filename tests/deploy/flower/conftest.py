"""A network made by hand: Flower's grid, with sites that answer in this process and can be told to
misbehave.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import wherever
from quick import QUICK
from sites import HOLDS

from cafedcl.config.sections import Config
from cafedcl.federation.journal import Journal
from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import resolve

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from cafedcl.deploy.flower.records import unwrap, wrap
from cafedcl.deploy.flower.server_app import GridHost
from cafedcl.deploy.flower.site import Site

Answer = Callable[[Message], list[Message]]


class Net(Grid):
    """Nodes by number. A node answers at once; ``twist`` may change or remove its answers."""

    def __init__(self) -> None:
        self.sites: dict[int, tuple[Site, int | None]] = {}
        self.twist: dict[int, Callable[[Message, dict[str, bytes]], list[Message]]] = {}
        self.waiting: list[Message] = []
        self.seen: list[Message] = []

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.sites)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            names.append(message.object_id)
            self.seen.append(message)
            node = message.metadata.dst_node_id
            site, client = self.sites[node]
            answer = site.answer(unwrap(message.content), client)
            twist = self.twist.get(
                node, lambda asked, parts: [Message(wrap(parts), reply_to=asked)]
            )
            self.waiting += twist(message, answer)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        found = [
            message for message in self.waiting if message.metadata.reply_to_message_id in wanted
        ]
        self.waiting = [message for message in self.waiting if message not in found]
        return found


SHORT = {
    "split": {"kind": "pathological", "classes": 4},
    "model": {"name": "mlp", "width": 0.25},
    "train": {"epochs": 1, "iterations": 2},
    "federation": {"clients": 3, "rounds": 3},
    "engine": {"device": "cpu", "name": "flower", "deadline": 0.3},
    "store": {"checkpoint_every": 1},
}


def short_config(method: str = "cafedcl", **settings: Any) -> Config:
    """Three clients with four classes each; settings by their names in the config, with __ for the
    dot.
    """
    tables: dict[str, Any] = {name: dict(table) for name, table in SHORT.items()} | {
        "method": {"name": method, **QUICK.get(method, {})}
    }
    for path, value in settings.items():
        section, _, key = path.partition("__")
        tables.setdefault(section, {})[key] = value
    return resolve(tables)


@pytest.fixture(scope="session")
def config() -> Callable[..., Config]:
    return short_config


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    """Three nodes with the shards of clients 2, 0 and 1."""
    for part in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, part, 1)
    made = Net()
    for node, client in ((11, 2), (12, 0), (13, 1)):
        made.sites[node] = Site(tmp_path / str(node), device="cpu"), client
    return made


@pytest.fixture
def places(net: Net, digits: Any, tmp_path: Path) -> Path:
    """Three sites, each with the digits of some classes in a file, and the server's own test
    images.
    """
    x = digits.train_x.numpy()
    y = digits.train_y.numpy()
    for number, (name, classes) in enumerate(HOLDS.items()):
        mine = np.flatnonzero(np.isin(y, classes))[number::3][:90]
        np.savez(tmp_path / f"{name}.npz", x=x[mine], y=y[mine].astype(str))
        net.sites[11 + number] = (
            Site(tmp_path / name, name, str(tmp_path / f"{name}.npz"), "cpu"),
            None,
        )
    np.savez(
        tmp_path / "test.npz",
        x_train=x[:20],
        y_train=(np.arange(20) % 10).astype(str),
        x_test=digits.test_x.numpy(),
        y_test=digits.test_y.numpy().astype(str),
    )
    return tmp_path


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A server's folder without keys."""
    (tmp_path / "server.toml").write_text("[server]\n")
    return tmp_path


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run")


@pytest.fixture
def host(net: Net, journal: Journal) -> GridHost:
    return GridHost(net, journal.say)


@pytest.fixture
def same() -> Callable[[Federation, Federation], None]:
    """Asserts that two federations are in the same state, to the last bit, and have the same
    history.
    """

    def check(one: Federation, other: Federation) -> None:
        assert one.state.keys() == other.state.keys()
        for name, value in one.state.items():
            assert torch.equal(value, other.state[name]), name
        for here, there in zip(one.history, other.history, strict=True):
            assert wherever(here.line()) == wherever(there.line())

    return check
