import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from capturing import (
    EVERYONE,
    SHORT,
    UNEQUAL,
    Tiny,
    assert_near,
    assert_same,
    assert_same_records,
    captured,
    contents,
    jobs_of,
    with_method,
)
from torch import Tensor, nn

from cafedcl.core.contract import Down, Failure, Job, Reply
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cuda import device_data as device_data_module
from cafedcl.engine.cuda.broadcast import SHAPES_KEPT
from cafedcl.engine.cuda.captures import LONG_CHAIN_PAYS
from cafedcl.engine.cuda.client_slot import STEP
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods import method_names
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models import Network

pytestmark = pytest.mark.usefixtures("plain_kernels", "no_engine_outlives_its_test")


SUMMARIES = {
    **{name: (name, {}) for name in ("cafedcl", "fedproto", "fedproc", "fednh", "fedtgp")},
    **{
        f"cafedcl by {kind}": ("cafedcl", {"method__uncertainty": kind})
        for kind in ("nll", "doubt", "error")
    },
    "cafedcl under the received weights": ("cafedcl", {"method__judged": "received"}),
    "cafedcl with absent classes": ("cafedcl", {"method__absent": "literal"}),
    "cafedcl with a memory": ("cafedcl", {"method__inference": "own", "method__calibrate": 1.0}),
    "cafedcl with a fitted classifier": ("cafedcl", {"method__inference": "fitted"}),
    "spherefed": ("spherefed", {}),
    "mp-fedcl": ("mp-fedcl", {}),
    "cafedcl from nothing": (
        "cafedcl",
        {"method__init": "means", "method__prototype_of": "augmented"},
    ),
}


@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_captured_summary_is_the_plain_one(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, summary: str
) -> None:
    """Clients' images take two passes, four, or more than are captured."""
    method, settings = SUMMARIES[summary]
    settings = {
        "federation__clients": 6,
        "train__iterations": 1,
        "evaluate__batch": 70,
        **UNEQUAL,
        **EVERYONE,
        **SHORT.get(method, {}),
        **settings,
    }
    one, other = (captured(tiny(method, **settings)) for _ in range(2))
    found = [one.step()]
    sizes = {
        size
        for slot in one.engine.slots
        for plan in slot.captures.values()
        for size in plan.results
    }
    assert len(sizes) > 1
    assert any(one.engine.device_data.image_rows(client) is None for client in range(6))
    monkeypatch.setattr(device_data_module, "MOST_PASSES", 0)
    found.append(other.step())
    assert not any(plan.results for slot in other.engine.slots for plan in slot.captures.values())
    assert_same(one, other, 1e-5)
    assert_same_records(*found, 1e-5)


@pytest.mark.parametrize(
    "summary", ["cafedcl", "fedproc", "fednh", "fedtgp", "cafedcl under the received weights"]
)
def test_a_compiled_summary_is_the_plain_one(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, summary: str
) -> None:
    """As far as dynamo goes, which follows it in one piece; all lanes share what was compiled."""
    method, settings = SUMMARIES[summary]
    settings = {
        # Fewer would have more images each, and so more sizes: dynamo compiles a function for
        # eight at most in a process.
        "federation__clients": 4,
        "train__iterations": 1,
        **UNEQUAL,
        **EVERYONE,
        **SHORT.get(method, {}),
        **settings,
    }
    one, other = (captured(tiny(method, **settings)) for _ in range(2))
    program, traced = other.engine.device_data.program, list[object]()

    def backend(graph: Any, _inputs: object) -> Any:
        traced.append(graph)
        return graph.forward

    monkeypatch.setattr(
        program,
        "compiled_summary",
        torch.compile(program.summarize, backend=backend, fullgraph=True, dynamic=False),
    )
    found = [one.step(), other.step()]
    sizes = {
        size
        for slot in other.engine.slots
        for plan in slot.captures.values()
        for size in plan.results
    }
    assert len(traced) == len(sizes) > 0
    assert_same(one, other, 1e-6)
    assert_same_records(*found, 1e-6)


def test_a_reply_says_whether_all_its_numbers_are_finite(tiny: Tiny) -> None:
    federation = captured(tiny("cafedcl", **EVERYONE))
    assert all(
        reply.valid_numbers for reply in federation.engine.train(jobs_of(federation, *range(5)))
    )
    tensors = dict(federation.method.broadcast(federation.state))
    tensors["model/encoder.second.bias"] = torch.full_like(
        tensors["model/encoder.second.bias"], torch.nan
    )
    replies = list(
        federation.engine.train([Job(client, Down(0, tensors), {}, False) for client in range(5)])
    )
    assert not any(reply.valid_numbers for reply in replies)
    assert "NaN or Inf in 'model/" in federation.validator.problem(replies[0])


