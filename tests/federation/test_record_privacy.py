"""Record-level differential privacy: accounting per client, resuming, budget, refusals."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.config.release_options import ReleaseOptions
from cafedcl.config.train_options import TrainOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.export.card import bounded_privacy
from cafedcl.federation.privacy import check_private_method
from cafedcl.federation.record_privacy import VISITS, RecordPrivacy
from cafedcl.methods import find_method, method_names
from cafedcl.methods.fedavg import FedAvg
from cafedcl.task.local_schedule import LocalSchedule
from cafedcl.task.release import Release
from cafedcl.task.resolve import resolve
from cafedcl.testing.case import first_difference, result_of

PRIVATE = {"privacy__kind": "records", "privacy__noise": 2.0, "train__iterations": 4}


def private(tiny, method="fedavg", **options):
    return tiny(method, **{**PRIVATE, **options})


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn", "moon", "local"])
def test_methods_with_losses_of_single_images_run_and_send_no_losses(tiny, method):
    federation = private(tiny, method)
    for _ in range(2):
        record = federation.step()
        assert (record.status, record.failed, record.loss) == ("ok", [], {})
    assert record.privacy["epsilon"] > 0


def test_the_methods_that_can_are_the_known_ones():
    found = {name for name in method_names() if find_method(name)[0].per_image}
    assert found == {"fedavg", "fedprox", "fedbn", "moon", "local", "central"}


def test_epsilon_of_every_client_is_the_librarys_for_its_own_steps(tiny):
    # Imported here, because it takes seconds in every process that collects tests.
    import dp_accounting
    from dp_accounting import rdp

    federation = private(tiny, federation__rounds=2)
    federation.run()
    visits = federation.state[VISITS]
    counted = [sum(client in record.participants for record in federation.history)
               for client in range(5)]  # fmt: skip
    assert visits.tolist() == counted
    samples = federation.counts.sum(1).tolist()
    expected = []
    for images, rounds in zip(samples, counted, strict=True):
        batch = math.ceil(images / 4)
        accountant = rdp.RdpAccountant()
        gaussian = dp_accounting.GaussianDpEvent(2.0)
        rate = math.ceil(200 * batch / images) / 200
        steps = math.ceil(images / batch) * rounds
        if steps:
            accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
        expected.append(accountant.get_epsilon(1e-5) if steps else 0.0)
    spent = federation.history[-1].privacy
    assert spent["epsilon"] == pytest.approx(max(expected), rel=1e-6)
    assert spent["least_epsilon"] == pytest.approx(min(expected), rel=1e-6)


def test_a_resumed_run_keeps_every_bit_and_every_epsilon(tiny):
    whole, resumed = (private(tiny, "moon", federation__rounds=3) for _ in range(2))
    whole.step()
    interrupted = pack(*whole.snapshot())
    result = result_of(whole)
    resumed.restore(*unpack(interrupted))
    assert first_difference(result, result_of(resumed)) is None
    assert [r.privacy for r in whole.history[1:]] == [r.privacy for r in resumed.history]


def test_a_batch_larger_than_the_data_makes_the_steps_no_smaller(tiny):
    """Every image takes part then, and the sum is divided by their number."""
    found = []
    for size in (1_000, 60_000):
        federation = private(tiny, train__batch_size=size)
        federation.step()
        found.append(federation.state)
    assert first_difference(*found) is None


def test_noise_makes_the_difference(tiny):
    quiet = private(tiny, privacy__noise=0.1, privacy__clip=1e-3)
    loud = private(tiny, privacy__noise=500.0, privacy__clip=1e-3)
    moved = []
    for federation in (quiet, loud):
        before = federation.state["model/head.weight"]
        federation.step()
        moved.append(float((federation.state["model/head.weight"] - before).norm()))
    assert moved[1] > 10 * moved[0]


def test_rounds_that_were_done_again_count_for_every_client(tiny):
    federation = private(tiny, privacy__randomness="system")
    federation.step()
    once = max(federation.privacy.epsilons(federation.state))
    federation.privacy.resume(1, 3)
    assert federation.privacy.again == 2
    assert max(federation.privacy.epsilons(federation.state)) > once


def test_the_run_ends_before_the_round_that_would_exceed_the_budget(tiny):
    everyone = {"federation__participation": 1.0, "federation__rounds": 3}
    limit = private(tiny, **everyone).run()[1].privacy["epsilon"] + 1e-6
    federation = private(tiny, **everyone, privacy__budget=limit)
    assert len(federation.run()) == 2
    assert federation.finished
    assert "one more round would bring ε to" in federation.notices[-1]
    with pytest.raises(CafedclError, match="the first round alone has ε"):
        private(tiny, privacy__budget=0.01)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("cafedcl", {}, "the loss of cafedcl is not a mean over single images"),
        ("fedlc", {}, "the loss of fedlc"),
        ("scaffold", {}, "the loss of scaffold"),
        ("fedavg", {"augment__name": "mixup"}, "augment.name = mixup: synthetic images reveal"),
        ("fedavg", {"privacy__quantile": 0.5}, "the privacy 'records' does not use it"),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(tiny, method, options, message):
    with pytest.raises(CafedclError, match=message) as error:
        private(tiny, method, **options)
    assert "\n" not in str(error.value)


def test_the_model_card_says_what_the_bound_is_about(tiny):
    federation = private(tiny)
    record = federation.step()
    words = bounded_privacy("here", record.privacy, federation.config.privacy)
    assert "record-level differential privacy: ε" in words
    assert torch.equal(federation.state[VISITS] > 0, torch.isin(
        torch.arange(5), torch.tensor(record.participants)))  # fmt: skip


def test_with_few_clients_a_round_the_budget_counts_those_who_take_part(tiny):
    few = {"federation__participation": 0.2, "federation__rounds": 6}
    spent = [record.privacy["epsilon"] for record in private(tiny, **few).run()]
    assert spent[0] < max(spent)
    first_above = next(index for index, epsilon in enumerate(spent) if epsilon > spent[0])
    federation = private(tiny, **few, privacy__budget=spent[0] + 1e-6, evaluate__full=True)
    records = federation.run()
    assert len(records) == first_above
    assert f"ε to {spent[first_above]:.4g}" in federation.notices[-1]
    assert [record.server is not None and "auroc" in record.server for record in records] == [
        *[False] * (first_above - 1), True,
    ]  # fmt: skip


@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    fewest=st.integers(1, 20),
    grid=st.integers(1, 50),
    batch=st.integers(0, 40),
)
def test_a_server_that_is_told_rounded_counts_assumes_the_worst(counts, fewest, grid, batch):
    release = Release(ReleaseOptions(fewest, "rounded", grid, "raw", "on"))
    exact = torch.tensor(counts)
    low, high = release.possible_counts(release.counts(exact))
    assert (low <= exact).all()
    assert (exact <= high).all()
    images = sum(counts)
    schedule = LocalSchedule(TrainOptions(batch_size=batch), 10, pooled=False, rounds=1)
    ledger = object.__new__(RecordPrivacy)
    ledger.task = SimpleNamespace(schedule=schedule)
    rate, steps = ledger.worst(float(low.sum()), float(high.sum()))
    assert rate >= schedule.batch_size(images) / images
    assert steps >= schedule.steps(images)


def test_withheld_counts_say_nothing_of_the_most_images():
    release = Release(ReleaseOptions(5, "withheld", 10, "raw", "on"))
    low, high = release.possible_counts(release.counts(torch.tensor([0, 7, 400])))
    assert low.tolist() == [0, 5, 5]
    assert high.tolist() == [4, math.inf, math.inf]
    ledger = object.__new__(RecordPrivacy)
    for batch, known in ((0, True), (16, False)):
        schedule = LocalSchedule(TrainOptions(batch_size=batch), 10, pooled=False, rounds=1)
        ledger.task = SimpleNamespace(schedule=schedule)
        if known:
            assert ledger.worst(10.0, math.inf)[1] == schedule.options.epochs * 10
        else:
            with pytest.raises(CafedclError, match=r"release\.counts = withheld: .*use rounded"):
                ledger.worst(10.0, math.inf)


class TenClasses(FedAvg):
    """A method that cannot be made for other numbers of classes."""

    name = "ten-classes"

    def __init__(self, options, classes, dim, clients=1):
        if classes != 10:
            raise ValueError("ten are expected")
        super().__init__(options, classes, dim, clients)


@pytest.mark.parametrize("kind", ["none", "records", "clients"])
def test_a_method_that_needs_the_number_of_classes_is_checked_later(kind):
    name = f"{__name__}:TenClasses"
    check_private_method(resolve({"method": {"name": name}, "privacy": {"kind": kind}}))
