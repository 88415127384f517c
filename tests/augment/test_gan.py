from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmented import client_of, skewed
from PIL import Image
from torch.nn.functional import one_hot

from cafedcl.augment import trainer as trainer_module
from cafedcl.augment.base import ClientImages
from cafedcl.augment.gan import GAN, GANOptions, held_out_images, scale_images, unscale_images
from cafedcl.augment.quality import COLLAPSE, COPIES, FINE, NONE, STAND_IN
from cafedcl.augment.trainer import BATCH, Trainer, draw_plan
from cafedcl.core.tensors import Tensors
from cafedcl.data import Dataset
from cafedcl.federation.callback import Callback
from cafedcl.federation.contact_sheets import HEAD, TILE, ContactSheets
from cafedcl.federation.rounds import Federation

Tiny = Callable[..., Federation]
CPU = torch.device("cpu")


def gan(**options: Any) -> GAN:
    return GAN(GANOptions(**options), 3, (1, 8, 8), 0)


def with_verdicts(*verdicts: float) -> Callable[..., Tensors]:
    """A stand-in for training: these verdicts, and a generator at its first weights."""

    def fit(self: GAN, _client: ClientImages, _labels: list[int], table: dict[str, Any]) -> Tensors:
        table["verdict"][:] = verdicts
        table["quality"][:] = 0.7
        table["score"][:] = 0.4
        return {
            name: value.clone()
            for name, value in Trainer((1, 8, 8), 3, 8, 1e-3, 0, CPU).average.items()
        }

    return fit


# training


def test_steps_draw_the_tail_more_often_than_its_share_and_only_what_is_there() -> None:
    y = np.repeat([0, 2], [90, 10])
    tables = draw_plan(y, 3, 200, np.random.default_rng(0))
    assert (y[tables["rows"].astype(int)] == tables["labels"]).all()
    tail = np.sqrt(10) / (np.sqrt(10) + np.sqrt(90))
    for name in ("labels", "claimed"):
        assert set(np.unique(tables[name])) == {0, 2}
        assert (tables[name] == 2).mean() == pytest.approx(tail, abs=0.02)
    assert tables["noise"].shape[:3] == (200, 2, BATCH)


def test_every_client_starts_anew(digits: Dataset) -> None:
    """What a client learns does not depend on who learned before it."""
    x = scale_images(digits.train_x[:40])
    y = digits.train_y[:40].numpy()
    one, other = (Trainer((1, 8, 8), 10, 8, 1e-3, 0, CPU) for _ in range(2))
    assert other.fit(
        scale_images(digits.train_x[200:300]),
        digits.train_y[200:300].numpy(),
        3,
        np.random.default_rng(1),
    )
    for trainer in (one, other):
        assert trainer.fit(x, y, 4, np.random.default_rng(0))
    for name, value in one.average.items():
        assert torch.equal(value, other.average[name]), name
    assert not torch.equal(one.average["full.weight"], one.first[one.generator]["full.weight"])


def test_the_generator_that_is_kept_is_an_average_over_the_steps(digits: Dataset) -> None:
    trainer = Trainer((1, 8, 8), 10, 8, 1e-3, 0, CPU)
    trainer.fit(
        scale_images(digits.train_x[:40]), digits.train_y[:40].numpy(), 1, np.random.default_rng(0)
    )
    first = trainer.first[trainer.generator]
    last = trainer.generator.state_dict()
    for name, value in trainer.average.items():
        torch.testing.assert_close(value, 0.99 * first[name] + 0.01 * last[name])


@pytest.mark.slow
def test_generated_digits_are_recognised_by_a_judge_who_never_saw_them(digits: Dataset) -> None:
    """A linear classifier trained on all digits knows at least half of them; chance is a tenth."""
    rows = torch.cat([(digits.train_y == c).nonzero()[:40, 0] for c in (0, 1, 4, 7)])
    trainer = Trainer((1, 8, 8), 10, 8, 1e-3, 0, CPU)
    assert trainer.fit(
        scale_images(digits.train_x[rows]),
        digits.train_y[rows].numpy(),
        90,
        np.random.default_rng(0),
    )
    pixels = digits.train_x.flatten(1).double() / 255
    targets = one_hot(digits.train_y, 10).double()
    judge = torch.linalg.solve(pixels.T @ pixels + torch.eye(64), pixels.T @ targets)
    known = digits.test_x.flatten(1).double() @ judge
    assert (known.argmax(1) == digits.test_y).double().mean() > 0.85
    y = torch.tensor([0, 1, 4, 7]).repeat_interleave(50)
    x = unscale_images(trainer.sample(y, np.random.default_rng(1)))
    assert ((x.flatten(1).double() @ judge).argmax(1) == y).double().mean() > 0.5


