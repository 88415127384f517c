"""Sites with their own images: the same methods, and the same Federation, without an image at the
server.
"""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message
from sites import HOLDS, settings
from typer.testing import CliRunner

from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.deploy.flower.records import OWN, SHARED, unwrap, wrap
from cafedcl.deploy.flower.server_app import GridHost, stored_population
from cafedcl.deploy.flower.site import Site
from cafedcl.federation import runs
from cafedcl.federation.run_folder import RunFolder
from cafedcl.methods import find_method, method_names
from cafedcl.terminal.overview import describe_round

METHODS = [name for name in method_names() if not find_method(name)[0].pooled]


def test_sites_of_a_private_run_tell_no_notes_and_are_hidden_by_noise(config, host, places):
    private = {"privacy__kind": "clients", "method__data_scale": "saturating"}
    federation = host(config("cafedcl", **settings(federation__rounds=2, **private)), [], None)
    records = federation.run()
    assert [record.privacy["releases"] for record in records] == [1, 2]
    assert records[0].privacy["epsilon"] < records[1].privacy["epsilon"]
    assert all((record.failed, record.traffic["notes_bytes"]) == ([], 0) for record in records)
    # Nobody can predict the noise of a deployment.
    again = federation.privacy
    assert not torch.equal(again.noise(9, 0), again.noise(9, 0))


@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [
        (
            "cafedcl:best",
            "clients",
            "the server step of cafedcl:best does not consist of weighted means",
        ),
        ("cafedcl", "clients", "clients of cafedcl use the counts of all clients"),
        ("fedlc", "records", "the loss of fedlc is not a mean over single images"),
    ],
)
def test_privacy_that_a_method_cannot_have_is_refused_before_a_site_is_asked(
    method, kind, words, config, host, places, net
):
    with pytest.raises(CafedclError, match=f"^privacy.kind = {kind}: {words}"):
        host(config(method, **settings(privacy__kind=kind)), [], None)
    assert not net.seen


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_where_the_data_are(method, config, host, places):
    few = {"method__epochs": 3} if method == "fedtgp" else {}
    federation = host(config(method, **settings(federation__rounds=2, **few)), [], None)
    records = federation.run()
    assert [record.failed for record in records] == [[], []]
    scores = records[-1].own
    assert 0 <= scores["client_worst"] <= scores["client_mean"] <= 1
    assert (records[-1].server is not None) == federation.task.has_server_model


def test_tail_augmentation_works_where_the_data_are(config, host, places):
    federation = host(config(**settings(federation__rounds=2, augment__name="resample")), [], None)
    assert [record.failed for record in federation.run()] == [[], []]


def test_the_server_model_is_scored_at_every_site_on_its_own_part(config, host, places, net):
    told = {"release__fewest": 1, "release__counts": "exact"}
    federation = host(config(**settings(**told)), [], None)
    federation.run()
    right = np.zeros((3, 10))
    tested = np.zeros((3, 10))
    for client, (node, name) in enumerate(zip((11, 12, 13), HOLDS, strict=True)):
        engine = net.sites[node][0]._engine[1]
        _, y = engine.task.clients.test_set(None)
        called = engine.predict(federation.state)()
        assert name == federation.about["flower"]["sites"][client]
        for label, guess in zip(y.tolist(), called.tolist(), strict=True):
            tested[client, label] += 1
            right[client, label] += label == guess
    scores = federation.history[-1].server
    clients = right.sum(1) / tested.sum(1)
    assert scores["accuracy"] == pytest.approx(right.sum() / tested.sum())
    assert scores["balanced"] == pytest.approx(np.mean(right.sum(0) / tested.sum(0)))
    assert scores["client_mean"] == pytest.approx(clients.mean())
    assert scores["client_std"] == pytest.approx(clients.std())
    assert scores["client_worst"] == pytest.approx(clients.min())


def test_sites_do_not_tell_how_many_test_images_they_have(config, host, places, net):
    federation = host(config(**settings()), [], None)
    federation.run()
    told = federation.engine.survey(federation.state)["tested"]
    assert told.sum() > 0
    assert not (told % 10).any()