@pytest.mark.parametrize("range", [{"high": 0.01}, {"low": 0.99}, {"low": 0.0, "high": 1.0}])
def test_a_reply_says_whether_its_entries_lie_in_their_ranges(
    tiny: Tiny, range: dict[str, float]
) -> None:
    federation = captured(tiny("cafedcl", **EVERYONE))
    fields = federation.task.fields
    fields["confidence"] = replace(fields["confidence"], **range)
    for reply in federation.engine.train(jobs_of(federation, 0, 1, 2, 3, 4)):
        trust, field = reply.up.tensors["confidence"].tolist(), fields["confidence"]
        within = all(field.low <= number <= field.high for number in trust)
        assert reply.valid_numbers == within == ("low" in range and "high" in range)


def test_long_visits_are_run_in_chains_and_single_steps(tiny: Tiny) -> None:
    federation = captured(tiny("fedavg", train__iterations=13, train__epochs=3), 1)
    federation.step()
    (width,) = federation.engine.device_data.widths
    slot = federation.engine.slots[0]
    plan = next(plan for plan in slot.captures.values() if plan.loss_names)
    plan.visits[STEP, width] = LONG_CHAIN_PAYS
    slot.prepare(plan, width)
    predicted: list[int] = []
    plan.calls = {key: lambda number=key[2]: predicted.append(number) for key in plan.calls}
    plan.repeat(STEP, width, 3 * 13)
    assert predicted == [16, 16, 4, 1, 1, 1]


@pytest.mark.parametrize("method", method_names())
def test_the_next_visit_on_a_lane_does_not_change_a_reply(tiny: Tiny, method: str) -> None:
    few = {"federation__clients": 2, "split__classes": 5, "train__iterations": 1}
    federation = captured(tiny(method, **few, **EVERYONE, **SHORT.get(method, {})), 1)
    federation.step()
    found = {}
    for reply in federation.engine.train(
        jobs_of(federation, *range(len(federation.task.clients.shards)), evaluate=True)
    ):
        found[reply.up.client] = contents(reply), copy.deepcopy(contents(reply))
    federation.step()
    for held, then in found.values():
        for part, tensors in then.items():
            for name, value in tensors.items():
                assert torch.equal(held[part][name].nan_to_num(-1), value.nan_to_num(-1)), (
                    part,
                    name,
                )


class Parrot(FedAvg):
    """Sends, tells and keeps all that it is shown, as it is."""

    def start(self, model: Network) -> Tensors:
        return {"anchors/given": torch.ones(3)}

    def scratch(self, client: Any) -> Tensors:
        return {"seen": torch.zeros(2)}

    def loss(self, model: Network, batch: Any, visit: Any) -> Tensors:
        visit.scratch["seen"].add_(batch.weight.sum())
        return super().loss(model, batch, visit)

    def shown(self, model: Network, visit: Any) -> Tensors:
        given = {
            "anchors": visit.anchors["given"],
            "scratch": visit.scratch["seen"],
            "counts": visit.client.counts,
        }
        weights = {"received": visit.received["head.bias"], "trained": model.head.bias.detach()}
        memory = {"memory": visit.memory["anchors"][1:]} if visit.memory else {}
        return {**given, **weights, **memory, "round": visit.round, "progress": visit.progress}

    def summarize(self, model: Network, visit: Any) -> tuple[Tensors, Tensors]:
        return self.shown(model, visit), self.shown(model, visit)

    def remember(self, model: Network, visit: Any) -> Tensors:
        return self.shown(model, visit)


@pytest.mark.parametrize(
    "memory", [{}, {"anchors": torch.arange(3.0)}], ids=["first visit", "later visit"]
)
def test_a_method_may_hand_on_whatever_it_was_shown(tiny: Tiny, memory: Tensors) -> None:
    federation = captured(with_method(tiny("fedavg"), Parrot), 1)
    (first,) = federation.engine.train(
        [replace(job, memory=memory) for job in jobs_of(federation, 0)]
    )
    before = copy.deepcopy(contents(first))
    other = Down(1, {name: value + 1 for name, value in federation.state.items()})
    later = {name: value + 1 for name, value in memory.items()}
    (second,) = federation.engine.train([Job(1, other, later, True)])
    assert second.up.tensors["round"] == 1
    changed = [
        f"{part} {name}"
        for part, tensors in contents(first).items()
        for name, value in tensors.items()
        if not torch.equal(value, before[part][name])
    ]
    assert changed == []