def test_pixels_and_back() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(unscale_images(scale_images(x)), x)
    assert unscale_images(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


# quality


def test_a_client_with_held_out_images_is_judged_by_them() -> None:
    client = client_of([20, 20], [0, 5])
    client = replace(client, held_x=client.x[:8], held_y=client.y[:8])
    train, held, y = held_out_images(client)
    assert len(train) == 40
    assert torch.equal(held, client.held_x)
    assert torch.equal(y, client.held_y)


def test_a_client_without_keeps_one_in_five_of_every_class_from_the_generator() -> None:
    client = client_of([20, 5, 10], [0, 15, 10])
    train, held, y = held_out_images(client)
    assert np.bincount(client.host_y[train]).tolist() == [16, 4, 8]
    assert torch.bincount(y).tolist() == [4, 1, 2]
    whole = torch.cat([client.images(train), held])[:, 0, 0, 0]
    assert sorted(whole.tolist()) == sorted(client.x[:, 0, 0, 0].tolist())


# what a client is given


def test_generated_images_where_there_is_a_generator_and_copies_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GAN, "_fit", with_verdicts(FINE, COLLAPSE, COPIES))
    client = client_of([30, 10, 10], [4, 20, 20])
    augmenter = gan()
    client = replace(client, memory=augmenter.learn(client))
    synthetic = augmenter.make(client)
    assert synthetic.y.tolist() == [0] * 4 + [1] * 20 + [2] * 20
    flat = synthetic.x.flatten(1)
    copies = (flat == flat[:, :1]).all(1)
    assert copies.tolist() == [False] * 4 + [True] * 20 + [False] * 20
    assert synthetic.signals["synthetic"].tolist() == [4, 0, 20]
    assert synthetic.signals["quality"].tolist() == pytest.approx([0.7, 0, 0.7])
    literal = gan(score="literal").make(client)
    assert literal.signals["quality"].tolist() == pytest.approx([0.4, 0, 0.4])


def test_a_class_with_one_image_and_a_client_with_few_images_get_copies() -> None:
    client = client_of([9, 1, 3], [0, 3, 1])
    augmenter = gan(steps=2)
    memory = augmenter.learn(client)
    assert memory["verdict"].tolist() == [NONE, STAND_IN, STAND_IN]
    assert not any(name.startswith("generator/") for name in memory)
    synthetic = augmenter.make(replace(client, memory=memory))
    assert synthetic.x[:, 0, 0, 0].tolist()[:3] == [20, 20, 20]
    assert synthetic.signals["synthetic"].sum() == 0


