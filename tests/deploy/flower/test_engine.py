"""The same jobs at sites give the same bits, and whatever a site does, the round goes on with the
others.
"""

from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message

from cafedcl.core.contract import TICKET
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.deploy.flower.messages import answer_train, read_train
from cafedcl.deploy.flower.records import OWN, SHARED, wrap
from cafedcl.engine.cpu import messages as wire
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation import runs
from cafedcl.federation.contact_sheets import ContactSheets
from cafedcl.federation.rounds import Federation
from cafedcl.methods import find_method, method_names
from cafedcl.task.build import prepare

METHODS = [name for name in method_names() if not find_method(name)[0].pooled]
BAD = 12
"""The node of client 0."""


def reference(config):
    setup = prepare(replace(config, engine=replace(config.engine, name="reference")))
    return Federation(setup, engine=ReferenceEngine(setup.task))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits_as_the_reference_engine(method, config, host, same):
    chosen = config(
        method, federation__rounds=2, **({"method__epochs": 3} if method == "fedtgp" else {})
    )
    there = host(chosen, [], None)
    here = reference(chosen)
    there.run()
    here.run()
    same(there, here)


def test_the_servers_optimizer_is_the_same_over_flower(config, host, same):
    options = {"server__optimizer": "acg", "server__average": 0.9, "federation__rounds": 3}
    chosen = config("fedrod", **options)
    there = host(chosen, [], None)
    here = reference(chosen)
    there.run()
    here.run()
    same(there, here)


def test_generators_are_trained_and_kept_at_the_sites(config, host, same, tmp_path, journal):
    """Tail augmentation needs what a client keeps; the server gets notes about it, and never an
    image.
    """
    tail = {
        "augment__name": "gan",
        "augment__steps": 5,
        "split__kind": "dirichlet",
        "split__alpha": 0.3,
        "split__classes": 2,
    }
    chosen = config(**tail, federation__rounds=2)
    there = host(chosen, [ContactSheets(tmp_path / "sheets")], None)
    here = reference(chosen)
    there.run()
    here.run()
    same(there, here)
    assert here.task.tail.synthetic_counts.any()
    assert not (tmp_path / "sheets").exists()
    assert {name for memory in there.memories.values() for name in memory} <= {TICKET}
    assert any("augment/fitted" in memory for memory in here.memories.values())


@pytest.mark.parametrize("method", ["moon", "fedproto"])
def test_what_clients_keep_stays_at_their_sites(method, config, host, net, tmp_path):
    federation = host(config(method), [], None)
    federation.run()
    assert {name for memory in federation.memories.values() for name in memory} == {TICKET}
    kept = sorted(
        path.relative_to(tmp_path).parts[0]
        for path in tmp_path.glob("*/memory/*/*/000002.safetensors")
    )
    assert kept == ["11", "12", "13"]


def test_sites_throw_away_what_nobody_can_go_back_to(config, host, tmp_path):
    host(config("moon", federation__rounds=6), [], None).run()
    rounds = sorted(int(path.stem) for path in (tmp_path / "12").glob("memory/*/0/*.safetensors"))
    assert rounds == [2, 3, 4, 5]


@pytest.mark.parametrize("method", ["cafedcl", "moon"])
def test_a_server_that_was_killed_goes_on_to_the_same_bits(method, config, host, journal, same):
    """The sites have gone two rounds further than the checkpoint that the server goes back to."""
    chosen = config(method, federation__rounds=4, store__checkpoint_every=2)
    whole = reference(chosen)
    whole.run()

    class Killed(BaseException):
        pass

    def broken(config, callbacks, folder):
        federation = host(config, callbacks, folder)
        step = federation.step
        federation.step = lambda: step() if federation.round < 3 else kill()
        return federation

    def kill():
        raise Killed

    with pytest.raises(Killed):
        runs.start(chosen, journal.path, [], (), broken)
    finished = runs.resume(journal.path, [], print, host)
    assert [line["round"] for line in finished.records] == [0, 1, 2, 3]
    for name, value in whole.state.items():
        assert torch.equal(finished.state[name], value), name


def only(asked, kind):
    """Return whether a request is of a kind, by Flower's type of message."""
    return asked.metadata.message_type == kind


def spoilt(change):
    """Make a twist that changes the reply to a training request."""

    def twist(asked, parts):
        if not only(asked, "train"):
            return [Message(wrap(parts), reply_to=asked)]
        return [Message(wrap(change(parts)), reply_to=asked)]

    return twist


def reply_in(parts):
    return wire.to_result(wire.Message(*unpack(parts[SHARED])))


def edit(**changes):
    """Make a change of the tensors in a reply."""

    def change(parts):
        reply = reply_in(parts)
        tensors = {
            **reply.up.tensors,
            **{name.replace("__", "/"): f(reply) for name, f in changes.items()},
        }
        return {
            **parts,
            SHARED: pack(
                *wire.result_message(replace(reply, up=replace(reply.up, tensors=tensors)))
            ),
        }

    return change


def as_client(client):
    def change(parts):
        reply = reply_in(parts)
        return {
            **parts,
            SHARED: pack(*wire.result_message(replace(reply, up=replace(reply.up, client=client)))),
        }

    return change