@pytest.mark.parametrize("counts", ["exact", "rounded", "withheld"])
def test_a_site_cannot_decide_the_scores_with_test_images_that_it_did_not_enrol_with(
    counts, config, host, places, net, journal
):
    def twist(asked, parts):
        """Count a thousand times as many test images of every class as there are."""
        part = SHARED if SHARED in parts else OWN
        tensors, header = unpack(parts[part])
        names = {"tested", "all", *(name for name in tensors if name.startswith("correct/"))}
        many = {name: 1000 * tensors[name] for name in names & tensors.keys()}
        return [reply(asked, {**parts, part: pack({**tensors, **many}, header)})]

    chosen = settings(federation__rounds=1, release__counts=counts, release__fewest=1)
    federation = host(config(**chosen), [], None)
    assert federation.task.most_tested.sum(1).all()
    net.twist[13] = twist
    federation.run()
    (failure,) = federation.history[0].failed
    assert failure["client"] == 2
    assert "its test result counts more images than it enrolled with" in failure["reason"]
    told = federation.engine.survey(federation.state)["tested"]
    assert told.sum(1).bool().tolist() == [True, True, False]


def test_a_resumed_run_knows_how_many_test_images_sites_enrolled_with(
    config, host, places, net, journal
):
    federation = host(config(**settings()), [], None)
    runs.start(config(**settings(federation__rounds=1)), journal.path, [], (), host)
    stored = stored_population(RunFolder(journal.path)).tested
    assert stored.any()
    assert torch.equal(stored, federation.task.tested)


def test_a_server_with_test_images_scores_on_them_and_clients_still_on_their_own(
    config, host, places, digits
):
    alone = host(config(**settings(federation__rounds=1)), [], None)
    alone.run()
    federation = host(
        config(**settings(federation__rounds=1, data__test=str(places / "test.npz"))), [], None
    )
    federation.run()
    scores = federation.history[-1].server
    before = alone.history[-1].server
    called = federation.engine.predict(federation.state)()
    right = (called == digits.test_y).double().mean()
    assert scores["accuracy"] == pytest.approx(float(right), rel=1e-6)
    assert scores["client_mean"] == before["client_mean"]
    assert scores["accuracy"] != before["accuracy"]


def test_a_site_with_rgb_images_can_train_with_sites_whose_images_are_grey(
    config, host, places, net, same
):
    grey = host(config("fedavg", **settings()), [], None)
    grey.step()
    (site,) = [site for site, _ in net.sites.values() if site.name == list(HOLDS)[1]]
    stored = dict(np.load(site.data))
    site.data = str(places / "rgb.npz")
    np.savez(site.data, y=stored["y"], x=np.repeat(stored["x"], 3, axis=1))
    with pytest.raises(CafedclError, match=r"set data.colours = grey or rgb to convert all"):
        host(config("fedavg", **settings()), [], None)
    converted = host(config("fedavg", **settings(data__colours="grey")), [], None)
    converted.step()
    # Three equal channels are the grey that they came from, to the bit.
    same(converted, grey)


def test_no_image_label_or_prediction_leaves_a_site(config, host, places, net):
    """Every tensor in every answer is a weight, one row per class, or one number per class."""
    answers = []
    for node in net.sites:
        net.twist[node] = lambda asked, parts: answers.append(parts) or [reply(asked, parts)]
    federation = host(config(**settings(federation__rounds=2)), [], None)
    federation.run()
    weights = {tuple(value.shape) for value in federation.task.initial.values()}
    dim = federation.method.dim
    seen = set()
    for parts in answers:
        for part in parts.values():
            tensors, _ = unpack(part)
            for name, value in tensors.items():
                seen.add(name)
                shape = tuple(value.shape)
                held = [len(HOLDS[site]) for site in HOLDS]
                allowed = {(10,), (1,), (), *((n,) for n in held), *((n, dim) for n in held)}
                assert shape in allowed | weights, name
    assert {"counts", "up/prototypes", "correct/all", "tested"} <= seen
    assert OWN in answers[0]
    assert SHARED not in answers[0]