@pytest.mark.parametrize("where", ["loss", "weights"])
def test_numbers_that_are_not_finite_give_copies_and_are_recorded(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    client = client_of([20, 10], [0, 5])
    augmenter = GAN(GANOptions(steps=2), 2, (1, 8, 8), 0)
    if where == "loss":
        monkeypatch.setattr(trainer_module.F, "softplus", lambda x: x * torch.nan)
    else:
        monkeypatch.setattr(trainer_module, "jitter", lambda x, _: x * torch.inf)
    memory = augmenter.learn(client)
    assert memory["verdict"].tolist() == [NONE, STAND_IN]
    assert all(value.isfinite().all() for value in memory.values())
    assert augmenter.make(replace(client, memory=memory)).x[:, 0, 0, 0].min() >= 20


def test_a_client_with_one_class_has_no_tail(tiny: Tiny) -> None:
    federation = tiny("cafedcl", split__classes=1, augment__name="gan", federation__clients=10)
    assert not federation.task.tail.synthetic_counts.any()
    assert federation.step().status == "ok"
    assert "notes/generated_verdict" not in federation.history[0].tables


@pytest.mark.parametrize(("refresh", "expected"), [(0, [0, 0, 0, 0]), (2, [0, 0, 2, 2])])
def test_a_generator_is_trained_once_or_anew_after_so_many_rounds(
    monkeypatch: pytest.MonkeyPatch, refresh: int, expected: list[int]
) -> None:
    monkeypatch.setattr(GAN, "_fit", with_verdicts(NONE, FINE, FINE))
    client = client_of([30, 10, 10], [0, 20, 20])
    augmenter = gan(refresh=refresh)
    found = []
    for round in range(4):
        client = replace(client, round=round)
        client = replace(client, memory=augmenter.learn(client))
        found.append(int(client.memory["fitted"]))
    assert found == expected


# what people see


class Ears(Callback):
    """Hears what is noticed."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def noticed(self, federation: Federation, message: str) -> None:
        self.heard.append(message)


def test_trouble_is_one_line_per_kind_in_the_round_it_comes_up(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: GAN, _client: ClientImages, labels: list[int], table: dict[str, Any]) -> Tensors:
        for number, label in enumerate(labels):
            table["verdict"][label] = (COLLAPSE, COPIES, FINE)[number % 3]
        return {
            name: value.clone()
            for name, value in Trainer((1, 8, 8), 10, 8, 1e-3, 0, CPU).average.items()
        }

    monkeypatch.setattr(GAN, "_fit", fit)
    federation = skewed(tiny, "cafedcl", "gan", federation__participation=1.0)
    ears = Ears()
    federation.callbacks.append(ears)
    federation.step()
    assert (
        sum(
            "has collapsed, so real images are drawn again: client 0 " in line
            for line in ears.heard
        )
        == 1
    )
    assert sum("repeats its training images: client 0 " in line for line in ears.heard) == 1
    assert len(ears.heard) <= 3
    assert " more" in ears.heard[-1]
    before = len(ears.heard)
    federation.step()
    assert len(ears.heard) == before, "said once"


def test_trouble_names_the_client_as_people_know_it() -> None:
    notes = {
        1: {
            "generated_verdict": torch.tensor([NONE, STAND_IN]),
            "generated_round": torch.tensor(4.0),
        }
    }
    said = gan().remarks(4, notes, ["cat", "owl"], ["North", "Süd"].__getitem__)
    assert said == ["no generator could be trained, so real images are drawn again: Süd (owl)"]


def test_scores_are_recorded_per_client_and_class(tiny: Tiny) -> None:
    federation = skewed(tiny, "cafedcl", "gan", federation__participation=1.0)
    records: list[Tensors] = []

    class Eyes(Callback):
        def round_done(self, federation: Federation, record: Any) -> None:
            records.append(record.tables)

    federation.callbacks.append(Eyes())
    federation.step()
    tables = records[0]
    verdict = tables["notes/generated_verdict"]
    judged = verdict >= FINE
    assert verdict.shape == (5, 10)
    assert judged.any()
    for name in ("score", "quality", "diversity", "nearest"):
        values = tables[f"notes/generated_{name}"]
        assert values[judged].isfinite().all()
        assert values[~judged].isnan().all()
    assert ((verdict > NONE) == torch.from_numpy(federation.task.tail.synthetic_counts > 0)).all()


def test_a_sheet_shows_real_and_synthetic_images_of_each_tail_class(
    tiny: Tiny, tmp_path: Path
) -> None:
    federation = skewed(tiny, "fedavg", "resample", federation__participation=1.0)
    federation.callbacks.append(ContactSheets(tmp_path / "samples"))
    federation.run()
    wanted = federation.task.tail.synthetic_counts
    files = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert files == [f"round-0000-client-{k:02d}.png" for k in range(5) if wanted[k].any()], (
        "the first visit only"
    )
    client = int(np.flatnonzero(wanted.any(1))[0])
    with Image.open(tmp_path / "samples" / f"round-0000-client-{client:02d}.png") as sheet:
        rows = (sheet.height - HEAD) // TILE
        ink = np.asarray(sheet.convert("L"))
    assert rows == (wanted[client] > 0).sum()
    assert (ink < 128).any()


def test_there_is_no_sheet_of_features(tiny: Tiny, tmp_path: Path) -> None:
    federation = skewed(tiny, "fedavg", "gaussian")
    federation.callbacks.append(ContactSheets(tmp_path / "samples"))
    federation.step()
    assert not (tmp_path / "samples").exists()
