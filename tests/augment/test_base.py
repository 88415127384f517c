import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from augmented import client_of, skewed
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.augment import AUGMENTERS, find_augmenter
from cafedcl.augment.base import (
    ClientImages,
    Resample,
    SyntheticImages,
    TailOptions,
    missing_images,
)
from cafedcl.config.options import option
from cafedcl.core.contract import Down, Reply
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import AUGMENT, under
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods import method_names
from cafedcl.task.resolve import gather, resolve

Tiny = Callable[..., Federation]
KINDS = [name for name in AUGMENTERS if name != "none"]


def made(name: str, client: ClientImages, **options: Any) -> SyntheticImages:
    cls = find_augmenter(name)
    return cls(
        cls.Options(**options), len(client.synthetic_counts), tuple(client.x.shape[1:]), 0
    ).make(client)  # type: ignore[arg-type]


# how many


def test_tail_classes_are_filled_to_the_mean_of_the_classes_a_client_has() -> None:
    counts = torch.tensor([[90, 10, 0, 20], [5, 5, 5, 0], [0, 7, 0, 0], [1, 100, 0, 0]])
    assert missing_images(counts, TailOptions()).tolist() == [
        [0, 30, 0, 20],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [50, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tail": "median"}, [0, 10, 0, 0]),
        ({"tail": "max"}, [0, 80, 0, 70]),
        ({"fill": 0.5}, [0, 15, 0, 10]),
        ({"fill": 0.0}, [0, 0, 0, 0]),
        ({"most": 2.0}, [0, 20, 0, 20]),
    ],
)
def test_the_rule_can_be_set(options: dict[str, Any], expected: list[int]) -> None:
    assert (
        missing_images(torch.tensor([90, 10, 0, 20]), TailOptions(**options)).tolist() == expected
    )


def test_the_median_of_an_even_number_of_classes_is_in_the_middle() -> None:
    counts = torch.tensor([[10, 100, 0, 0], [10, 20, 100, 1000]])
    expected = [[45, 0, 0, 0], [50, 40, 0, 0]]
    assert missing_images(counts, TailOptions(tail="median")).tolist() == expected


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=12),
    st.sampled_from(["mean", "median", "max"]),
)
def test_only_classes_a_client_has_are_filled_and_none_beyond_its_largest(
    counts: list[int], tail: str
) -> None:
    wanted = missing_images(torch.tensor(counts), TailOptions(tail=tail)).tolist()
    for n, m in zip(counts, wanted, strict=True):
        assert m == 0 if n in (0, max(counts)) else 0 <= m <= max(counts) - n


# what comes out


@pytest.mark.parametrize("name", ["resample", "mixup", "cutmix", "gaussian"])
def test_exactly_what_is_wanted_is_made_in_the_order_of_the_classes(name: str) -> None:
    client = client_of([6, 2, 1, 0], [0, 4, 3, 0])
    synthetic = made(name, client)
    assert synthetic.y.tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert synthetic.x.shape == (7, 1, 8, 8)
    assert synthetic.x.dtype == torch.uint8
    again = made(name, client_of([6, 2, 1, 0], [0, 4, 3, 0]))
    assert torch.equal(synthetic.x, again.x)
    other = made(name, client_of([6, 2, 1, 0], [0, 40, 3, 0], seed=1))
    assert not torch.equal(other.x[:4], made(name, client_of([6, 2, 1, 0], [0, 40, 3, 0])).x[:4])


def test_resampling_copies_images_of_the_class_evenly_and_claims_nothing() -> None:
    synthetic = made("resample", client_of([1, 4, 50], [0, 4000, 0]))
    levels, times = synthetic.x[:, 0, 0, 0].unique(return_counts=True)
    assert levels.tolist() == [20, 21, 22, 23]
    assert (times - 1000).abs().max() < 150
    assert synthetic.signals == {}


def test_mixup_blends_two_images_of_the_class() -> None:
    client = client_of([2, 50], [3000, 0])
    client.x[:2, :, :, :4] = torch.tensor([0, 200], dtype=torch.uint8)[:, None, None, None]
    x = made("mixup", client).x.float()
    share = x[:, 0, 0, 0] / 200
    torch.testing.assert_close(x[:, 0, 0, 7], share, atol=0.51, rtol=0)
    assert float(share.mean()) == pytest.approx(0.5, abs=0.03)
    assert ((share > 0.2) & (share < 0.8)).double().mean() == pytest.approx(0.5 * 0.6, abs=0.05)