def reply(asked, parts):
    return Message(wrap(parts), reply_to=asked)


def test_a_run_goes_on_with_a_site_missing_and_knows_it_again(config, host, journal, places, net):
    chosen = config("moon", **settings(federation__rounds=2, engine__deadline=1.0))
    runs.start(chosen, journal.path, [], (), host)
    table = (journal.path / "config.toml").read_text()
    (journal.path / "config.toml").write_text(table.replace("rounds = 2", "rounds = 4"))
    gone = net.sites.pop(12)
    net.sites.pop(13)
    net.sites[50] = net.sites.pop(11)
    net.sites[51] = gone
    finished = runs.resume(journal.path, [], print, host)
    assert [[failure["client"] for failure in line["failed"]] for line in finished.records] == [
        [],
        [],
        [2],
        [2],
    ]


def test_predicting_with_a_client_says_that_its_model_is_at_its_site(config, host, journal, places):
    runs.start(config("fedproto", **settings(federation__rounds=1)), journal.path, [], (), host)
    with pytest.raises(CafedclError, match="at its site"):
        runs.load(journal.path).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), client=0)


def test_a_site_without_data_says_so(config, host, net, journal):
    with pytest.raises(CafedclError, match="0 of 3 sites"):
        host(config(**settings(engine__deadline=0.2)), [], None)
    assert "set data in this site" in (journal.path / "events.jsonl").read_text()


def test_own_data_and_a_simulated_run_do_not_go_together(config, host, places, journal):
    with pytest.raises(CafedclError, match="0 of 3 sites"):
        host(config(engine__deadline=0.2), [], None)
    assert "this site has its own data" in (journal.path / "events.jsonl").read_text()


def test_requests_are_the_same_for_every_site_but_for_a_few_bytes(config, host, places, net):
    """What is shared travels to the SuperLink once."""
    host(config(**settings(federation__rounds=1)), [], None).run()
    trains = [
        unwrap(message.content) for message in net.seen if message.metadata.message_type == "train"
    ]
    assert len({parts[SHARED] for parts in trains}) == 1
    assert all(len(parts[OWN]) < 300 for parts in trains)


def test_a_site_that_claims_more_than_the_deployment_allows_does_not_take_part(
    config, net, places, journal, deployment
):
    (deployment / "server.toml").write_text("[server]\nimages_per_class = 1\n")
    host = GridHost(net, journal.say, str(deployment))
    with pytest.raises(CafedclError, match="0 of 3 sites"):
        host(config(**settings(engine__deadline=0.2)), [], None)
    said = (journal.path / "events.jsonl").read_text()
    assert "images of a class, and the deployment's images_per_class is 1" in said


def test_an_enrolment_that_cannot_be_computed_with_is_that_sites_problem(
    config, net, places, journal, deployment
):
    def twist(asked, parts):
        tensors, header = unpack(parts[OWN])
        strange = tensors["mean"].to(torch.float8_e4m3fn)
        answer = {**parts, OWN: pack({**tensors, "mean": strange}, header)}
        return [Message(wrap(answer), reply_to=asked)]

    net.twist[13] = twist
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=0.2)), [], None
        )
    assert "cannot take part" in (journal.path / "events.jsonl").read_text()


def test_a_site_is_who_its_key_says_whatever_it_calls_itself(
    config, net, places, journal, deployment
):
    """Node 13 has the name c, but the key of d."""
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "99", "d": "13"}')
    host = GridHost(net, journal.say, str(deployment))
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        host(config(**settings(engine__deadline=0.2)), [], None)
    said = (journal.path / "events.jsonl").read_text()
    assert "site d cannot take part: its name is c, but it has another site's key" in said
    net.sites[99] = net.sites.pop(13)
    host(config(**settings()), [], None)


