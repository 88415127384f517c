import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from capturing import sent, with_sent

import cafedcl
from cafedcl import api
from cafedcl.config.sections import Config
from cafedcl.core.contract import Batch, Failure, Job, Reply, Visit
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import MODEL, Tensors, floats, nbytes
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation import rounds
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation
from cafedcl.functional.contrast import unit
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models.base import Network
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve


def small(name: str = "cafedcl", /, **sections: dict[str, Any]) -> Config:
    """Six clients, a tiny MLP, one short epoch: a round takes a few hundredths of a second."""
    tables: dict[str, dict[str, Any]] = {
        "method": {"name": name},
        "model": {"name": "mlp", "width": 0.2},
        "train": {"epochs": 1, "iterations": 2},
        "federation": {"clients": 6, "rounds": 3},
        "engine": {"workers": 1, "stack": 1},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return resolve(tables)


def lines(federation: Federation) -> list[str]:
    """The metrics as they are written, without the seconds."""
    return [json.dumps({**record.line(), "seconds": None}) for record in federation.history]


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Equal to the bit, NaN included."""
    return a.keys() == b.keys() and all(
        a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a
    )


def finish(config: Config) -> Federation:
    with Federation(config) as federation:
        federation.run()
    return federation


@cache
def finished(method: str = "cafedcl") -> Federation:
    """A finished run that tests compare others with; they leave it as it is."""
    return finish(small(method))


METHODS = ["cafedcl", "central", "fedavg", "fedproto", "local"]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(method: str) -> None:
    first, second = finished(method), finish(small(method))
    assert lines(first) == lines(second)
    assert same_bits(first.snapshot()[0], second.snapshot()[0])


def test_another_seed_gives_other_bits() -> None:
    assert lines(finished()) != lines(finish(small(run={"seed": 1})))


@pytest.mark.parametrize("method", ["cafedcl", "fedproto"])
def test_worker_processes_give_the_same_bits_as_serial(method: str) -> None:
    serial, parallel = finished(method), finish(small(method, engine={"workers": 2}))
    assert lines(serial) == lines(parallel)
    assert same_bits(serial.snapshot()[0], parallel.snapshot()[0])


class Shuffled(ReferenceEngine):
    """Works off the jobs in reverse order."""

    def train(self, jobs: Iterable[Job]) -> Results:
        yield from super().train(list(jobs)[::-1])


def test_the_order_of_clients_changes_nothing() -> None:
    setup = prepare(small())
    reversed_ = Federation(setup, engine=Shuffled(setup.task))
    reversed_.run()
    assert lines(reversed_) == lines(finished())


class Listening(ReferenceEngine):
    """Keeps the replies it gives."""

    def train(self, jobs: Iterable[Job]) -> Results:
        self.replies = {
            result.up.client: result for result in super().train(jobs) if isinstance(result, Reply)
        }
        yield from self.replies.values()


def test_a_client_that_drops_out_changes_no_draw_of_another() -> None:
    replies = []
    for drop in ([], ["0:2"]):
        setup = prepare(small(federation={"drop": drop}))
        engine = Listening(setup.task)
        Federation(setup, engine=engine).step()
        replies.append(engine.replies)
    everyone, without = replies
    assert everyone.keys() - without.keys() == {2}
    assert all(same_bits(sent(everyone[client].up), sent(without[client].up)) for client in without)


def test_participants_and_dropouts_do_not_depend_on_what_happened_before() -> None:
    config = small(federation={"participation": 0.5, "dropout": 0.4, "rounds": 20})
    federation = Federation(config)
    forwards = [federation.sample(t) for t in range(20)]
    assert forwards[::-1] == [federation.sample(t) for t in reversed(range(20))]
    assert {len(sampled) for sampled, _ in forwards} == {3}
    dropped = sum(len(out) for _, out in forwards)
    assert 10 < dropped < 40
    assert len({tuple(sampled) for sampled, _ in forwards}) > 5


def test_dropped_clients_cost_a_download_but_send_nothing() -> None:
    federation = finish(small("fedavg", federation={"drop": ["1:0,3"]}))
    whole, partly = federation.history[0], federation.history[1]
    assert partly.dropped == [0, 3]
    assert partly.participants == list(range(6))
    assert partly.traffic["down_bytes"] == whole.traffic["down_bytes"]
    assert partly.traffic["up_bytes"] * 6 == whole.traffic["up_bytes"] * 4


def test_a_round_with_too_few_replies_is_skipped_and_leaves_everything_as_it_was() -> None:
    with Federation(small(federation={"drop": ["1:0,1,2"], "min_replies": 4})) as federation:
        federation.step()
        before, _ = federation.snapshot()
        record = federation.step()
        assert record.status == "skipped"
        assert same_bits(before, federation.snapshot()[0])
        assert federation.step().status == "ok"


def test_a_server_step_that_gives_nan_is_rejected_and_named() -> None:
    """FedTGP's server diverges at such a learning rate; every later round would have failed too."""
    diverging = small("fedtgp", method={"lr": 1e30, "epochs": 3}, train={"clip": 0.0})

    class Notices(Callback):
        said: ClassVar[list[str]] = []

        def noticed(self, federation: Federation, message: str) -> None:
            self.said.append(message)

    with Federation(diverging, [Notices()]) as federation:
        before, _ = federation.snapshot()
        records = federation.run()
        assert [record.status for record in records] == ["skipped"] * 3
        assert all("the server's step gave NaN or Inf in '" in r.reason for r in records)
        assert not any(record.failed for record in records), "no client is to blame"
        assert same_bits(before, federation.snapshot()[0])
    assert "round 1: the server's step gave NaN" in Notices.said[0]


def test_everyone_may_drop_out_in_every_round() -> None:
    federation = finish(small(federation={"dropout": 1.0}))
    assert [record.status for record in federation.history] == ["skipped"] * 3
    initial = Federation(small())
    assert same_bits(federation.state, initial.state)


class Tampered(ReferenceEngine):
    """Spoils one client's replies."""

    spoil: Any
    victims = (1,)

    def attempt(self, job: Job) -> Reply | Failure:
        reply = super().attempt(job)
        if job.client in self.victims and isinstance(reply, Reply):
            return self.spoil(reply)  # type: ignore[no-any-return]
        return reply


def change(reply: Reply, **tensors: torch.Tensor | None) -> Reply:
    new = {**sent(reply.up), **tensors}
    return replace(reply, up=with_sent(reply.up, {k: v for k, v in new.items() if v is not None}))


def first_weight(reply: Reply) -> str:
    return next(name for name in sent(reply.up) if name.startswith(MODEL))


def absent_classes(reply: Reply) -> torch.Tensor:
    """As many classes as it lists, others than it has: the split is such that it lacks some."""
    listed = reply.up.tensors["classes"]
    lacking = [c for c in range(10) if c not in listed.tolist()]
    return torch.tensor(sorted([*listed.tolist()[1:], lacking[0]]))


SPOILS = {
    "NaN or Inf in 'model/": lambda r: change(
        r, **{first_weight(r): sent(r.up)[first_weight(r)] * torch.nan}
    ),
    "NaN or Inf in 'prototypes'": lambda r: change(
        r, prototypes=r.up.tensors["prototypes"] + torch.inf
    ),
    "has shape": lambda r: change(r, prototypes=r.up.tensors["prototypes"][:, :-1]),
    "'confidence' is missing": lambda r: change(r, confidence=None),
    "outside [0, inf]": lambda r: change(r, confidence=r.up.tensors["confidence"] - 2),
    "by its enrolment it lies in": lambda r: change(
        r, confidence=torch.ones_like(r.up.tensors["confidence"])
    ),
    "a row of length 8": lambda r: change(r, prototypes=8 * unit(r.up.tensors["prototypes"])),
    "of which it enrolled no image": lambda r: change(r, classes=absent_classes(r)),
    "its weights have a norm of": lambda r: change(
        r, **{first_weight(r): torch.full_like(sent(r.up)[first_weight(r)], 3e38)}
    ),
    "its note 'scatter' is not a number": lambda r: replace(
        r, up=replace(r.up, notes={"scatter": torch.zeros(10, dtype=torch.float8_e4m3fn)})
    ),
    "memory has 'model/x' in torch.float8": lambda r: replace(
        r, memory={"model/x": torch.zeros(2, dtype=torch.float8_e5m2)}
    ),
    "'hits', which was not asked for": lambda r: replace(
        r, correct={**r.correct, "hits": r.correct["tested"]}
    ),
    "its loss 'i2p' is not a number": lambda r: replace(
        r, up=replace(r.up, losses={"i2p": 10**400})
    ),
    "enrolled with": lambda r: replace(r, up=replace(r.up, samples=10**9)),
    "not class numbers in order": lambda r: change(r, classes=r.up.tensors["classes"].flip(0)),
    "lists a class twice": lambda r: change(
        r, classes=r.up.tensors["classes"].clamp(max=int(r.up.tensors["classes"][0]))
    ),
    "was not asked for": lambda r: change(r, surprise=torch.zeros(3)),
}


@pytest.fixture(scope="module")
def without_client_1() -> Federation:
    """A federation after a round in which client 1 drops out."""
    federation = Federation(small(federation={"drop": ["0:1"]}))
    federation.step()
    return federation


@pytest.mark.parametrize("reason", SPOILS)
def test_a_bad_reply_is_rejected_with_its_reason_and_the_round_goes_on(
    without_client_1: Federation, reason: str
) -> None:
    setup = prepare(small())
    engine = Tampered(setup.task)
    engine.spoil = SPOILS[reason]
    federation = Federation(setup, engine=engine)
    record = federation.step()
    assert record.status == "ok"
    assert [failure["client"] for failure in record.failed] == [1]
    assert reason in record.failed[0]["reason"]
    assert same_bits(federation.state, without_client_1.state), (
        "a rejected client must have no influence"
    )


def test_if_all_replies_are_bad_the_global_state_is_unchanged() -> None:
    setup = prepare(small())
    engine = Tampered(setup.task)
    engine.spoil, engine.victims = SPOILS["NaN or Inf in 'prototypes'"], tuple(range(6))
    federation = Federation(setup, engine=engine)
    before, _ = federation.snapshot()
    record = federation.step()
    assert record.status == "skipped"
    assert len(record.failed) == 6
    assert same_bits(before, federation.snapshot()[0])


class Fragile(FedAvg):
    """Fails on one client."""

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        if visit.client.index == 4:
            raise ZeroDivisionError("the disk of client 4 is on fire")
        return super().loss(model, batch, visit)


def test_an_exception_in_a_client_is_recorded_and_the_round_goes_on() -> None:
    setup = prepare(small("fedavg"))
    setup = replace(
        setup, task=replace(setup.task, method=Fragile(None, 10, setup.task.method.dim))
    )
    record = Federation(setup, engine=ReferenceEngine(setup.task)).step()
    assert record.status == "ok"
    ((client, reason),) = [(each["client"], each["reason"]) for each in record.failed]
    assert client == 4
    assert reason.startswith("ZeroDivisionError: the disk of client 4 is on fire (test_rounds.py, ")


def test_what_is_counted_is_what_is_sent() -> None:
    federation = Federation(small())
    down = federation.method.broadcast(federation.state)
    record = federation.step()
    assert record.traffic["down_floats"] == 6 * floats(down)
    assert record.traffic["down_bytes"] == 6 * nbytes(down)
    encoder = sum(v.numel() for k, v in federation.state.items() if k.startswith(MODEL))
    held = int((federation.counts > 0).sum())
    assert record.traffic["up_floats"] == 6 * encoder + held * (federation.method.dim + 1)


def test_nothing_travels_without_a_federation() -> None:
    for method in ("local", "central"):
        record = Federation(small(method)).step()
        assert {
            record.traffic[name] for name in ("up_bytes", "down_bytes", "up_floats", "down_floats")
        } == {0}


def test_methods_without_a_server_model_have_no_server_score() -> None:
    for method in ("local", "fedproto"):
        record = Federation(small(method)).step()
        assert record.server is None
        assert record.own is not None
        assert record.own["accuracy"] is not None


def test_central_training_is_fedavg_with_one_client_that_holds_everything() -> None:
    one = {"clients": 1, "rounds": 2}
    central, fedavg = (
        finish(small("central", federation=one)),
        finish(small("fedavg", federation=one)),
    )
    assert same_bits(central.state, fedavg.state)


def test_central_training_sees_every_clients_images_in_batches_of_an_average_client() -> None:
    federation = Federation(small("central"))
    task = federation.task
    assert len(task.clients.shards) == 1
    assert int(task.clients.shards.counts.sum()) == int(federation.counts.sum())
    assert task.schedule.batch_size(10**6) == -(-round(float(federation.counts.sum()) / 6) // 2)


def test_evaluations_come_as_often_as_asked_and_always_at_the_end() -> None:
    federation = finish(small(federation={"rounds": 5}, evaluate={"every": 2, "own_every": 3}))
    assert [record.server is not None for record in federation.history] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert [record.own is not None for record in federation.history] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_the_model_is_scored_while_notes_are_gathered_and_before_the_loop_looks_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, predict, notes = list[str](), ReferenceEngine.predict, rounds.gather_notes

    def begin(engine: ReferenceEngine, tensors: Tensors) -> Pending:
        events.append("begun")
        wait = predict(engine, tensors)
        return lambda: (events.append("waited for"), wait())[1]

    monkeypatch.setattr(ReferenceEngine, "predict", begin)
    monkeypatch.setattr(
        rounds, "gather_notes", lambda *given: (events.append("noted"), notes(*given))[1]
    )
    with Federation(small()) as federation:
        loop = federation.loop
        federation.loop = lambda *details: (events.append("looped"), loop(*details))[1]
        record = federation.step()
    assert events == ["begun", "noted", "waited for", "looped"]
    assert record.server is not None
    assert {"notes/confidence", "loop/drift"} <= record.tables.keys()


def test_under_partial_participation_own_scores_are_those_of_each_clients_last_visit() -> None:
    federation = Federation(small(federation={"participation": 0.5, "rounds": 6}))
    visited: dict[int, int] = {}
    for _ in range(6):
        record = federation.step()
        visited |= dict.fromkeys(record.participants, record.round)
    assert federation.own["round"].tolist() == [visited.get(client, -1) for client in range(6)]
    scored = ~federation.own["all/score"].isnan()
    assert scored.tolist() == [client in visited for client in range(6)]


def test_the_pfllib_protocol_tests_every_client_on_a_quarter_of_its_own_images() -> None:
    federation = Federation(small(evaluate={"protocol": "pfllib"}))
    shards = federation.task.clients.shards
    for k in range(6):
        whole = len(shards.train[k]) + len(shards.validation[k]) + len(shards.test[k])
        assert abs(len(shards.test[k]) / whole - 0.25) < 0.1
    seen = torch.cat([*shards.train, *shards.validation, *shards.test])
    assert len(seen.unique()) == len(seen) == 1797
    record = federation.step()
    assert record.server is not None
    sizes = torch.tensor([float(len(part)) for part in shards.test])
    weighted = (record.tables["server/clients"] * sizes).sum() / sizes.sum()
    assert float(weighted) == pytest.approx(record.server["accuracy"], abs=1e-6)


def test_a_fixed_batch_size_and_the_double_decay_are_honoured() -> None:
    task = Federation(
        small(train={"batch_size": 7, "lr_decay_in_round": True, "lr": 0.2, "lr_decay": 0.5})
    ).task
    assert task.schedule.batch_size(1000) == 7
    assert task.schedule.learning_rate(2, 1) == pytest.approx(0.2 * 0.5**3)
    paper = Federation(small(train={"iterations": 10})).task
    assert [paper.schedule.batch_size(n) for n in (1, 10, 11, 250)] == [1, 1, 2, 25]
    assert paper.schedule.learning_rate(3, 4) == pytest.approx(0.1 * 0.998**3)


class Diary(Callback):
    """Writes down what it sees."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def round_began(self, federation: Federation, clients: int) -> None:
        self.events.append(f"began {federation.round} with {clients}")

    def client_done(self, federation: Federation, client: int, failure: Failure | None) -> None:
        self.events.append(f"client {client} {'failed' if failure else 'ok'}")

    def round_done(self, federation: Federation, record: Record) -> None:
        self.events.append(f"done {record.round}")


def test_callbacks_see_every_round_and_every_client() -> None:
    diary = Diary()
    with Federation(small(federation={"clients": 2, "rounds": 2}), [diary]) as federation:
        federation.run()
    one = ["client 0 ok", "client 1 ok"]
    assert diary.events == ["began 0 with 2", *one, "done 0", "began 1 with 2", *one, "done 1"]


class Misspelt(Diary):
    def on_round_done(self, federation: Federation, record: Record) -> None:
        """Nobody calls this."""


class WithAHelper(Diary):
    @property
    def client(self) -> int:
        raise AttributeError("only while a run is under way")

    def summary(self) -> str:
        return "a helper whose name is like that of no event"


def test_a_misspelt_event_is_refused() -> None:
    with pytest.raises(CafedclError, match=r"Misspelt.on_round_done: there is no"):
        Federation(small(), [Misspelt()])
    Federation(small(), [WithAHelper()])


def test_a_snapshot_brings_a_federation_back_bit_for_bit() -> None:
    whole, second = (Federation(small("fedproto", federation={"rounds": 4})) for _ in range(2))
    whole.step()
    whole.step()
    second.restore(*whole.snapshot())
    whole.run()
    second.run()
    assert lines(second) == lines(whole)[2:]
    assert same_bits(second.snapshot()[0], whole.snapshot()[0])


class StopAfter(Callback):
    """Ends a run after its second round."""

    def round_done(self, federation: Federation, record: Record) -> None:
        if record.round == 1:
            raise StopIteration("good enough")


def test_a_callback_can_stop_a_run(tmp_path: Path) -> None:
    federation = Federation(small(federation={"rounds": 4}), [StopAfter()])
    assert [record.round for record in federation.run()] == [0, 1]
    assert not federation.finished
    run = api.start(small(federation={"rounds": 4}), tmp_path / "run", [StopAfter()])
    assert len(run.records) == 2
    assert len(cafedcl.load(tmp_path / "run").records) == 2, "what was done is saved"
    assert len(api.resume(tmp_path / "run").records) == 4, "and can be resumed"


def test_a_methods_stop_iteration_is_an_error_and_not_the_end_of_the_run(monkeypatch) -> None:
    federation = Federation(small("fedavg"))
    monkeypatch.setattr(type(federation.method), "weigh", lambda _, ups: next(iter(())))
    with pytest.raises(StopIteration):
        federation.run()


def test_own_models_are_also_scored_with_what_clients_know_of_their_labels(tiny):
    federation = tiny("fedavg", split__kind="dirichlet", split__classes=2)
    record = federation.step()
    task, client = federation.task, record.participants[0]
    counts = task.clients.shards.counts[client].double()
    expected = (counts / counts.sum()).log()
    torch.testing.assert_close(task.prior(client).double(), expected)
    (reply,) = federation.train(federation.down(), [client])
    weights = {**task.initial, **reply.up.model}
    task.network.load_state_dict(weights)
    x, y = task.clients.test_set(None)
    with torch.no_grad():
        scores = task.network.eval()(task.clients.data.images(x))
    right = y[(scores + expected).argmax(1) == y]
    assert reply.correct["prior"].tolist() == torch.bincount(right, minlength=10).tolist()
    assert {"prior_mean", "prior_std", "prior_worst"} <= record.own.keys()


def test_a_method_whose_own_scores_have_the_prior_does_not_get_it_twice(tiny):
    plain, knowing = tiny("cafedcl").task, tiny("cafedcl", method__calibrate=1.0).task
    held = plain.clients.shards.counts[0] > 0
    assert (plain.prior(0)[held] < 0).all()
    assert (knowing.prior(0)[held] == 0).all()
    assert (knowing.prior(0)[~held] == -torch.inf).all()


def test_a_checkpoint_without_a_kind_of_own_scores_can_be_gone_on_from(tiny):
    """Such as one of an earlier version."""
    first, second = tiny("fedavg"), tiny("fedavg")
    first.step()
    tensors, header = first.snapshot()
    old = {name: value for name, value in tensors.items() if not name.startswith("own/prior/")}
    second.restore(old, header)
    record = second.step()
    assert 0 < record.own["prior_mean"] <= 1


@pytest.mark.parametrize("engine", ["reference", "cpu", "cuda"])
def test_own_models_are_scored_on_a_part_of_the_test_images(engine: str) -> None:
    """And only they: the server's model and the training stay as they were."""
    records = []
    for number in (0, 50):
        config = small(
            evaluate={"own_images": number}, engine={"name": engine, "device": "cpu", "stack": 1}
        )
        with Federation(config) as federation:
            records.append(federation.step())
            labels = federation.task.clients.test_labels(0)
    whole, part = records
    assert 45 <= len(labels) <= 55
    assert len(labels.unique()) == 10
    assert part.server == whole.server
    assert part.own is not None
    assert whole.own is not None
    assert part.own["accuracy"] == pytest.approx(whole.own["accuracy"], abs=0.2)
    images = part.own["accuracy"] * len(labels) * len(part.participants)
    assert images == pytest.approx(round(images), abs=1e-3), "a share of the chosen images"


def test_clients_with_test_images_of_their_own_use_all_of_them() -> None:
    with pytest.raises(CafedclError, match="own_images = 5: under the protocol pfllib"):
        small(evaluate={"own_images": 5, "protocol": "pfllib"})
