from collections.abc import Callable

import pytest
import torch
from capturing import sent

from cafedcl.core.contract import Down, Failure, Reply, Up
from cafedcl.federation.rounds import Federation
from cafedcl.methods import method_names

Tiny = Callable[..., Federation]
AWAY = torch.device("meta")
"""A device that is not the host and needs no hardware."""


def away(federation: Federation) -> Federation:
    federation.task = federation.task.with_clients(data=federation.task.clients.data.to(AWAY))
    return federation


@pytest.mark.parametrize("method", method_names())
def test_the_servers_state_is_on_the_device_unless_it_is_means_of_what_clients_send_per_class(
    tiny: Tiny, method: str
) -> None:
    task = away(tiny(method)).task
    assert task.device == AWAY
    assert task.method.server_trains == (method in ("ccvr", "creff", "fedtgp"))
    on_host = bool(task.per_class) and not task.method.server_trains
    assert task.server_device == (torch.device("cpu") if on_host else AWAY)


def test_a_fitted_classifier_is_fitted_on_the_device(tiny: Tiny) -> None:
    task = away(tiny("cafedcl", method__inference="fitted")).task
    assert task.per_class
    assert task.server_device == AWAY


def test_what_clients_send_per_class_does_not_depend_on_where_it_is_kept(tiny: Tiny) -> None:
    assert (
        tiny("fedtgp").task.per_class
        == tiny("fedproto").task.per_class
        == {"classes", "prototypes"}
    )
    assert tiny("fedavg").task.per_class == set()


@pytest.mark.parametrize(("method", "home"), [("fedtgp", AWAY), ("fedproto", torch.device("cpu"))])
def test_what_a_client_sends_besides_its_model_and_the_restored_state_go_home(
    tiny: Tiny, method: str, home: torch.device
) -> None:
    federation = away(tiny(method))
    tensors = {
        "classes": torch.tensor([1]),
        "prototypes": torch.zeros(1, 16),
        "gram": torch.zeros(2, 2),
    }
    first = Reply(Up(0, 3, tensors, model={"w": torch.zeros(2)}), {}, {})
    reply = federation.received(first, Down(0, {}))
    assert isinstance(reply, Reply)
    assert {name: value.device for name, value in sent(reply.up).items()} == {
        "classes": home,
        "prototypes": home,
        "gram": home,
        "model/w": torch.device("cpu"),
    }
    federation.restore(*federation.snapshot())
    assert {value.device for value in federation.state.values()} == {home}


def test_a_failure_is_received_as_it_is(tiny: Tiny) -> None:
    failure = Failure(2, "gone")
    assert tiny("fedtgp").received(failure, Down(0, {})) is failure
