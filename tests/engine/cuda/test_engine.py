import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from capturing import (
    EVERYONE,
    SHORT,
    UNEQUAL,
    Tiny,
    agreement,
    assert_near,
    assert_same,
    assert_same_records,
    captured,
    jobs_of,
    pair,
    sent,
    with_method,
)
from torch import nn

from cafedcl.augment import AUGMENTERS
from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Failure, Reply, Up
from cafedcl.core.errors import CafedclError
from cafedcl.core.flat import FlatNetwork
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda import client_slot as slot_module
from cafedcl.engine.cuda import engine as cuda_engine
from cafedcl.engine.cuda import queued_visit as visit_module
from cafedcl.engine.cuda.engine import CudaEngine, capture_obstacle
from cafedcl.engine.cuda.queued_visit import QueuedVisit
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.functional.metrics import KINDS
from cafedcl.methods import method_names
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models import Network
from cafedcl.task.build import prepare

pytestmark = pytest.mark.usefixtures("plain_kernels", "no_engine_outlives_its_test")


# against the reference engine


@pytest.mark.parametrize(
    ("method", "kind"),
    [("cafedcl", kind) for kind in AUGMENTERS]
    + [(name, "gaussian") for name in ("moon", "fedrcl", "fedproto")],
)
def test_tail_augmentation_is_that_of_the_reference_engine(
    tiny: Tiny, method: str, kind: str
) -> None:
    """To a relative 1e-5, with synthetic images that weigh less, in the prototypes too, and
    generators kept.
    """
    settings: dict[str, Any] = {"augment__name": kind, "augment__weight": 0.5, "train__lr": 0.03}
    settings |= {"federation__clients": 3}
    settings |= {"augment__steps": 3} if kind == "gan" else {}
    settings |= {"method__prototype_of": "augmented"} if method == "cafedcl" else {}
    if kind == "none":
        del settings["augment__weight"]
    one, other = pair(tiny, method, **settings, **UNEQUAL, **EVERYONE)
    records = one.step(), other.step()
    assert one.task.tail.synthetic_counts.any() == (kind != "none")
    assert_same(one, other, 1e-5)
    assert_same_records(*records, 1e-5)


@pytest.mark.parametrize("method", method_names())
def test_a_round_is_the_reference_engines_round(tiny: Tiny, method: str) -> None:
    """To a relative 1e-5 after one round, and 1e-4 after a visit more: padded batches sum in
    another order.
    """
    settings = {
        "federation__clients": 3,
        "train__epochs": 2,
        "train__lr": 0.03,
        **SHORT.get(method, {}),
    }
    one, other = pair(tiny, method, **settings, **UNEQUAL, **EVERYONE)
    assert one.method.pooled or len(other.engine.device_data.widths) > 1
    records = one.step(), other.step()
    assert_same(one, other, 1e-5)
    assert_same_records(*records, 1e-5)
    if one.task.has_server_model:
        assert (
            agreement(one.engine.predict(one.state)(), other.engine.predict(other.state)()) >= 0.99
        )
    clients = range(len(one.task.clients.shards))[-2:]
    replies = [
        {r.up.client: r for r in f.engine.train(jobs_of(f, *clients, evaluate=True))}
        for f in (one, other)
    ]
    for client in clients:
        here, there = (found[client] for found in replies)
        assert_near(sent(here.up), sent(there.up), 1e-4)
        assert_near(here.up.notes, there.up.notes, 1e-4)
        assert_near(here.memory, there.memory, 1e-4)
        assert here.up.losses == pytest.approx(there.up.losses, rel=1e-4, abs=1e-6)
        assert (
            here.up.samples == there.up.samples == int(one.task.clients.shards.counts[client].sum())
        )
        assert there.up.seconds > 0
        assert here.correct.keys() == there.correct.keys() == {"tested", *KINDS}
        tested = int(here.correct["tested"].sum())
        assert all(
            int((here.correct[name] - there.correct[name]).abs().sum()) <= tested / 100
            for name in here.correct
        )


