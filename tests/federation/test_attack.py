"""Clients that lie: who, how, and what the server makes of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import cafedcl
from cafedcl.core.contract import Down, Reply
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import MODEL, under
from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import gather

Tiny = Callable[..., Federation]
EVERYONE = {"federation__participation": 1.0}


def attacked(tiny: Tiny, kind: str, method: str = "cafedcl", **more: Any) -> Federation:
    return tiny(method, attack__kind=kind, attack__clients=2, **EVERYONE, **more)


def both(tiny: Tiny, kind: str, method: str = "cafedcl", **more: Any) -> Any:
    """The honest and the arriving replies of a round, by client, and the liars."""
    federation = attacked(tiny, kind, method, **more)
    down = Down(0, federation.method.broadcast(federation.state))
    honest = {}
    tampered = federation.attack.tampered

    def note(reply: Reply, down: Down) -> Reply:
        honest[reply.up.client] = reply
        return tampered(reply, down)

    federation.attack.tampered = note
    arrived = {reply.up.client: reply for reply in federation.train(down, list(range(5)))}
    return federation, under(MODEL, down.tensors), honest, arrived


def test_liars_are_as_many_as_asked_and_drawn_by_the_seed(tiny: Tiny) -> None:
    first = attacked(tiny, "sign-flip").attack.liars
    assert len(first) == 2
    assert first == attacked(tiny, "sign-flip").attack.liars
    drawn = {attacked(tiny, "swap", run__seed=seed).attack.liars for seed in range(6)}
    assert len(drawn) > 1


@pytest.mark.parametrize(("kind", "factor"), [("sign-flip", -1.0), ("scale", -10.0)])
def test_a_liar_sends_a_multiple_of_its_update_and_the_others_the_truth(
    tiny: Tiny, kind: str, factor: float
) -> None:
    federation, received, honest, arrived = both(tiny, kind)
    for client, reply in arrived.items():
        for name, value in reply.up.model.items():
            start = received[name].double().numpy()
            update = honest[client].up.model[name].double().numpy() - start
            times = factor if client in federation.attack.liars else 1.0
            np.testing.assert_allclose(value, start + times * update, atol=1e-5)


def test_noise_is_as_long_as_asked(tiny: Tiny) -> None:
    federation, received, honest, arrived = both(tiny, "noise", attack__factor=5.0)
    for client in federation.attack.liars:
        name = max(received, key=lambda name: received[name].numel())
        update = honest[client].up.model[name] - received[name]
        noise = arrived[client].up.model[name] - received[name]
        assert float(noise.norm() / update.norm()) == pytest.approx(5, rel=0.2)
        assert abs(float(torch.cosine_similarity(noise.flatten(), update.flatten(), 0))) < 0.5


def test_a_swap_sends_prototypes_under_the_next_class(tiny: Tiny) -> None:
    federation, _, honest, arrived = both(tiny, "swap")
    for client in federation.attack.liars:
        rows = honest[client].up.tensors["prototypes"]
        assert torch.equal(
            arrived[client].up.tensors["prototypes"], rows[[-1, *range(len(rows) - 1)]]
        )


@pytest.mark.parametrize("method", ["spherefed", "cafedcl:best"])
def test_opposite_sums_are_accepted_since_such_images_could_be(tiny: Tiny, method: str) -> None:
    federation, _, honest, arrived = both(tiny, "sums", method)
    for client, reply in arrived.items():
        sign = -1 if client in federation.attack.liars else 1
        sent, told = reply.up.tensors, honest[client].up.tensors
        assert torch.equal(sent["targets"], sign * told["targets"])
        assert torch.equal(sent["gram"], told["gram"])
        assert told["targets"].any()
    assert federation.step().failed == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("long", "a row of length"),
        ("huge", "its weights have a norm of"),
        ("counts", "reports 1000000000 samples"),
        ("swap-one", "by its enrolment it lies in"),
    ],
)
def test_a_lie_that_enrolment_gives_away_is_rejected(tiny: Tiny, kind: str, said: str) -> None:
    kind, _, claim = kind.partition("-")
    more: dict[str, Any] = {"split__kind": "dirichlet", "split__alpha": 0.3}
    if claim:
        more["attack__claim"] = claim
    federation = attacked(tiny, kind, **more)
    record = federation.step()
    assert {failure["client"] for failure in record.failed} == federation.attack.liars
    assert all(said in failure["reason"] for failure in record.failed)
    assert record.status == "ok"


def test_the_most_that_enrolment_allows_is_accepted(tiny: Tiny) -> None:
    federation = attacked(tiny, "swap", attack__claim="most")
    assert federation.step().failed == []


def test_flipped_labels_are_the_data_of_the_liars(tiny: Tiny) -> None:
    federation = attacked(tiny, "label-flip", "fedavg")
    plain = tiny("fedavg", **EVERYONE)
    for client in range(5):
        counts = plain.counts[client]
        expected = counts.flip(0) if client in federation.attack.liars else counts
        assert torch.equal(federation.task.enrolment.counts[client], expected)
        assert torch.equal(federation.counts[client], counts), "scores have the true classes"
        rows = federation.task.clients.shards.train[client]
        labels = federation.task.clients.data.train_y[rows]
        assert torch.equal(torch.bincount(labels, minlength=10), expected)
    assert federation.step().failed == []


@pytest.mark.parametrize("number", [0, 6])
def test_a_number_of_liars_that_cannot_be_is_one_line(tiny: Tiny, number: int) -> None:
    with pytest.raises(CafedclError, match="between 1 and 5 clients can lie"):
        tiny("fedavg", attack__kind="scale", attack__clients=number)


def test_the_short_form_is_the_section() -> None:
    config = gather(attack="sign-flip:4,claim=most", defence="clip:1.5")
    assert (config.attack.kind, config.attack.clients, config.attack.claim) == (
        "sign-flip",
        4,
        "most",
    )
    assert (config.defence.kind, config.defence.factor) == ("clip", 1.5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"attack": "sign-flop:2"}, "there is no such attack; did you mean 'sign-flip'"),
        ({"attack": "label-flip:2,claim=most"}, "the attack 'label-flip' does not use it"),
        ({"defence": "median,0.2"}, "a colon is expected after 'median'"),
        ({"defence": "median:0.2"}, "'0.2' is not key=value"),
        ({"defence": "trimmed-mean:0.6"}, "defence.liars = 0.6"),
    ],
)
def test_a_mistake_in_the_short_form_is_one_line(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(CafedclError, match=said):
        gather(**flags)


def test_an_attack_is_recorded_in_the_run(tmp_path: Any) -> None:
    settings = {"data.images": 200, "model.name": "mlp", "model.width": 0.1}
    run = cafedcl.run(
        "fedavg", clients=3, rounds=1, attack="scale:1", out=tmp_path / "run", settings=settings
    )
    assert replace(run.config.attack).kind == "scale"
    assert cafedcl.load(tmp_path / "run").config.attack.clients == 1


def test_a_liar_is_honest_until_the_first_round_in_which_it_lies(tiny: Tiny) -> None:
    plain = tiny("fedavg", **EVERYONE)
    federation = attacked(tiny, "scale", "fedavg", attack__since=2)
    plain.step()
    federation.step()
    assert all(torch.equal(plain.state[name], federation.state[name]) for name in plain.state)
    plain.step()
    federation.step()
    assert any(not torch.equal(plain.state[name], federation.state[name]) for name in plain.state)


@pytest.mark.parametrize(
    ("kind", "method", "claim", "said"),
    [
        (
            "swap",
            "fedavg",
            "honest",
            "fedavg sends no prototypes, so the attack changes nothing that",
        ),
        ("sign-flip", "fedproto", "honest", "fedproto sends no weights"),
        ("sign-flip", "fedavg", "most", "attack.claim = most: fedavg sends no confidence"),
        ("swap", "cafedcl", "most", ""),
        ("swap", "fedproto", "honest", ""),
        ("label-flip", "local", "honest", ""),
    ],
)
def test_an_attack_on_what_the_method_does_not_send_is_told(
    kind: str, method: str, claim: str, said: str, tiny: Tiny
) -> None:
    federation = attacked(tiny, kind, method, attack__claim=claim)
    assert len(federation.notices) == bool(said)
    assert said in "".join(federation.notices)


@pytest.mark.parametrize("kind", ["sign-flip", "scale", "noise", "swap", "long", "huge"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "cafedcl", "local"])
def test_what_is_told_of_an_attack_is_true(kind: str, method: str, tiny: Tiny) -> None:
    federation, _, honest, arrived = both(tiny, kind, method)
    (liar, *_) = federation.attack.liars
    one, other = ({**it[liar].up.model, **it[liar].up.tensors} for it in (honest, arrived))
    changed = any(not torch.equal(value, other[name]) for name, value in one.items())
    assert changed != bool(federation.notices)