@pytest.mark.parametrize("own", [True, False])
def test_a_node_without_a_key_of_a_site_is_not_even_asked(
    own, config, net, places, journal, deployment
):
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "99"}')
    host = GridHost(net, journal.say, str(deployment))
    chosen = settings() if own else {}
    with pytest.raises(CafedclError, match="of 3 sites"):
        host(config(**{**chosen, "engine__deadline": 0.2}), [], None)
    said = (journal.path / "events.jsonl").read_text()
    assert "node 13 cannot take part: it has no key of a site" in said
    assert 13 not in {message.metadata.dst_node_id for message in net.seen}


def test_a_site_with_too_few_test_images_for_scores_is_named(config, host, places, journal):
    x = np.arange(32 * 64, dtype=np.uint8).reshape(32, 8, 8)
    y = np.array(["3", "4"] * 16)
    np.savez(places / "b.npz", x_train=x[:28], y_train=y[:28], x_test=x[28:], y_test=y[28:])
    federation = host(config(**settings(federation__rounds=1)), [], None)
    assert federation.step().server["client_missing"] == 1
    said = (journal.path / "events.jsonl").read_text()
    assert "no scores from b: no class has 5 test images there" in said


def test_scores_without_a_site_are_marked(config, host, net, places):
    federation = host(config(**settings(federation__rounds=2)), [], None)
    whole = federation.step()
    assert "client_missing" not in whole.server
    del net.sites[12]
    part = federation.step()
    assert part.server["client_missing"] == 1
    assert "(scored without 1 of the sites)" in describe_round(part.line())


def test_who_comes_and_goes_is_said(config, host, net, places, journal):
    federation = host(config(**settings(federation__rounds=3)), [], None)
    federation.step()
    gone = net.sites.pop(12)
    federation.step()
    net.sites[77] = gone
    federation.step()
    notices = [
        json.loads(line)["message"]
        for line in (journal.path / "events.jsonl").read_text().splitlines()
    ]
    assert sorted(notices[:3]) == [f"site {name} connected" for name in HOLDS]
    assert notices[3:] == ["site b disconnected", "site b connected"]
    assert [[failure["client"] for failure in record.failed] for record in federation.history] == [
        [],
        [1],
        [],
    ]


def test_a_deployed_run_is_shown_reported_and_predicted_with_like_any_other(
    config, host, places, journal, digits
):
    runs.start(config(**settings(federation__rounds=2)), journal.path, [], (), host)
    shown = CliRunner().invoke(app, ["show", str(journal.path), "--split"])
    assert shown.exit_code == 0, shown.exception
    assert "2 of 2 rounds" in shown.stdout
    page = journal.path / "report.html"
    made = CliRunner().invoke(app, ["report", str(journal.path), "--out", str(page)])
    assert made.exit_code == 0, made.exception
    assert page.stat().st_size > 10_000
    called = runs.load(journal.path).predict(digits.test_x[:200])
    labels = [str(label) for label in digits.test_y[:200].tolist()]
    assert np.mean([name == label for name, label in zip(called.names, labels, strict=True)]) > 0.3


def test_a_site_that_has_other_images_when_the_run_is_resumed_takes_no_part(
    config, host, places, net, journal
):
    """Its images were swapped for others while nobody trained."""
    runs.start(config("fedavg", **settings(federation__rounds=1)), journal.path, [], (), host)
    with np.load(places / "a.npz") as file:
        np.savez(places / "a.npz", x=file["x"][:-40], y=file["y"][:-40])
    net.sites[21] = (Site(places / "a", "a", str(places / "a.npz"), "cpu"), None)
    del net.sites[11]
    table = (journal.path / "config.toml").read_text()
    (journal.path / "config.toml").write_text(table.replace("rounds = 1", "rounds = 2"))
    finished = runs.resume(journal.path, [], print, host)
    events = (journal.path / "events.jsonl").read_text()
    assert "its images have changed since the run began" in events
    failed = [[failure["client"] for failure in line["failed"]] for line in finished.records]
    assert failed == [[], [0]]