# Options that do not touch each other share a run: either one's fault makes it another.
VARIANTS = {
    "momentum, and a rate that decays in a round": {
        "train__momentum": 0.9,
        "train__lr": 0.02,
        "train__lr_decay_in_round": True,
        "train__lr_decay": 0.7,
        "train__epochs": 3,
    },
    "no clipping and no decay, and no validation images": {
        "train__clip": 0.0,
        "train__weight_decay": 0.0,
        "split__validation": 0.0,
    },
    "hard clipping, and drop-outs": {
        "train__clip": 0.1,
        "federation__drop": ["0:1", "1:0,2"],
    },
    "one client in three": {
        "federation__participation": 0.34,
        "federation__clients": 9,
        "split__classes": 2,
    },
    "pfllib, and flips and crops": {
        "evaluate__protocol": "pfllib",
        "train__flip": True,
        "train__crop": 2,
    },
    "a fixed batch size, and small evaluation batches": {
        "train__batch_size": 80,
        "evaluate__batch": 37,
        **UNEQUAL,
        "split__classes": 2,
    },
    "more steps than a chain": {"train__iterations": 7, "train__epochs": 3},
    "a convolutional model": {"model__name": "cnn8", "train__flip": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_is_asked_for_is_done_as_the_reference_engine_does_it(
    tiny: Tiny, variant: str
) -> None:
    """To a relative 1e-5 after one round and to 1e-4 after two."""
    one, other = pair(
        tiny,
        "cafedcl",
        **{"federation__clients": 3, "split__classes": 4, **EVERYONE, **VARIANTS[variant]},
    )
    records = one.step(), other.step()
    assert_same(one, other, 1e-5)
    assert_same_records(*records, 1e-5)
    one.step(), other.step()
    assert_same(one, other, 1e-4)
    assert len(one.history[0].participants) == 3


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedrcl"])
def test_the_layout_that_is_compiled_changes_no_result(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Channels last, in fewer widths; compiling itself is left out."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    settings = {
        "model__name": "cnn8",
        "train__flip": True,
        "train__crop": 1,
        "train__lr": 0.03,
        **UNEQUAL,
        **EVERYONE,
    }
    one, other = (tiny(method, federation__clients=2, **settings) for _ in range(2))
    options = replace(EngineOptions(), precision="fp32", streams=2)
    other.engine = CudaEngine(other.task, options, 2, compiled=True)
    for federation in (one, other):
        federation.step()
    kernel = other.engine.slots[0].leaves["encoder.conv2.weight"]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert len(other.engine.device_data.widths) <= cuda_engine.COMPILED_WIDTHS
    assert_same(one, other, 1e-5)
    one.step(), other.step()
    assert_same(one, other, 1e-4)


def test_a_run_of_another_seed_compiles_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as dynamo goes: it finds the code of the first run, though all objects are others."""
    traced: list[object] = []

    def backend(graph: Any, _inputs: object) -> Any:
        traced.append(graph)
        return graph.forward

    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: compile(function, backend=backend, dynamic=False)
    )
    numbers = []
    shapes = []
    for seed in (0, 1):
        few = {"federation__clients": 2, "split__classes": 5}
        setup = prepare(tiny("cafedcl", run__seed=seed, **few, **EVERYONE).config)
        options = replace(setup.config.engine, name="cuda", compile="on", precision="fp32")
        setup = replace(setup, config=replace(setup.config, engine=options))
        federation = Federation(setup)
        federation.step()
        shapes.append((federation.engine.device_data.widths, federation.engine.device_data.steps))
        numbers.append(len(traced))
    (widths, steps), other = shapes
    assert ([width % 8 for width in widths], steps.bit_count()) == ([0] * len(widths), 1)
    assert (widths, steps) == other
    assert numbers[1] == numbers[0] > 0


@pytest.mark.parametrize("protocol", ["complete", "pfllib"])
def test_images_that_are_too_many_to_be_kept_ready_give_the_same_results(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    one = captured(tiny("cafedcl", evaluate__protocol=protocol))
    monkeypatch.setattr(cuda_engine, "total_memory", lambda device: 0.0)
    other = captured(tiny("cafedcl", evaluate__protocol=protocol))
    assert (one.engine.device_data.train_x.dtype, other.engine.device_data.train_x.dtype) == (
        torch.float32,
        torch.uint8,
    )
    records = one.step(), other.step()
    assert_same(one, other, 1e-6)
    assert_same_records(*records, 1e-6)


EIGHT = {**UNEQUAL, **EVERYONE, "federation__clients": 8, "train__iterations": 1}


@pytest.fixture(scope="module")
def eight_clients(tiny: Tiny) -> Federation:
    """A round of eight clients on the reference engine."""
    federation = tiny("cafedcl", **EIGHT)
    federation.step()
    return federation


@pytest.mark.parametrize("widths", [1, 2, 8])
def test_the_number_of_widths_changes_no_result(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, eight_clients: Federation, widths: int
) -> None:
    monkeypatch.setattr(cuda_engine, "WIDTHS", widths)
    one = eight_clients
    other = captured(tiny("cafedcl", **EIGHT))
    other.step()
    sizes = [one.task.schedule.batch_size(len(part)) for part in one.task.clients.shards.train]
    device_data = other.engine.device_data
    assert len(device_data.widths) == widths or 2 < len(device_data.widths) < widths
    assert [device_data.width(k) for k in range(8)] == [
        min(w for w in device_data.widths if w >= size) for size in sizes
    ]
    assert_same(one, other, 1e-5)


@pytest.mark.parametrize("method", ["cafedcl", "moon"])
def test_the_number_of_lanes_changes_no_result(tiny: Tiny, method: str) -> None:
    settings = {"federation__clients": 3, **UNEQUAL, **EVERYONE}
    federations = [captured(tiny(method, **settings), streams) for streams in (1, 2, 3)]
    for federation in federations:
        federation.run()
    assert [federation.engine.number for federation in federations] == [1, 2, 3]
    assert [len(federation.engine.slots) for federation in federations] == [1, 2, 3]
    for other in federations[1:]:
        assert_same(federations[0], other, 1e-6)


@pytest.mark.parametrize(("batch", "lanes"), [(500, 1), (100, 4), (37, 4)])
def test_a_few_lanes_share_the_test_images(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, batch: int, lanes: int
) -> None:
    """Whole batches for each, the last of which may be shorter: 359 images of the digits."""
    settings = {"evaluate__batch": batch, "federation__clients": 6, "train__iterations": 1}
    federation = captured(tiny("cafedcl", **settings, **EVERYONE), 6)
    federation.step()
    alone = captured(tiny("cafedcl", **settings, **EVERYONE), 1)
    score, parts = slot_module.ClientSlot.score, list[int]()
    monkeypatch.setattr(
        slot_module.ClientSlot,
        "score",
        lambda self, *details: (parts.append(len(details[2])), score(self, *details))[1],
    )
    shared = federation.engine.predict(federation.state)()
    assert len(parts) == lanes
    assert sum(parts) == len(shared) == len(federation.evaluator.y)
    assert all(part % batch == 0 for part in parts[:-1])
    assert torch.equal(shared, alone.engine.predict(federation.state)())


def test_what_was_scored_is_not_laid_again_for_the_next_round(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, laid = captured(tiny("cafedcl", **EVERYONE)), list[int]()
    federation.step()
    flatten = FlatNetwork.flatten
    monkeypatch.setattr(
        FlatNetwork,
        "flatten",
        lambda self, *details: (laid.append(federation.round), flatten(self, *details))[1],
    )
    federation.run()
    assert laid == list(
        range(1, federation.options.rounds)
    )  # only when the model of a round is scored
    predicted = federation.engine.predict(federation.state)()
    assert len(laid) == federation.options.rounds - 1
    for name, value in federation.state.items():
        if name.startswith("model/"):
            value.neg_()
    fresh = captured(tiny("cafedcl", **EVERYONE)).engine.predict(federation.state)()
    assert torch.equal(federation.engine.predict(federation.state)(), fresh)
    assert not torch.equal(fresh, predicted)


@pytest.mark.parametrize(
    ("participants", "streams", "number"),
    [
        (1, 0, 1),
        (12, 0, 12),
        (13, 0, 7),
        (20, 0, 10),
        (100, 0, 12),
        (5, 2, 2),
        (5, 3, 3),
        (5, 4, 3),
        (3, 64, 3),
    ],
)
def test_clients_are_spread_evenly_over_the_lanes(
    tiny: Tiny, participants: int, streams: int, number: int
) -> None:
    options = replace(EngineOptions(), precision="fp32", streams=streams)
    assert CudaEngine(tiny("fedavg").task, options, participants, compiled=False).number == number


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every stage of a visit as it begins, the client, and the lane it is on."""
    begun: list[tuple[str, int, int]] = []

    def note(name: str, stage: str) -> None:
        method = getattr(QueuedVisit, name)

        def noted(self: QueuedVisit) -> Any:
            begun.append((stage, self.job.client, id(self.slot)))
            return method(self)

        monkeypatch.setattr(QueuedVisit, name, noted)

    note("start_training", "trains")
    note("queue_summary", "concludes")
    note("wait", "replies")
    return begun


@pytest.mark.parametrize("streams", [1, 2, 4, 12])
def test_replies_are_waited_for_as_late_as_possible_with_two_visits_on_a_lane(
    tiny: Tiny, stages: list[tuple[str, int, int]], streams: int
) -> None:
    settings = {"federation__clients": 30, "train__iterations": 1}
    federation = captured(tiny("fedavg", **settings, **EVERYONE), streams)
    replies = federation.engine.train(jobs_of(federation, *range(30)))
    assert sorted(reply.up.client for reply in replies) == list(range(30))
    open_on, most = Counter[int](), list[int]()
    for stage, _, lane in stages:
        if stage == "replies":
            most.append(open_on.total())
        open_on[lane] += {"trains": 1, "concludes": 0, "replies": -1}[stage]
        assert max(open_on.values()) <= 2
    depth = 2 * federation.engine.number
    assert most == [min(depth, 30 - done) for done in range(30)]


@pytest.mark.parametrize(("clients", "streams"), [(5, 3), (2, 3), (7, 3)])
def test_training_begins_on_all_lanes_before_anything_else_is_queued(
    tiny: Tiny, stages: list[tuple[str, int, int]], clients: int, streams: int
) -> None:
    federation = captured(tiny("fedavg", federation__clients=7, **EVERYONE), streams)
    list(federation.engine.train(jobs_of(federation, *range(clients))))
    order, first = [begun[:2] for begun in stages], range(min(clients, streams))
    assert order[: 2 * len(first)] == [
        (stage, client) for stage in ("trains", "concludes") for client in first
    ]
    for client in range(len(first), clients):
        at = order.index(("trains", client))
        assert order[at + 1] == ("concludes", client)
    assert [client for stage, client in order if stage == "replies"] == list(range(clients))


class Waiting(FedAvg):
    """Has a summary of its own, which waits for the device for all the engine knows."""

    def summarize(self, model: Network, visit: Any) -> tuple[Tensors, Tensors]:
        return super().summarize(model, visit)


def test_summaries_that_may_wait_do_so_on_all_lanes_together(
    tiny: Tiny, stages: list[tuple[str, int, int]]
) -> None:
    federation = captured(
        with_method(tiny("fedavg", federation__clients=8, **EVERYONE), Waiting), 3
    )
    assert not Waiting.replayed
    replies = federation.engine.train(jobs_of(federation, *range(8)))
    assert sorted(reply.up.client for reply in replies) == list(range(8))
    assert (
        "".join(stage[0] for stage, _, _ in stages)
        == "tttccc" + "tttccc" + "rrr" + "ttcc" + "rrrrr"
    )


def test_every_job_is_answered_once_and_no_job_is_no_result(tiny: Tiny) -> None:
    federation = captured(tiny("fedavg"), 2)
    assert list(federation.engine.train([])) == []
    found = list(federation.engine.train(jobs_of(federation, 4, 0, 3, 1, 2)))
    assert sorted(reply.up.client for reply in found) == [0, 1, 2, 3, 4]


def test_bf16_trains_to_about_the_same_loss_and_keeps_weights_in_float32(tiny: Tiny) -> None:
    settings = {"engine__onednn": "off", "federation__clients": 2, "split__classes": 5, **EVERYONE}
    full, half = tiny("moon", **settings), captured(tiny("moon", **settings), 2, "bf16")
    for federation in (full, half):
        federation.run()
    here, there = (sum(federation.history[-1].loss.values()) for federation in (full, half))
    assert there == pytest.approx(here, rel=0.03)
    assert there != here
    tensors = [
        *half.state.values(),
        *(value for memory in half.memories.values() for value in memory.values()),
    ]
    assert all(value.dtype == torch.float32 for value in tensors)


# what goes wrong


class Stumbling(FedAvg):
    """Fails at the end of one client's visit."""

    def summarize(self, model: Network, visit: Any) -> tuple[Tensors, Tensors]:
        if visit.client.index == 2:
            raise ArithmeticError("no summary\nat all")
        return super().summarize(model, visit)


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_a_client_whose_method_raises_is_a_failure_and_the_round_goes_on(
    tiny: Tiny, streams: int
) -> None:
    one = with_method(tiny("fedavg", **EVERYONE), Stumbling)
    one.engine = ReferenceEngine(one.task)
    other = captured(with_method(tiny("fedavg", **EVERYONE), Stumbling), streams)
    for federation in (one, other):
        federation.run()
    assert [failure["client"] for failure in other.history[0].failed] == [2]
    assert other.history[0].failed[0]["reason"].startswith("ArithmeticError: no summary")
    assert_same(one, other, 1e-4)


def test_a_closed_engine_lets_go_of_its_captures_at_once(tiny: Tiny) -> None:
    federation = captured(tiny("cafedcl", **EVERYONE), 2)
    federation.step()
    slices = [weakref.ref(slot) for slot in federation.engine.slots]
    gc.disable()
    try:
        federation.close()
        assert [place() for place in slices] == [None, None]
    finally:
        gc.enable()


def test_results_that_are_closed_early_leave_the_engine_usable(tiny: Tiny) -> None:
    one, other = (captured(tiny("moon", train__iterations=1, **EVERYONE), 2) for _ in range(2))
    for taken in (0, 1, 3):
        results = other.engine.train(jobs_of(other, *range(5)))
        assert len([next(results) for _ in range(taken)]) == taken
        results.close()
    for federation in (one, other):
        federation.run()
    assert_same(one, other, 1e-6)


def network_with(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), layer))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.BatchNorm2d(4, affine=False)]
)
def test_batch_normalisation_is_an_obstacle_and_is_named(layer: nn.Module) -> None:
    reason = capture_obstacle(network_with(layer))
    assert reason is not None
    assert "'1.1'" in reason
    assert "batch normalisation" in reason


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Identity()])
def test_other_layers_are_no_obstacle(layer: nn.Module) -> None:
    assert capture_obstacle(network_with(layer)) is None


