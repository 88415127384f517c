"""Scores of the last round that need all probabilities, and the calibration of its models."""

from dataclasses import replace

import pytest
import torch

from cafedcl.core.contract import Job
from cafedcl.core.tensors import ANCHORS, MODEL, under
from cafedcl.data.shards import ClientRows
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.final_scores import FinalScores, images_each
from cafedcl.federation.runs import _result
from cafedcl.methods.fedavg import FedAvg

FULL = {"auroc", "auprc", "sensitivity", "ece"}


def two_rounds(tiny, method: str, **settings):
    federation = tiny(method, **{"evaluate__full": True, **settings})
    return federation, [federation.step(), federation.step()]


def test_only_the_last_round_is_scored_in_full(tiny) -> None:
    _, (first, last) = two_rounds(tiny, "fedavg")
    for scores in (first.server, first.own):
        assert not FULL & scores.keys()
    for scores in (last.server, last.own):
        assert scores.keys() >= FULL
        assert all(0 <= scores[name] <= 1 for name in FULL)
    assert not any(name.startswith(("scores/", "calibration/")) for name in first.tables)


def test_full_scores_can_be_left_out(tiny) -> None:
    _, (_, last) = two_rounds(tiny, "fedavg", evaluate__full=False)
    assert not FULL & (last.server.keys() | last.own.keys())
    assert not any(name.startswith(("scores/", "calibration/", "wrong/")) for name in last.tables)


def test_the_servers_scores_are_those_of_its_probabilities(tiny) -> None:
    from sklearn.metrics import roc_auc_score

    federation, (_, last) = two_rounds(tiny, "cafedcl")
    method = federation.method
    network = federation.task.network
    network.load_state_dict(under(MODEL, federation.state))
    x, y = federation.task.clients.test_set(None)
    with torch.no_grad():
        images = federation.task.clients.data.images(x)
        scores = method.scores(network.eval(), images, under(ANCHORS, federation.state), {})
    p = scores.double().softmax(1)
    mean = roc_auc_score(y, p / p.sum(1, keepdim=True), multi_class="ovr")
    assert last.server["auroc"] == pytest.approx(mean, abs=1e-5)
    right = (p.argmax(1) == y).float().mean()
    bins = last.tables["scores/server/bins"]
    assert float(bins[:, 2].sum() / bins[:, 0].sum()) == pytest.approx(float(right))


def test_an_own_model_is_what_its_client_has_trained(tiny) -> None:
    """Reliability counts right predictions, as the client's own evaluation does."""
    _, (_, last) = two_rounds(tiny, "fedproto")
    bins = last.tables["scores/own/bins"]
    found = bins[:, :, 2].sum(1) / bins[:, :, 0].sum(1)
    part = last.participants
    assert found[part].tolist() == pytest.approx(
        last.tables["own/all/accuracy"][part].tolist(), abs=1e-6
    )
    assert found.isnan().sum() == 5 - len(part)
    assert f"calibration/own/{part[0]}/temperature" in last.tables


def test_a_client_without_test_images_has_no_scores(tiny) -> None:
    """Under pfllib, a client with one image of every class holds none of them out for tests."""
    federation = tiny("fedavg", evaluate__full=True, evaluate__protocol="pfllib")
    clients = federation.task.clients
    test = list(clients.shards.test)
    test[0] = test[0][:0]
    shards = replace(clients.shards, test=ClientRows.of(test))
    task = federation.task.with_clients(shards=shards)
    final = FinalScores(task, federation.config, federation.counts, frozenset(), due=True)
    jobs = [Job(client, federation.down(), {}, True) for client in (0, 1)]
    for reply in ReferenceEngine(task).train(jobs):
        final.add_own(reply, federation.down())
    scores, tables = final.clients()
    assert tables["scores/own/auroc"][0].isnan().all()
    assert not tables["scores/own/auroc"][1].isnan().all()
    assert 0 <= scores["auroc"] <= 1
    assert 0 <= scores["ece"] <= 1