def test_cutmix_pastes_one_rectangle() -> None:
    client = client_of([2, 50], [500, 0])
    client.x[1] = 255
    areas = []
    for image in made("cutmix", client).x[:, 0]:
        levels = image.unique().tolist()
        assert set(levels) <= {0, 255}
        for level in levels:
            inside = image == level
            rows = inside.any(1).sum()
            columns = inside.any(0).sum()
            if int(rows * columns) == int(inside.sum()):
                areas.append(int(inside.sum()) / 64)
                break
        else:
            pytest.fail("neither image is in a rectangle")
    assert {round(area, 1) for area in areas} > {0.1, 0.4, 1.0}


def test_mixtures_count_as_new_where_there_are_two_images() -> None:
    for name in ("mixup", "cutmix"):
        assert made(name, client_of([6, 2, 1], [0, 4, 3])).signals["synthetic"].tolist() == [
            0,
            4,
            0,
        ]


def test_gaussian_features_have_the_tails_mean_and_the_heads_spread() -> None:
    made_with = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [400, 300, 3])
    spread = np.array([1.0, 2.0, 0.0, 5.0])
    z = torch.from_numpy(made_with.normal(size=(703, 4)) * spread + 10 * y[:, None]).float()
    client = client_of([400, 300, 3], [0, 0, 5000], features=lambda: z)
    synthetic = made("gaussian", client)
    assert synthetic.shift is not None
    picked = synthetic.x[:, 0, 0, 0].long() - 40
    features = z[700 + picked] + synthetic.shift
    torch.testing.assert_close(features.mean(0), z[700:].mean(0), atol=0.25, rtol=0)
    pooled = torch.sqrt(
        (z[:400].var(0, correction=0) * 400 + z[400:700].var(0, correction=0) * 300)
        / (400 + 300 - 2)
    )
    torch.testing.assert_close(features.std(0), pooled, atol=0.02, rtol=0.05)
    assert synthetic.signals["synthetic"].tolist() == [0, 0, 5000]


def test_gaussian_features_without_a_spread_to_learn_from_are_the_prototype() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0]])
    client = client_of([1, 2], [0, 3], features=lambda: z)
    synthetic = made("gaussian", client)
    assert synthetic.shift is not None
    picked = synthetic.x[:, 0, 0, 0].long() - 20
    torch.testing.assert_close(
        z[1 + picked] + synthetic.shift, torch.tensor([4.0, 2.0]).expand(3, 2)
    )