@pytest.mark.parametrize("streams", [1, 2])
def test_a_visit_that_cannot_begin_is_a_failure_and_the_others_are_not_touched(
    tiny: Tiny, streams: int
) -> None:
    one, other = tiny("fedproto", **EVERYONE), captured(tiny("fedproto", **EVERYONE), streams)
    found = []
    for federation in (one, other):
        federation.step()
        spoilt = {**federation.memories[1], "model/head.bias": torch.zeros(3)}
        jobs = [
            replace(job, memory=spoilt) if job.client == 1 else job
            for job in jobs_of(federation, *range(5))
        ]
        found.append(list(federation.engine.train(jobs)))
    for results in found:
        assert [result.client for result in results if isinstance(result, Failure)] == [1]
    replies = [{r.up.client: r for r in results if isinstance(r, Reply)} for results in found]
    assert replies[0].keys() == replies[1].keys() == {0, 2, 3, 4}
    for client, reply in replies[0].items():
        assert_near(reply.memory, replies[1][client].memory, 1e-4)


class Fixed(nn.Module):
    """An encoder with a buffer, with a frozen layer and with group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 64))
        self.frozen = nn.Linear(64, 24)
        self.frozen.requires_grad_(False)
        self.norm = nn.GroupNorm(4, 24)
        self.last = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.relu(self.norm(self.frozen(x.flatten(1) * self.scale)))))


class Tied(nn.Module):
    """An encoder that uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.relu(self.second(torch.relu(self.first(x.flatten(1)))))))


def with_encoder(federation: Federation, encoder: type[nn.Module]) -> Federation:
    """Give a federation another encoder before it starts."""
    torch.manual_seed(0)
    network = Network(encoder(), federation.method.head())
    initial = {name: value.detach().clone() for name, value in network.state_dict().items()}
    task = replace(federation.task, network=network, initial=initial)
    made = Federation.__new__(Federation)
    made.__dict__ |= federation.__dict__
    made.task, made.engine = task, ReferenceEngine(task)
    made.state = {name: v for name, v in federation.state.items() if not name.startswith("model/")}
    made.state |= {f"model/{name}": value for name, value in task.shared().items()}
    made.validator = replace(federation.validator, weights=task.shared())
    return made


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "local"])
def test_buffers_and_frozen_weights_are_as_on_the_reference_engine(tiny: Tiny, method: str) -> None:
    one = with_encoder(tiny(method, **EVERYONE), Fixed)
    other = captured(with_encoder(tiny(method, **EVERYONE), Fixed))
    for federation in (one, other):
        federation.run()
        assert federation.history[0].failed == []
    assert_same(one, other, 1e-4)


def test_buffers_and_frozen_weights_can_be_in_bf16(tiny: Tiny) -> None:
    federation = captured(with_encoder(tiny("fedavg", **EVERYONE), Fixed), 2, "bf16")
    federation.engine.trial(Down(0, federation.method.broadcast(federation.state)))
    assert federation.step().failed == []


def test_a_weight_that_is_used_twice_is_refused_by_the_trial(tiny: Tiny) -> None:
    federation = captured(with_encoder(tiny("fedavg", **EVERYONE), Tied))
    with pytest.raises(ValueError, match="tied"):
        federation.engine.trial(Down(0, federation.method.broadcast(federation.state)))


def test_new_shapes_of_anchors_are_new_plans_and_only_the_last_few_are_kept(tiny: Tiny) -> None:
    """The pool of MP-FedCL grows with the clients that have replied, so many rounds have a shape of
    their own.
    """
    settings = {
        "federation__rounds": SHAPES_KEPT + 3,
        "federation__clients": 12,
        "federation__participation": 0.1,
        "train__iterations": 1,
        **UNEQUAL,
    }
    one, other = tiny("mp-fedcl", **settings), captured(tiny("mp-fedcl", **settings), 1)
    shapes, plans = set(), []
    for _ in range(SHAPES_KEPT + 3):
        one.step()
        other.step()
        shapes.add(tuple(other.state["anchors/pool"].shape))
        plans.append(len(other.engine.slots[0].captures))
    assert len(shapes) > SHAPES_KEPT
    assert plans[:2] == [2, 3]
    assert max(plans) == SHAPES_KEPT
    assert_same(one, other, 1e-3)
