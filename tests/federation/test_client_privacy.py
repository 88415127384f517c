"""Client-level differential privacy: sensitivity, noise, accounting, resuming, budget."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.config.privacy_options import shown_epsilon
from cafedcl.core.contract import Up
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import MODEL, pack, under, unpack
from cafedcl.export import card
from cafedcl.federation import runs
from cafedcl.federation.client_privacy import PrivateAggregator
from cafedcl.federation.contributions import CLIP
from cafedcl.methods import find_method, method_names
from cafedcl.methods.base import Method
from cafedcl.report.run_summary import read_run
from cafedcl.report.runs import summarise
from cafedcl.report.table import score_table
from cafedcl.terminal.overview import describe_round
from cafedcl.testing.case import first_difference, result_of

EVERYONE = {"federation__participation": 1.0}
PRIVATE = {"privacy__kind": "clients", **EVERYONE}
OPTIONS = {"cafedcl": {"method__data_scale": "saturating"}}
PRIVATE_METHODS = [
    *("cafedcl", "fedavg", "fedbn", "fedetf", "fedlc", "fedloge", "fednh", "fedproc"),
    *("fedprox", "fedproto", "fedrcl", "fedrod", "fedvls", "moon"),
]


def private(tiny, method="fedavg", **options):
    return tiny(method, **{**PRIVATE, **OPTIONS.get(method, {}), **options})


def replies(federation):
    """The replies of all clients to the first round."""
    everyone = list(range(len(federation.counts)))
    return [reply.up for reply in federation.train(federation.down(), everyone)]


def without_noise(monkeypatch, federation):
    zeros = lambda size, round: torch.zeros(size, dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr(federation.privacy, "noise", zeros)


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "cafedcl"])
def test_exchanging_one_client_moves_the_sums_by_at_most_one(tiny, method):
    federation = private(tiny, method, privacy__clip=0.3)
    ups = replies(federation)
    aggregator = federation.aggregator()
    assert isinstance(aggregator, PrivateAggregator)
    for up in ups:
        aggregator.add(up)
    total = aggregator.total.clone()

    @settings(max_examples=25)
    @given(st.integers(0, len(ups) - 1), st.floats(-1e6, 1e6), st.floats(0, 1e9))
    def check(client, scale, weight):
        up = ups[client]
        names = up.tensors.keys() & {"prototypes"}
        tensors = {**up.tensors, **{name: scale * up.tensors[name] for name in names}}
        if "confidence" in tensors:
            tensors["confidence"] = torch.full_like(tensors["confidence"], weight)
        model = {name: scale * value for name, value in up.model.items()}
        other = replace(up, tensors=tensors, model=model, samples=int(weight))
        without = total - aggregator.contributor.contribution(up)
        exchanged = without + aggregator.contributor.contribution(other)
        # Adding or removing a client moves the sums by 1 at most, and exchanging one by 2.
        assert float((total - without).norm()) <= 1 + 1e-9
        assert float((exchanged - without).norm()) <= 1 + 1e-9
        assert float((exchanged - total).norm()) <= 2 + 1e-9

    check()


def test_a_contribution_depends_on_the_clients_own_reply_only(tiny):
    federation = private(tiny, "cafedcl")
    ups = replies(federation)
    first = federation.aggregator().contributor.contribution(ups[0])
    aggregator = federation.aggregator()
    for up in ups[1:]:
        aggregator.add(up)
    assert torch.equal(aggregator.contributor.contribution(ups[0]), first)
    # What clients are told of each other would not be hidden by noise.
    assert not any(float(value.sum()) for value in federation.task.clients.census)


@pytest.mark.parametrize("method", PRIVATE_METHODS)
def test_without_noise_and_clipping_the_private_step_is_the_plain_one(tiny, monkeypatch, method):
    large = {"privacy__clip": 1e5, "privacy__samples": 10**6, "privacy__prototype": 1e4}
    federation = private(tiny, method, **large)
    without_noise(monkeypatch, federation)
    monkeypatch.setattr(federation.privacy, "options", replace(federation.privacy.options, floor=0))
    ups = replies(federation)
    plain = federation.method.aggregator(federation.state)
    aggregator = federation.aggregator()
    for up in ups:
        plain.add(up)
        aggregator.add(up)
    expected, found = plain.finish(), aggregator.finish()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # What CAFedCL records of the confidences is a mean of another kind.
        if name != "server/confidence" and value.is_floating_point():
            torch.testing.assert_close(found[name], value, atol=2e-4, rtol=2e-3)


def test_the_methods_that_can_be_private_are_the_known_ones():
    made = set()
    for name in method_names():
        cls, preset = find_method(name)
        method = cls(
            cls.Options(**preset, **{"data_scale": "own"} if name == "cafedcl" else {}), 3, 8
        )
        if method.averages is not None and method.separable and not method.uses_census:
            made.add(name)
    assert made == set(PRIVATE_METHODS)


def test_a_method_that_changes_the_server_step_has_to_say_that_it_takes_means():
    class Changed(find_method("fedavg")[0]):
        def update(self, state, ups):
            return {}

    class Same(find_method("fedavg")[0]):
        def loss(self, model, batch, visit):
            return {}

    assert Changed.averages is None
    assert Same.averages == Method.averages is not None


def test_the_noise_has_the_distribution_that_is_accounted_for(tiny):
    federation = private(tiny, privacy__noise=2.5)
    aggregator = federation.aggregator()
    up = replies(federation)[0]
    aggregator.add(up)
    noise = federation.privacy.noise(aggregator.layout.size, 0).numpy()
    assert noise.std() == pytest.approx(2.5, rel=0.05)
    assert abs(noise.mean()) < 0.1
    # The unit of the noise is the bound of a contribution, and not the contribution itself.
    assert float(aggregator.total.norm()) <= 1
    share = np.mean(np.abs(noise) < 2.5)
    assert share == pytest.approx(0.6827, abs=0.02)


def test_every_round_has_its_own_noise_and_a_repeated_round_has_the_same(tiny):
    one, other = private(tiny).privacy, private(tiny, run__seed=1).privacy
    assert torch.equal(one.noise(50, 3), one.noise(50, 3))
    assert not torch.isin(one.noise(50, 3), one.noise(50, 4)).any()
    assert not torch.isin(one.noise(50, 3), other.noise(50, 3)).any()
    system = private(tiny, privacy__randomness="system").privacy
    assert not torch.isin(system.noise(50, 3), system.noise(50, 3)).any()


@pytest.mark.parametrize("method", ["fedavg", "cafedcl"])
def test_a_resumed_run_keeps_every_bit_and_every_epsilon(tiny, method):
    options = {"federation__rounds": 3, "privacy__quantile": 0.5, "federation__participation": 0.6}
    whole, resumed = (private(tiny, method, **options) for _ in range(2))
    whole.step()
    interrupted = pack(*whole.snapshot())
    result = result_of(whole)
    resumed.restore(*unpack(interrupted))
    assert first_difference(result, result_of(resumed)) is None
    assert [r.privacy for r in whole.history[1:]] == [r.privacy for r in resumed.history]


def test_epsilon_grows_by_rounds_and_stands_in_the_record(tiny):
    records = private(tiny, federation__rounds=2).run()
    first, second = (record.privacy["epsilon"] for record in records)
    assert 0 < first < second
    assert [record.privacy["releases"] for record in records] == [1, 2]
    assert json.loads(json.dumps(records[1].line()))["privacy"]["delta"] == 1e-5
    assert tiny("fedavg").step().privacy == {}


def test_clipping_follows_the_quantile(tiny, monkeypatch):
    federation = private(tiny, privacy__quantile=0.5, privacy__clip=1e-3, federation__rounds=1)
    without_noise(monkeypatch, federation)
    record = federation.step()
    # All updates are longer, so the length grows by the largest factor.
    assert record.privacy["clip"] == pytest.approx(1e-3 * np.exp(0.1), rel=1e-5)
    assert float(federation.state[CLIP]) == record.privacy["clip"]


def test_a_class_with_too_little_weight_keeps_its_anchor(tiny):
    federation = private(tiny, "cafedcl", privacy__floor=100.0)
    before = federation.state["anchors/prototypes"]
    record = federation.step()
    assert record.status == "ok"
    assert torch.equal(federation.state["anchors/prototypes"], before)


def test_fixed_anchors_leave_the_whole_budget_to_the_model(tiny):
    averaged, fixed = (private(tiny, "cafedcl", method__anchors=it) for it in ("averaged", "fixed"))
    shares = [it.aggregator().layout.parts["update"].share for it in (averaged, fixed)]
    assert shares == pytest.approx([0.7 * 0.9, 0.9])
    before = fixed.state["anchors/prototypes"]
    assert fixed.step().status == "ok"
    assert torch.equal(fixed.state["anchors/prototypes"], before)


def test_a_round_without_any_reply_counts_and_spends(tiny):
    federation = private(tiny, federation__dropout=1.0)
    record = federation.step()
    assert (record.status, record.privacy["releases"]) == ("ok", 1)


def test_frozen_weights_get_no_noise(tiny):
    federation = private(tiny, privacy__floor=0.0)
    name = next(iter(federation.privacy.bounds.trained))
    federation.privacy.bounds.trained.remove(name)
    before = federation.state[MODEL + name]
    federation.step()
    after = under(MODEL, federation.state)
    assert torch.equal(after[name], before)
    assert len(after) == len(under(MODEL, federation.down().tensors))


def test_the_run_ends_before_the_round_that_would_exceed_the_budget(tiny):
    free = private(tiny, federation__rounds=4).run()
    limit = free[1].privacy["epsilon"] + 1e-6
    settings = {"federation__rounds": 4, "privacy__budget": limit, "evaluate__every": 3}
    federation = private(tiny, **settings)
    records = federation.run()
    assert len(records) == 2
    assert federation.finished
    # The last round is scored, although it is not the third.
    assert [record.server is not None for record in records] == [False, True]
    assert "ended after round 2 of 4: one more round would bring ε to" in federation.notices[-1]


def config_of(**options):
    names = {name.replace("__", "."): value for name, value in {**PRIVATE, **options}.items()}
    return tiny_config("fedavg", names)


def test_a_run_that_its_budget_ended_is_finished(tmp_path):
    config = config_of(federation__rounds=9, privacy__budget=8.0, privacy__noise=1.0)
    runs.start(config, tmp_path / "run", [])
    folder = runs.RunFolder.open(tmp_path / "run")
    done = len(folder.metrics())
    assert 0 < done < 9
    assert folder.is_finished(9)
    finished = runs.resume(tmp_path / "run", warn=lambda _: None)
    assert len(finished.records) == done
    # What people read tells it too: the table, the overview and the model card.
    epsilon = shown_epsilon(finished.records[-1]["privacy"])
    read = read_run(tmp_path / "run")
    assert (read.state, read.spent) == ("finished", f"{epsilon} at δ = 1e-05")
    assert read.trust == "privacy clients:budget=8.0"
    notes = score_table(summarise([read])).notes
    assert any(f"is private: {epsilon} at δ = 1e-05" in note for note in notes)
    assert epsilon in describe_round(finished.records[-1])
    assert f"client-level differential privacy: {epsilon} at δ = 1e-05" in card.privacy(finished)
    # A larger budget lets it go on.
    runs.change_config(folder, ["privacy.budget=100.0"])
    assert len(runs.resume(tmp_path / "run", warn=lambda _: None).records) == 9


@pytest.mark.parametrize(("randomness", "releases"), [("seeded", [1, 2, 3]), ("system", [1, 2, 4])])
def test_a_round_that_is_done_again_with_other_noise_counts_again(tmp_path, randomness, releases):
    settings = {"federation__rounds": 3, "privacy__randomness": randomness}
    path = tmp_path / "run"
    runs.start(config_of(**settings, store__checkpoint_every=1), path, [])
    newest, *_ = runs.RunFolder.open(path).checkpoints()
    newest.unlink()
    resumed = runs.resume(path, warn=lambda _: None)
    assert [line["privacy"]["releases"] for line in resumed.records] == releases


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("scaffold", {}, "the server step of scaffold does not consist of"),
        ("qffl", {}, "the server step of qffl"),
        ("local", {}, "the server step of local"),
        ("fedyoyo", {}, "clients of fedyoyo use the counts of all clients"),
        ("cafedcl", {"method__data_scale": "max"}, "method.data_scale = 'saturating'"),
        ("cafedcl", {"method__encoder_weight": "alpha"}, "the server step of cafedcl"),
        ("fedavg", {"defence__kind": "clip"}, "defence.kind = clip: it compares clients"),
        ("fedavg", {"federation__min_replies": 2}, "a skipped round reveals who"),
        ("fedproto", {"privacy__quantile": 0.5}, "fedproto averages no model"),
        ("fedavg", {"privacy__budget": 0.1}, "the first round alone has ε = "),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(tiny, method, options, message):
    with pytest.raises(CafedclError, match=message) as error:
        private(tiny, method, **options)
    assert "\n" not in str(error.value)


def test_a_liar_moves_the_private_sums_no_more_than_anybody(tiny):
    federation = private(tiny)
    start = under(MODEL, federation.state)
    huge = Up(0, 10**9, {}, model={name: value + 1e9 for name, value in start.items()})
    assert float(federation.aggregator().contributor.contribution(huge).norm()) <= 1 + 1e-9
