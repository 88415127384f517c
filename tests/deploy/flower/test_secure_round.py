"""Secure aggregation over Flower's messages: the same sums, drop-outs, and what the server sees."""

import pytest
import torch
from flwr.app import Message

from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import MODEL, unpack
from cafedcl.deploy.flower.messages import KEYS, MASKED, SHARES, TRAIN, UNMASK
from cafedcl.deploy.flower.records import OWN, SHARED, unwrap, wrap
from cafedcl.deploy.flower.site import Site

PRIVATE = {
    "privacy__kind": "clients",
    "privacy__noise": 0.5,
    "privacy__samples": 1,
    "privacy__floor": 0.0,
    "federation__rounds": 2,
}
SECURE = {**PRIVATE, "privacy__secure": True}
NODES = {11: 2, 12: 0, 13: 1, 14: 3, 15: 4}


@pytest.fixture
def five(net, tmp_path):
    """Five sites: one may be lost in every round."""
    for node, client in NODES.items():
        net.sites[node] = Site(tmp_path / str(node), device="cpu"), client
    return net


def options(method, **more):
    own = {"method__data_scale": "saturating"} if method == "cafedcl" else {}
    return {"federation__clients": 5, **own, **more}


def kind_of(message):
    return unpack(unwrap(message.content)[SHARED])[1]["kind"]


def lost_in(net, node, phase):
    """Let a site's answer in a phase get lost."""

    def twist(message, parts):
        return [] if kind_of(message) == phase else [Message(wrap(parts), reply_to=message)]

    net.twist[node] = twist


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "cafedcl"])
def test_the_state_is_that_of_plain_sums_up_to_rounding(method, config, host, five):
    plain = host(config(method, **options(method, **PRIVATE)), [], None)
    plain.run()
    secure = host(config(method, **options(method, **SECURE)), [], None)
    records = secure.run()
    assert all((record.status, record.failed) == ("ok", []) for record in records)
    assert plain.state.keys() == secure.state.keys()
    for name, value in plain.state.items():
        torch.testing.assert_close(secure.state[name], value, atol=1e-4, rtol=1e-3)
    assert [r.privacy for r in records] == [r.privacy for r in plain.history]


def test_the_server_sees_masked_vectors_and_nothing_else_of_a_site(config, host, five):
    seen = []
    sizes = []

    def listen(message, parts):
        seen.append((kind_of(message), unpack(parts[OWN])))
        sizes.append(sum(map(len, parts.values())))
        assert SHARED not in parts or kind_of(message) == TRAIN
        return [Message(wrap(parts), reply_to=message)]

    five.twist.update(dict.fromkeys(NODES, listen))
    federation = host(config("fedavg", **options("fedavg", **SECURE)), [], None)
    record = federation.step()
    kinds = [kind for kind, _ in seen]
    assert [kinds.count(kind) for kind in (TRAIN, KEYS, SHARES, MASKED, UNMASK)] == [0, 5, 5, 5, 5]
    for kind, (tensors, header) in seen:
        if kind in (KEYS, SHARES, MASKED, UNMASK):
            assert header.keys() <= {"round", "keys", "shares"}
            assert tensors.keys() <= ({"masked", "kept in round"} if kind == MASKED else set())
    vectors = [tensors["masked"] for kind, (tensors, _) in seen if kind == MASKED]
    assert record.loss == {}
    assert record.traffic["up_floats"] == sum(map(len, vectors))
    # All but what enrolment and scoring took: the four phases, with five answers each.
    phases = (KEYS, SHARES, MASKED, UNMASK)
    sent = [size for (kind, _), size in zip(seen, sizes, strict=True) if kind in phases]
    assert record.traffic["up_bytes"] == sum(sent)
    # Every vector looks like random whole numbers: as many are negative as positive.
    for vector in vectors:
        assert 0.45 < float((vector < 0).double().mean()) < 0.55


@pytest.mark.parametrize("phase", [KEYS, SHARES, MASKED, UNMASK])
def test_a_site_may_be_lost_in_any_phase(phase, config, host, five):
    lost_in(five, 14, phase)
    federation = host(config("fedavg", **options("fedavg", **SECURE)), [], None)
    before = federation.state
    record = federation.step()
    failed = [failure["client"] for failure in record.failed]
    # After its vector has come, a site is in the sum.
    assert failed == ([] if phase == UNMASK else [3])
    assert record.status == "ok"
    name = MODEL + "head.weight"
    assert not torch.equal(federation.state[name], before[name])


def test_a_sum_of_too_few_sites_is_not_revealed(config, host, five):
    for node in (13, 14):
        lost_in(five, node, MASKED)
    federation = host(config("fedavg", **options("fedavg", **SECURE)), [], None)
    record = federation.step()
    assert {failure["client"] for failure in record.failed} == {0, 1, 2, 3, 4}
    assert any("3 of 5 sites stayed; it takes 4" in one["reason"] for one in record.failed)
    assert record.privacy["releases"] == 1


def test_a_site_gives_no_single_reply_in_a_secure_run(config, host, five):
    federation = host(config("fedavg", **options("fedavg", **SECURE)), [], None)
    engine = federation.engine
    plain = config("fedavg", **options("fedavg", **PRIVATE))
    federation.step()
    asked = next(message for message in five.seen if kind_of(message) == MASKED)
    parts = unwrap(asked.content)
    tensors, header = unpack(parts[SHARED])
    from cafedcl.core.tensors import pack

    site, client = five.sites[asked.metadata.dst_node_id]
    forged = {**parts, SHARED: pack(tensors, {**header, "kind": TRAIN})}
    _, answer = unpack(site.answer(forged, client)[OWN])
    assert "a single reply is not given" in answer["error"]
    # Neither does it mask twice with the same keys.
    _, answer = unpack(site.answer(parts, client)[OWN])
    assert "they came twice" in answer["error"]
    assert engine.take_sum() is None
    assert not plain.privacy.secure


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine__name": "reference"}, "use it with `cafedcl deploy run`"),
        ({"privacy__quantile": 0.5}, "sites clip their own updates"),
        ({"privacy__kind": "none", "privacy__noise": 1.0}, "the privacy 'none' does not use it"),
    ],
)
def test_what_cannot_be_summed_securely_is_refused_in_one_line(more, message, config, digits):
    from cafedcl.federation.rounds import Federation
    from cafedcl.task.build import prepare

    with pytest.raises(CafedclError, match=message) as error:
        Federation(prepare(config("fedavg", **{**SECURE, **more}), digits))
    assert "\n" not in str(error.value)