def at_round(round):
    return lambda parts: {**parts, OWN: answer_train(reply_in(parts), round)[OWN]}


FAULTS = {
    "nan": (
        spoilt(edit(prototypes=lambda r: r.up.tensors["prototypes"] * torch.nan)),
        "NaN or Inf in 'prototypes'",
    ),
    "a wrong shape": (
        spoilt(edit(prototypes=lambda r: r.up.tensors["prototypes"][:, :1])),
        "has shape",
    ),
    "too large": (spoilt(edit(extra=lambda _: torch.zeros(1 << 20))), "bytes, more than the"),
    "not asked for": (spoilt(edit(extra=lambda _: torch.zeros(3))), "'extra' was not asked for"),
    "garbage": (
        spoilt(lambda parts: {**parts, SHARED: b"\x80\x04garbage"}),
        "not a whole packed file",
    ),
    "no body": (spoilt(lambda parts: {OWN: parts[OWN]}), "shared"),
    "an old round": (spoilt(at_round(-1)), "it answered for round -1, not 0"),
    "another client": (spoilt(as_client(1)), "it answered as client 1"),
    "dead": (
        lambda asked, parts: (
            [Message(Error(5, "Node Unavailable"), reply_to=asked)]
            if only(asked, "train")
            else [Message(wrap(parts), reply_to=asked)]
        ),
        "its site was killed, cut off or removed before it answered",
    ),
    "silent": (
        lambda asked, parts: [] if only(asked, "train") else [Message(wrap(parts), reply_to=asked)],
        "no answer within 0.3 s",
    ),
}


@pytest.fixture(scope="module")
def without_the_site(config):
    """The state after two rounds, in the first of which client 0 drops out."""
    federation = reference(config(federation__rounds=2, federation__drop=["0:0"]))
    federation.run()
    return federation.state


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_goes_on_without_a_site_that_fails_and_takes_it_back(
    fault, config, host, net, without_the_site
):
    federation = host(config(federation__rounds=2), [], None)
    net.twist[BAD], words = FAULTS[fault]
    first = federation.step()
    assert [failure["client"] for failure in first.failed] == [0]
    assert words in first.failed[0]["reason"]
    del net.twist[BAD]
    assert federation.step().failed == []
    for name, value in federation.state.items():
        assert torch.equal(value, without_the_site[name]), name


def test_a_site_that_answers_twice_counts_once(config, host, net, same):
    chosen = config(federation__rounds=2)
    federation = host(chosen, [], None)
    here = reference(chosen)
    net.twist[BAD] = lambda asked, parts: [Message(wrap(parts), reply_to=asked) for _ in range(2)]
    federation.run()
    here.run()
    same(federation, here)


def test_a_missing_site_is_named_and_one_that_returns_as_another_node_is_the_same_client(
    config, host, net
):
    federation = host(config("moon"), [], None)
    federation.step()
    gone = net.sites.pop(BAD)
    assert federation.step().failed == [{"client": 0, "reason": "its site is not connected"}]
    net.sites[99] = gone
    assert federation.step().failed == []


def test_while_no_site_is_connected_no_round_is_used_up(config, host, net, monkeypatch):
    federation = host(config(engine__deadline=5), [], None)
    federation.step()
    away = dict(net.sites)
    net.sites.clear()
    waited: list[float] = []

    def come_back(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            net.sites.update(away)

    monkeypatch.setattr("cafedcl.deploy.flower.engine.time.sleep", come_back)
    assert federation.step().status == "ok"
    assert len(waited) == 3


def test_a_run_ends_with_an_error_if_no_site_comes_back(config, host, net, monkeypatch):
    federation = host(config(engine__deadline=5), [], None)
    federation.step()
    net.sites.clear()
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("cafedcl.deploy.flower.engine.time.sleep", lambda _: None)
    monkeypatch.setattr("cafedcl.deploy.flower.engine.time.monotonic", lambda: next(clock))
    with pytest.raises(CafedclError, match=r"no site has been connected for 5 s .* cafedcl resume"):
        federation.step()
    assert federation.round == 1


def test_a_site_that_lost_what_it_kept_starts_anew_and_says_so(config, host, tmp_path, capsys):
    federation = host(config("moon"), [], None)
    federation.step()
    for file in (tmp_path / "12").glob("memory/*/0/*.safetensors"):
        file.unlink()
    assert federation.step().failed == []
    assert "starts without memory" in capsys.readouterr().err


def test_too_few_sites_are_counted_in_one_line(config, host, net):
    del net.sites[BAD]
    with pytest.raises(CafedclError, match=r"2 of 3 sites connected within 0\.3 s"):
        host(config(), [], None)


def test_losses_that_are_no_numbers_are_an_answer_that_cannot_be_read(config, host, net):
    federation = host(config(), [], None)
    (reply, *_) = federation.engine.train([j for j in jobs_of(federation) if j.client == 0])
    parts = answer_train(replace(reply, up=replace(reply.up, losses={"ce": "much"})), 0)
    assert "not numbers" in read_train(parts, 0, 0).reason


def jobs_of(federation):
    from cafedcl.core.contract import Down, Job

    down = Down(0, federation.method.broadcast(federation.state))
    return [Job(client, down, {}, False) for client in range(3)]