class ReadsANumber(FedAvg):
    def loss(self, model: Network, batch: Any, visit: Any) -> Tensors:
        return {"ce": super().loss(model, batch, visit)["ce"] / visit.client.samples}


class Embeds(FedAvg):
    def loss(self, model: Network, batch: Any, visit: Any) -> Tensors:
        z, _ = visit.embed("train", "received")
        return {"ce": super().loss(model, batch, visit)["ce"] + z.sum()}


@pytest.mark.parametrize(
    ("method", "error", "reason"),
    [(ReadsANumber, AttributeError, "samples"), (Embeds, CafedclError, "embeds nothing")],
)
def test_a_loss_that_cannot_be_replayed_fails_the_trial_and_says_why(
    tiny: Tiny, method: type[FedAvg], error: type[Exception], reason: str
) -> None:
    federation = captured(with_method(tiny("fedavg"), method))
    down = Down(0, federation.method.broadcast(federation.state))
    with pytest.raises(error, match=reason):
        federation.engine.trial(down)
    results = list(federation.engine.train(jobs_of(federation, 0, 1)))
    assert all(isinstance(result, Failure) and reason in result.reason for result in results)


def test_a_trial_changes_no_result(tiny: Tiny) -> None:
    few = {"federation__clients": 3, "split__classes": 4}
    one, other = (captured(tiny("cafedcl", **few, **EVERYONE)) for _ in range(2))
    before = torch.get_rng_state()
    other.engine.trial(Down(0, other.method.broadcast(other.state)))
    assert torch.equal(torch.get_rng_state(), before)
    for federation in (one, other):
        federation.run()
    assert_same(one, other, 1e-6)