# choosing


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"augment": {"name": "gna"}}, "did you mean 'gan'"),
        ({"augment": {"name": "json:loads"}}, "not a class derived from"),
        ({"augment": {"name": "nowhere.at_all:X"}}, "cannot be imported"),
        ({"augment": {"name": 3}}, "augment.name = 3: a text is expected"),
        ({"augment": {"name": "gan", "steps": 0}}, "augment.steps = 0: it must be at least 1"),
        ({"augment": {"name": "mixup", "steps": 5}}, "augment.steps: there is no such option"),
        ({"augment": {"steps": 5}}, "there is no such option; this augment has no options"),
        (
            {"method": {"name": "fedavg+gan"}, "augment": {"name": "mixup"}},
            'augment.name = "mixup" says otherwise',
        ),
        ({"method": {"name": "fedavg+gna"}}, "did you mean 'gan'"),
    ],
)
def test_a_wrong_choice_is_one_clear_line(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(CafedclError, match=re.escape(said)) as error:
        resolve(tables)
    assert "\n" not in str(error.value)


def test_a_method_may_name_its_augmentation() -> None:
    config = resolve({"method": {"name": "cafedcl:no-geo+mixup"}, "augment": {"alpha": 0.4}})
    assert (config.method.name, config.augment.name, config.label) == (
        "cafedcl:no-geo",
        "mixup",
        "cafedcl:no-geo+mixup",
    )
    assert config.augment.options.alpha == 0.4
    assert resolve(config.to_plain()) == config
    assert gather(method="fedavg", augment="mixup").label == "fedavg+mixup"
    assert resolve({}).label == "cafedcl"


class Grey(Resample):
    """A third party's: grey images."""

    name = "grey"

    def make(self, client: ClientImages) -> SyntheticImages:
        synthetic = super().make(client)
        return replace(synthetic, x=torch.full_like(synthetic.x, 128))


def test_another_one_is_one_class(tiny: Tiny) -> None:
    federation = tiny(
        "fedavg", augment__name=f"{__name__}:Grey", split__kind="dirichlet", split__alpha=0.5
    )
    assert isinstance(federation.task.tail.augmenter, Grey)
    federation.run()
    assert [record.status for record in federation.history] == ["ok", "ok"]


# in a federation


# A method sees batches with weights and does not know where the images come from. So every method
# runs with one kind, and every kind with methods that count, keep or compare images differently.
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (method, kind)
        for method in method_names()
        for kind in KINDS
        if kind == "gaussian" or method in ("cafedcl", "fedproto", "central")
    ],
)
def test_every_method_runs_with_every_augmentation(tiny: Tiny, method: str, kind: str) -> None:
    federation = skewed(tiny, method, kind)
    record = federation.step()
    assert (record.status, record.failed) == ("ok", [])
    assert federation.task.tail.synthetic_counts.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_trains_on_its_own_images_and_exactly_those_wanted(tiny: Tiny, kind: str) -> None:
    """An epoch's batches are the client's images and the synthetic ones, each once."""
    federation = skewed(tiny, "fedavg", kind, augment__weight=0.25)
    task = federation.task
    seen = []
    loss = task.method.loss

    def watch(model: Any, batch: Any, visit: Any) -> Any:
        seen.append(batch)
        return loss(model, batch, visit)

    task.method.loss = watch  # type: ignore[method-assign]
    record = federation.step()
    assert not record.failed
    client = record.participants[0]
    counts = task.clients.shards.counts[client]
    wanted = torch.from_numpy(task.tail.synthetic_counts[client])
    steps = task.schedule.steps(int(counts.sum() + wanted.sum()))
    y = torch.cat([batch.y for batch in seen[:steps]])
    weight = torch.cat([batch.weight for batch in seen[:steps]])
    assert torch.bincount(y, minlength=10).tolist() == (counts + wanted).tolist()
    assert torch.bincount(y[weight == 0.25], minlength=10).tolist() == wanted.tolist()
    assert torch.bincount(y[weight == 1], minlength=10).tolist() == counts.tolist()