def test_calibration_never_sees_a_test_image(tiny) -> None:
    federation, (_, last) = two_rounds(tiny, "fedavg")
    assert float(last.tables["calibration/server/temperature"]) > 0
    images = sum(map(len, federation.task.clients.shards.validation))
    assert int(last.tables["calibration/server/images"]) == images
    other = tiny("fedavg", evaluate__full=True)
    data = other.task.clients.data
    data.test_x.copy_(255 - data.test_x)
    try:
        other.step()
        again = other.step()
    finally:
        data.test_x.copy_(255 - data.test_x)
    for name, value in last.tables.items():
        if name.startswith("calibration/"):
            assert torch.equal(value, again.tables[name]), name


def test_the_calibrated_probabilities_are_scored_as_they_are_predicted(tiny) -> None:
    federation, (_, last) = two_rounds(tiny, "cafedcl:best")
    data = federation.task.clients.data
    said = _result(federation, None).predict(data.test_x)
    y = data.test_y
    probable = said.probabilities.argmax(1)
    assert last.server["probable_accuracy"] == pytest.approx(float((probable == y).float().mean()))
    found = [float((probable[y == label] == label).float().mean()) for label in range(10)]
    assert last.server["probable_balanced"] == pytest.approx(sum(found) / 10)
    assert last.server["accuracy"] == pytest.approx(float((said.labels == y).float().mean()))
    gap = 0.0
    confidence = said.probabilities.max(1).values
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        gap += abs(float((confidence - (probable == y).float())[inside].sum()))
    assert last.server["calibrated_ece"] == pytest.approx(gap / len(y), abs=1e-5)


def test_without_validation_images_nothing_is_calibrated(tiny) -> None:
    _, (_, last) = two_rounds(tiny, "fedavg", split__validation=0.0)
    assert not last.server.keys() & {"calibrated_ece", "probable_accuracy", "probable_balanced"}
    assert not any(name.startswith("calibration/") for name in last.tables)
    assert last.server["ece"] is not None


@pytest.mark.parametrize(("wrong", "stored"), [("auto", True), ("on", True), ("off", False)])
def test_the_most_wrong_images_are_stored_where_they_may_be_shown(tiny, wrong, stored) -> None:
    federation, (_, last) = two_rounds(tiny, "fedavg", store__wrong=wrong)
    assert ("wrong/images" in last.tables) == stored
    if not stored:
        return
    labels = last.tables["wrong/labels"]
    assert (labels != last.tables["wrong/predicted"]).all()
    rows = last.tables["wrong/rows"]
    assert torch.equal(federation.task.clients.data.test_y[rows], labels)
    assert torch.equal(federation.task.clients.data.test_x[rows], last.tables["wrong/images"])


def test_sites_do_not_show_their_images_by_default(tiny) -> None:
    store = tiny("fedavg").config.store
    assert store.shows_images("digits")
    assert not store.shows_images("sites")


def test_a_liar_has_no_own_scores(tiny) -> None:
    federation, (_, last) = two_rounds(
        tiny, "fedavg", attack__kind="sign-flip", attack__clients=2, federation__participation=1.0
    )
    bins = last.tables["scores/own/bins"]
    unknown = {client for client in range(5) if bins[client].isnan().all()}
    assert unknown == federation.attack.liars


def test_many_own_models_are_run_on_fewer_images_each() -> None:
    assert [images_each(clients) for clients in (1, 5, 20, 100)] == [2000, 2000, 500, 200]


def test_scores_that_are_no_numbers_are_told(tiny, monkeypatch) -> None:
    """The first class counts as predicted there, which looks like a model that learned nothing."""

    def without_the_first(self, model, x, anchors, memory):
        scores = model(x)
        scores[0] = torch.nan
        return scores

    assert not any("NaN" in notice for notice in two_rounds(tiny, "fedavg")[0].notices)
    monkeypatch.setattr(FedAvg, "scores", without_the_first)
    federation, _ = two_rounds(tiny, "fedavg")
    (notice,) = [notice for notice in federation.notices if "NaN" in notice]
    assert "among their scores, so they are assigned to the class '0'; look at" in notice