# memory


def test_memories_over_the_budget_go_to_the_host_and_results_stay(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_home: set[str] = set()
    to_host = visit_module.to_host

    def spying(tensors: Tensors) -> Tensors:
        sent_home.update(tensors)
        return to_host(tensors)

    monkeypatch.setattr(visit_module, "to_host", spying)
    few = {"federation__clients": 3, "split__classes": 4}
    roomy, tight = (captured(tiny("moon", **few, **EVERYONE)) for _ in range(2))
    tight.engine.memory_budget = 0.0
    roomy.run()
    assert not any(name.startswith("previous/") for name in sent_home)
    tight.run()
    assert any(name.startswith("previous/") for name in sent_home)
    assert_same(roomy, tight, 1e-6)


def test_the_budget_is_what_all_clients_keep_together(tiny: Tiny) -> None:
    engine = captured(tiny("fedavg")).engine

    def keep(client: int, numbers: int) -> None:
        engine._account(Reply(Up(client, 1, {}), {"a": torch.zeros(numbers)}, {}))

    engine.memory_budget = 100.0
    assert engine._free_memory(0) == 100
    keep(0, 10)
    assert (engine._free_memory(0), engine._free_memory(1)) == (100, 60)
    keep(1, 5)
    keep(0, 2)
    assert (engine._free_memory(0), engine._free_memory(1), engine._free_memory(2)) == (
        100 - 20,
        100 - 8,
        100 - 28,
    )
