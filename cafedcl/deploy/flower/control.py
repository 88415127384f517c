"""Flower's Control API: the nodes and the runs of a SuperLink.

Flower's own `flwr` command asks the same questions, but it takes two seconds to start each time.
This is an interface inside Flower, so this is the only file that uses it, and pyproject.toml pins
Flower's version.
"""

import hashlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import Run
from flwr.supercore.utils import simulation_config_from_json

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.keys import read_node_key
from cafedcl.deploy.programs import PATIENCE
from cafedcl.deploy.superlink import Address

T = TypeVar("T")
UNREGISTERED = "unregistered"
"""Flower's status of a node whose key it no longer accepts."""


@dataclass(frozen=True)
class NodeStatus:
    """A node that is registered at a SuperLink; times are empty if there is none."""

    id: str
    name: str
    """As it was registered."""
    status: str
    online_at: str
    offline_at: str


@dataclass(frozen=True)
class RunStatus:
    """A run of a SuperLink."""

    id: int
    status: str
    seconds: float


class DirectClient(ControlHttpClient):
    """Flower's client without web proxies: the SuperLink is on this machine."""

    def __init__(self, base_url: str, *, verify: ssl.SSLContext | bool | str, **rest: Any) -> None:
        super().__init__(base_url, verify=verify, **rest)
        self._client.close()
        self._client = httpx.Client(verify=verify, timeout=PATIENCE, trust_env=False)


class Control:
    """The Control API of the SuperLink at an address."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def _ask(self, question: Callable[[ControlHttpClient], T]) -> T:
        """Return the answer to a question; raise an error with Flower's reason if there is none."""
        ca = self.address.ca
        client = DirectClient.from_server_address(
            str(self.address),
            insecure=ca is None,
            root_certificates=ca.read_bytes() if ca else None,
            interceptors=[RuntimeVersionHttpInterceptor("cafedcl")],
        )
        try:
            return question(client)
        except httpx.HTTPStatusError as error:
            raise CafedclError(
                f"SuperLink at {self.address}: {reason_of(error.response)}"
            ) from None
        except httpx.HTTPError as error:
            raise CafedclError(f"SuperLink at {self.address}: no answer: {error}") from None
        finally:
            client.close()

    def nodes(self) -> list[NodeStatus]:
        """Return the nodes that are registered, in the order of their registration."""
        answer = self._ask(lambda client: client.ListNodes(ListNodesRequest()))
        found = sorted(
            answer.nodes_info, key=lambda node: datetime.fromisoformat(node.registered_at)
        )
        return [
            NodeStatus(
                str(node.node_id),
                node.name,
                node.status,
                readable_time(node.last_activated_at),
                readable_time(node.last_deactivated_at),
            )
            for node in found
            if node.status != UNREGISTERED
        ]

    def register(self, key: Path, name: str) -> str:
        """Register a node by its public key and return its number."""
        public = load_ssh_public_key(read_node_key(key))
        assert isinstance(public, ec.EllipticCurvePublicKey)
        request = RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name)
        return str(self._ask(lambda client: client.RegisterNode(request)).node_id)

    def unregister(self, node: str) -> None:
        """Stop accepting a node."""
        request = UnregisterNodeRequest(node_id=int(node))
        self._ask(lambda client: client.UnregisterNode(request))

    def runs(self) -> list[RunStatus]:
        """Return all runs, the newest first."""
        answer = self._ask(lambda client: client.ListRuns(ListRunsRequest()))
        found = [run_from_proto(run) for run in answer.run_dict.values()]
        found.sort(key=lambda run: run.pending_at, reverse=True)
        return [RunStatus(run.run_id, status_of(run), seconds_of(run, answer.now)) for run in found]

    def start_run(self, app: Path, config: Mapping[str, Any], simulation: Mapping[str, Any]) -> int:
        """Submit the app in a folder with its run config, and return the number of its run."""
        fab = build_fab_from_disk(app)
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto(dict(config)),
            override_federation_config=(
                simulation_config_from_json(dict(simulation)) if simulation else None
            ),
        )
        return int(self._ask(lambda client: client.StartRun(request)).run_id)

    def stop_run(self, number: int) -> None:
        """Stop a run."""
        self._ask(lambda client: client.StopRun(StopRunRequest(run_id=number)))


def reason_of(response: httpx.Response) -> str:
    """Return in one line why a SuperLink refused a request."""
    error = FlowerError.from_json(response.text)
    if error is None:
        reason = f"status {response.status_code}"
    else:
        reason = f"{error.message} {error.public_details or ''}"
    return " ".join(reason.split())


def readable_time(moment: str) -> str:
    """Return one of Flower's times in readable form, in UTC; empty if there is none."""
    if not moment:
        return ""
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def status_of(run: Run) -> str:
    """Return the status of a run, and how it ended."""
    return f"{run.status.status}:{run.status.sub_status}".rstrip(":")


def seconds_of(run: Run, now: str) -> float:
    """Return how long a run has been running, or ran."""
    if not run.running_at:
        return 0.0
    end = datetime.fromisoformat(run.finished_at or now)
    return (end - datetime.fromisoformat(run.running_at)).total_seconds()