def test_weights_in_the_average_and_sums_of_rates_know_what_is_real(tiny: Tiny) -> None:
    federation = skewed(tiny, "fedavg", "resample", train__batch_size=8)
    task = federation.task
    for client in range(len(task.clients.shards)):
        images = len(task.clients.shards.train[client]) + int(
            task.tail.synthetic_counts[client].sum()
        )
        assert task.rates(client, 0) == pytest.approx(-(-images // 8) * task.schedule.options.lr)
        assert task.clients.client(client).samples == len(task.clients.shards.train[client])


def test_with_nothing_to_fill_nothing_changes(tiny: Tiny) -> None:
    """To the bit."""
    plain = tiny("cafedcl", split__kind="iid", federation__clients=2, federation__participation=1.0)
    counts = plain.task.clients.shards.counts
    other = tiny(
        "cafedcl",
        split__kind="iid",
        federation__clients=2,
        federation__participation=1.0,
        augment__name="mixup",
        augment__fill=0.0,
    )
    assert counts.equal(other.task.clients.shards.counts)
    assert not other.task.tail.synthetic_counts.any()
    plain.run()
    other.run()
    for name, value in plain.state.items():
        assert torch.equal(value, other.state[name]), name


def test_what_is_learned_stays_with_the_client_and_comes_back(tiny: Tiny) -> None:
    federation = skewed(tiny, "cafedcl", "gan", federation__participation=1.0)
    down = federation.step().traffic
    plain = skewed(tiny, "cafedcl", "none", federation__participation=1.0)
    assert plain.step().traffic["up_bytes"] == down["up_bytes"], "nothing of it travels"
    tensors, header = federation.snapshot()
    other = skewed(tiny, "cafedcl", "gan", federation__participation=1.0)
    other.restore(tensors, header)
    kept = under(AUGMENT, other.memories[0])
    assert kept.keys() == under(AUGMENT, federation.memories[0]).keys()
    assert any(name.startswith("generator/") for name in kept)
    federation.step()
    other.step()
    for name, value in federation.state.items():
        assert torch.equal(value, other.state[name]), name
    assert isinstance(federation.engine, ReferenceEngine)


@pytest.mark.parametrize("kind", ["none", "resample", "mixup", "gaussian", "gan"])
@pytest.mark.parametrize("rule", ["max", "sum"])
def test_conf_data_is_the_share_of_the_largest_effective_count(
    tiny: Tiny, kind: str, rule: str
) -> None:
    """n_eff = n + γm of every client and class is known at enrolment, so no share exceeds 1."""
    federation = skewed(tiny, "cafedcl", kind, method__data_scale=rule, method__gamma=0.7)
    task = federation.task
    real = task.clients.shards.counts.double().numpy()
    made = np.zeros_like(real)
    for k, n in enumerate(real):
        level = n[n > 0].mean()
        missing = np.where((n > 0) & (n < level), np.round(level - n), 0)
        enough = {"none": np.inf, "resample": np.inf, "mixup": 2, "gaussian": 1, "gan": 2}[kind]
        made[k] = np.where(n >= enough, missing, 0)
    n_eff = real + 0.7 * made
    scale = n_eff.max(0) if rule == "max" else n_eff.sum(0)
    down = Down(0, federation.method.broadcast(federation.state))
    largest = np.zeros(10)
    for reply in federation.train(down, list(range(len(real)))):
        assert isinstance(reply, Reply)
        found = reply.up.notes["confidence_data"].numpy()
        largest = np.maximum(largest, found)
        expected = n_eff[reply.up.client] / scale
        if kind == "gan":
            # A generator that fails gives copies, which do not count.
            assert (found <= expected + 1e-6).all()
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert largest.max() <= 1
    if rule == "max" and kind != "gan":
        np.testing.assert_allclose(largest, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (torch.zeros(3, 1, 2, 2), torch.tensor([0, 0, 1]), "images of float32, shape"),
        (torch.zeros(3, 1, 2, 3, dtype=torch.uint8), torch.tensor([0, 0, 1]), "(1, 2, 2) is"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0]), "3 of both are wanted"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([1, 1, 2]), "other classes"),
    ],
)
def test_synthetic_images_that_were_not_asked_for_are_named(
    x: torch.Tensor, y: torch.Tensor, said: str
) -> None:
    wanted = np.array([2, 1, 0])
    good = SyntheticImages(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0]))
    assert good.problem(torch.Size((1, 2, 2)), wanted) == ""
    assert said in SyntheticImages(x, y).problem(torch.Size((1, 2, 2)), wanted)


@pytest.mark.parametrize(
    ("step", "returned", "said"),
    [
        ("make", 3, "its make returns int; SyntheticImages(x, y) is expected (test_base.py, line"),
        ("make", SyntheticImages(torch.zeros(1, 2), torch.zeros(1)), "its make returns images of"),
        ("learn", None, "its learn returns NoneType; a dict of tensors is expected (test_base.py"),
    ],
)
def test_what_an_augmenter_returns_is_said_with_its_step_and_place(
    step: str, returned: Any, said: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Resample, step, lambda *_: returned)
    federation = tiny("fedavg", augment__name="resample", split__kind="dirichlet")
    failed = federation.step().failed
    assert failed[0]["reason"].startswith(f"augment 'resample': {said}")


# classes of one's own


@dataclass(frozen=True)
class BareOptions:
    strength: float = option(1.0, "how much brighter", low=0.0)


class BareAugmenter(Resample):
    name = "bare"
    Options = BareOptions


def test_options_without_those_of_every_augmentation_are_refused() -> None:
    with pytest.raises(CafedclError, match=r"write class BareOptions\(TailOptions\)$"):
        find_augmenter(f"{__name__}:BareAugmenter")
