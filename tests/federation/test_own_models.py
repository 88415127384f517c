"""Clients' own models that a run stores with ``store.own``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import OWN_MODEL
from cafedcl.data import Dataset
from cafedcl.federation import runs
from cafedcl.federation.result import Run
from cafedcl.federation.rounds import Federation
from cafedcl.methods import find_method, method_names

METHODS = [name for name in method_names() if not find_method(name)[0].pooled]
Tiny = Callable[..., Federation]


def own_accuracy(run: Run, digits: Dataset) -> float:
    """The mean accuracy of all clients' models on the complete test set."""
    right = [
        float((run.predict(digits.test_x, client=client).labels == digits.test_y).double().mean())
        for client in range(len(run.counts))
    ]
    return sum(right) / len(right)


@pytest.mark.parametrize("method", [*METHODS, "cafedcl:best"])
def test_the_stored_models_are_those_that_were_scored(
    method: str, tiny: Tiny, digits: Dataset
) -> None:
    federation = tiny(method, federation__participation=1.0, store__own=True)
    federation.run()
    scores = federation.history[-1].own
    assert scores is not None
    run = runs._result(federation, None)
    assert own_accuracy(run, digits) == pytest.approx(scores["accuracy"], abs=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedrod"])
def test_own_models_need_not_be_scored(method: str, tiny: Tiny) -> None:
    scored = tiny(method, federation__participation=1.0)
    unscored = tiny(method, federation__participation=1.0, evaluate__own_every=0)
    for round in range(2):
        record = unscored.step()
        assert record.own is None
        assert record.server == scored.step().server, round
    for name, value in scored.state.items():
        assert torch.equal(value, unscored.state[name])


def test_a_run_in_which_nothing_would_be_scored_is_refused(tiny: Tiny) -> None:
    said = "own_every = 0: the method fedproto has no server model, .* use at least 1"
    with pytest.raises(CafedclError, match=said):
        tiny("fedproto", evaluate__own_every=0)
    tiny("central", evaluate__own_every=0)


def test_clients_that_were_not_in_the_last_round_keep_their_models(tiny: Tiny) -> None:
    federation = tiny("fedavg", federation__participation=0.5, store__own=True)
    federation.step()
    first = {client: dict(memory) for client, memory in federation.memories.items()}
    federation.step()
    absent = first.keys() - set(federation.history[-1].participants)
    assert absent
    for client in absent:
        for name, value in first[client].items():
            assert torch.equal(value, federation.memories[client][name])


def test_stored_models_are_not_sent_to_clients_and_change_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny("moon")
    storing = tiny("moon", store__own=True)
    plain.run()
    for _ in range(2):
        train = storing.engine.train

        def watched(jobs: Any, train: Any = train) -> Any:
            jobs = list(jobs)
            assert not any(name.startswith(OWN_MODEL) for job in jobs for name in job.memory)
            return train(jobs)

        monkeypatch.setattr(storing.engine, "train", watched)
        storing.step()
    for name, value in plain.state.items():
        assert torch.equal(value, storing.state[name])


def test_a_loaded_run_has_the_same_models(tiny: Tiny, digits: Dataset, tmp_path: Path) -> None:
    federation = tiny("cafedcl", federation__participation=1.0, store__own=True)
    path = tmp_path / "run"
    finished = runs.start(federation.config, path, [], ())
    loaded = runs.load(path)
    for client in range(len(loaded.counts)):
        one, other = finished.network(client).state_dict(), loaded.network(client).state_dict()
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert loaded.predict(digits.test_x[:3], client=1).probabilities.sum() == pytest.approx(3)


@pytest.mark.parametrize("method", ["fedavg", "cafedcl:best", "moon", "spherefed"])
def test_a_client_without_a_stored_model_is_not_given_the_servers(method: str, tiny: Tiny) -> None:
    federation = tiny(method)
    federation.run()
    run = runs._result(federation, None)
    with pytest.raises(CafedclError, match=r"client 0: .* stores no model .* store\.own=true"):
        run.network(0)


def test_a_client_that_never_took_part_has_no_model(tiny: Tiny) -> None:
    federation = tiny("fedavg", store__own=True)
    federation.step()
    (absent, *_) = set(range(5)) - set(federation.history[0].participants)
    with pytest.raises(CafedclError, match=f"client {absent}: .* it has not taken part"):
        runs._result(federation, None).network(absent)


def test_a_private_run_stores_no_models_of_clients(tiny: Tiny) -> None:
    private = {"privacy__kind": "records", "privacy__noise": 1.0}
    with pytest.raises(CafedclError, match=r"store.own: .* are not private"):
        tiny("fedavg", store__own=True, **private)


@pytest.mark.parametrize("every", [1, 3, 7])
def test_scores_are_of_every_clients_last_model_however_seldom_they_are_made(
    every: int, tiny: Tiny
) -> None:
    """Two of five clients reply in a round, so most are not asked in the one that is scored."""
    settings = {"federation__participation": 0.4, "federation__rounds": 7}
    federation = tiny("fedavg", evaluate__own_every=every, **settings)
    federation.run()
    last = {client: record.round for record in federation.history for client in record.participants}
    assert federation.own["round"].tolist() == [last.get(client, -1) for client in range(5)]
    always = tiny("fedavg", evaluate__own_every=1, **settings)
    always.run()
    assert federation.history[-1].own == always.history[-1].own
