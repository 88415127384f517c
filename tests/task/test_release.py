"""What clients tell: nothing of rare classes, no exact counts, no lengths, no notes."""

import pytest
import torch
from conftest import tiny_config
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.config.release_options import ReleaseOptions
from cafedcl.core.contract import Reply
from cafedcl.core.errors import CafedclError
from cafedcl.engine.choose import choose_engine
from cafedcl.federation.participants import Participants
from cafedcl.methods import find_method, method_names
from cafedcl.task.build import prepare
from cafedcl.task.release import Release

SAFE = {f"release__{name}": value for name, value in [
    ("fewest", 5), ("counts", "rounded"), ("prototypes", "unit"), ("notes", "off"),
]}  # fmt: skip
METHODS = [name for name in method_names() if not find_method(name)[0].pooled]


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from(["exact", "rounded", "withheld"]),
)
def test_counts_that_are_told_stay_as_they_are_if_told_again(counts, fewest, grid, how):
    release = Release(ReleaseOptions(fewest, how, grid, "raw", "on"))
    exact = torch.tensor(counts)
    told = release.counts(exact)
    assert torch.equal(release.counts(told), told)
    assert ((told > 0) == (exact >= fewest)).all()


def test_counts_are_rounded_to_the_grid_or_withheld():
    exact = torch.tensor([0, 4, 5, 14, 16, 100])
    rounded = Release(ReleaseOptions(5, "rounded", 10, "raw", "on"))
    withheld = Release(ReleaseOptions(5, "withheld", 10, "raw", "on"))
    assert rounded.counts(exact).tolist() == [0, 0, 10, 10, 20, 100]
    assert withheld.counts(exact).tolist() == [0, 0, 5, 5, 5, 5]
    assert rounded.moments(torch.tensor([0.12345])).tolist() == pytest.approx([0.12])


def test_the_defaults_are_safe_only_where_sites_have_data_of_their_own():
    assert ReleaseOptions().settled(own_data=False).is_plain
    safe = ReleaseOptions().settled(own_data=True)
    told = (safe.fewest, safe.counts, safe.prototypes, safe.notes)
    assert told == (5, "rounded", "unit", "off")
    chosen = ReleaseOptions(counts="exact").settled(own_data=True)
    assert (chosen.counts, chosen.notes) == ("exact", "off")


@pytest.mark.parametrize("method", METHODS)
def test_a_round_in_which_no_client_reports_a_class_is_skipped(tiny, method, monkeypatch):
    most = int(tiny(method).counts.max())
    federation = tiny(method, **SAFE | {"release__fewest": most})
    silent = (federation.task.enrolment.counts.sum(1) == 0).nonzero().flatten().tolist()
    monkeypatch.setattr(Participants, "__call__", lambda _, _round: (silent, []))
    before = federation.state
    record = federation.step()
    assert silent
    assert (record.status, record.failed, record.loss) == ("skipped", [], {})
    assert federation.state == before


def test_a_number_of_images_that_no_class_has_is_refused():
    with pytest.raises(CafedclError, match=r"release.fewest = 9999: no client has that many"):
        prepare(tiny_config("fedavg", {"release.fewest": 9999}))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_with_safe_releases(tiny, method):
    federation = tiny(method, federation__participation=1.0, **SAFE)
    record = federation.step()
    assert (record.status, record.failed) == ("ok", [])
    assert record.traffic["notes_bytes"] == 0


def all_replies(federation):
    everyone = list(range(len(federation.counts)))
    results = list(federation.train(federation.down(), everyone))
    assert all(isinstance(result, Reply) for result in results)
    return results


def test_what_is_sent_does_not_depend_on_exact_counts(tiny):
    """The confidence of CAFedCL follows from counts: it must follow from the told ones."""
    options = {**SAFE, "method__w": [1.0, 0.0, 0.0], "method__clip": [0.0, 1.0]}
    federation = tiny("cafedcl", **options)
    task = federation.task
    for reply in all_replies(federation):
        up = reply.up
        exact = task.clients.shards.counts[up.client]
        told = task.release.counts(exact)
        assert up.samples == int(told.sum()) != int(exact.sum())
        most = task.enrolment.census.most[up.tensors["classes"]]
        expected = told[up.tensors["classes"]] / most
        torch.testing.assert_close(up.tensors["confidence"].double(), expected.double())
        lengths = up.tensors["prototypes"].norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
        assert (up.notes, up.seconds) == ({}, 0.0)


def test_a_rare_class_is_not_reported(tiny):
    federation = tiny("cafedcl", split__kind="iid", release__fewest=28)
    counts = federation.task.clients.shards.counts
    assert (counts < 28).any()
    assert (counts >= 28).any()
    for reply in all_replies(federation):
        listed = reply.up.tensors["classes"]
        assert listed.tolist() == (counts[reply.up.client] >= 28).nonzero().flatten().tolist()


@pytest.mark.parametrize("method", ["cafedcl:best", "spherefed"])
@pytest.mark.parametrize("counts", ["rounded", "withheld"])
def test_sums_over_images_tell_no_more_than_counts_do(tiny, method, counts):
    """Each unit feature adds its weight to the trace, and a class that is not told adds nothing."""
    limits = SAFE | {"release__counts": counts, "release__fewest": 28}
    federation = tiny(method, split__kind="iid", **limits)
    exact = federation.task.clients.shards.counts
    told = federation.task.enrolment.counts
    assert ((exact > 0) & (told == 0)).any()
    assert ((told > 0) & (told != exact)).any()
    weight = torch.ones(exact.shape[1])
    if method == "cafedcl:best":
        weight = 1 / told.sum(0).clamp_min(1)
    for reply in all_replies(federation):
        mine = told[reply.up.client]
        sent = reply.up.tensors
        assert not sent["targets"][mine == 0].any()
        assert sent["targets"][mine > 0].any(1).all()
        expected = float((mine * weight).sum())
        assert float(sent["gram"].trace()) == pytest.approx(expected, rel=1e-5)


def test_a_method_that_lists_all_classes_sends_zeros_for_rare_ones(tiny):
    federation = tiny("cafedcl", split__kind="iid", release__fewest=28, method__absent="literal")
    for reply in all_replies(federation):
        rare = federation.task.clients.shards.counts[reply.up.client] < 28
        assert not reply.up.tensors["prototypes"][rare].any()
        assert not reply.up.tensors["confidence"][rare].any()


def test_test_results_of_few_images_are_left_out():
    release = Release(ReleaseOptions(5, "exact", 10, "raw", "on"))
    correct = {"tested": torch.tensor([4, 5]), "all": torch.tensor([3, 4])}
    assert {name: value.tolist() for name, value in release.tested(correct).items()} == {
        "tested": [0, 5],
        "all": [0, 4],
    }
    assert release.tested({}) == {}


@given(
    st.lists(
        st.integers(0, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_recalls_are_told_but_not_how_many_images_were_tested(results, grid):
    exact = torch.tensor([n for n, _ in results])
    right = torch.tensor([hits for _, hits in results])
    for how in ("rounded", "withheld"):
        release = Release(ReleaseOptions(5, how, grid, "raw", "on"))
        told = release.tested({"tested": exact, "all": right})
        wanted = release.counts(exact) if how == "rounded" else 100 * (exact >= 5)
        assert told["tested"].tolist() == wanted.tolist()
        assert torch.equal(release.tested(told)["all"], told["all"])
        for n, hits, tested, correct in zip(
            *(values.tolist() for values in (exact, right, told["tested"], told["all"])),
            strict=True,
        ):
            if tested:
                assert abs(correct / tested - hits / n) <= 0.5 / tested + 1e-9
            else:
                assert correct == 0


def test_synthetic_images_do_not_tell_how_many_real_ones_are_missing(tiny):
    federation = tiny("cafedcl", augment__name="gaussian", **SAFE, federation__participation=1.0)
    record = federation.step()
    assert record.failed == []
    task = federation.task
    told = task.release.client(task.clients.client(0))
    most = task.tail.augmenter.new_samples(told.counts[None])[0]
    signals = task.told_signals(told, {"synthetic": torch.full_like(most, 1000)})
    assert torch.equal(signals["synthetic"], most)


def test_other_engines_leave_such_a_run_to_the_reference():
    config = tiny_config("fedavg", {"release.fewest": 5})
    notices = []
    engine = choose_engine(prepare(config), notices.append)
    assert engine.name == "reference"
    assert any("[release] limits what they report" in notice for notice in notices)


def test_without_limits_nothing_changes(tiny):
    federation = tiny("cafedcl")
    client = federation.task.clients.client(0)
    assert federation.task.release.client(client) is client
    reply = all_replies(federation)[0]
    assert federation.task.release.reply(reply, client, federation.task.fields) is reply
