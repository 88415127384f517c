import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.augment.transforms import make_transforms
from cafedcl.config.train_options import TrainOptions
from cafedcl.core.contract import Down, Job, Reply
from cafedcl.core.rng import stream, torch_stream
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.engine.schedule import (
    ACCEPTED_COST,
    MOST_SIZES,
    STEP_COST,
    Schedule,
    choose_widths,
    make_schedule,
)
from cafedcl.federation.rounds import Federation
from cafedcl.task.task import Task

Tiny = Callable[..., Federation]

OPTIONS = st.builds(
    TrainOptions,
    epochs=st.integers(1, 3),
    iterations=st.integers(1, 6),
    batch_size=st.one_of(st.just(0), st.integers(1, 12)),
    lr=st.floats(0.01, 1.0),
    lr_decay=st.floats(0.5, 1.0),
    lr_decay_in_round=st.booleans(),
    flip=st.booleans(),
    crop=st.integers(0, 2),
)
VISITS = st.tuples(st.integers(0, 4), st.integers(0, 30))
SHARDS = st.integers(1, 40).map(lambda images: np.arange(images) * 3 + 7)


@pytest.fixture(scope="module")
def task(tiny: Tiny) -> Task:
    return tiny("fedavg").task


def trained_with(task: Task, options: TrainOptions) -> Task:
    data = task.clients.data
    return replace(
        task,
        schedule=replace(task.schedule, options=options),
        transforms=make_transforms(options, data.shape, data.mean, data.std),
    )


def batch_size(options: TrainOptions, images: int) -> int:
    return options.batch_size or math.ceil(images / options.iterations)


def plain_batches(task: Task, shard: np.ndarray, client: int, round: int) -> list[list[list[int]]]:
    """The images of every step of every epoch."""
    draws, size = (
        stream(task.seed, "batches", client, round),
        batch_size(task.schedule.options, len(shard)),
    )
    epochs = [
        shard[draws.permutation(len(shard))].tolist() for _ in range(task.schedule.options.epochs)
    ]
    return [[order[i : i + size] for i in range(0, len(order), size)] for order in epochs]


@given(OPTIONS, SHARDS, VISITS, st.integers(0, 5))
def test_a_schedule_is_the_plain_batches_and_padding_of_weight_0(
    task: Task, options: TrainOptions, shard: np.ndarray, visit: tuple[int, int], slack: int
) -> None:
    task = trained_with(task, options)
    width = batch_size(options, len(shard)) + slack
    schedule = make_schedule(task, shard, *visit, width)
    epochs = plain_batches(task, shard, *visit)
    batches = [batch for epoch in epochs for batch in epoch]
    assert schedule.steps == len(batches)
    rows, weight = schedule.tables["rows"], schedule.tables["weight"]
    assert rows.shape == weight.shape == (len(batches), width)
    assert (rows.dtype, weight.dtype) == (torch.int64, torch.float32)
    for batch, row, mass in zip(batches, rows.tolist(), weight.tolist(), strict=True):
        assert row[: len(batch)] == batch
        assert mass == [1.0] * len(batch) + [0.0] * (width - len(batch))
        assert set(row) <= set(shard.tolist()), "padding repeats an image of the client's own"
    assert schedule.tables["first"].tolist() == [
        step == 0 for epoch in epochs for step in range(len(epoch))
    ]
    assert schedule.shares.tolist() == [len(batch) / len(shard) for batch in epochs[-1]]


@given(OPTIONS, SHARDS, VISITS)
def test_the_rate_decays_by_round_and_within_it_only_if_asked(
    task: Task, options: TrainOptions, shard: np.ndarray, visit: tuple[int, int]
) -> None:
    schedule = make_schedule(trained_with(task, options), shard, *visit, len(shard) + 12)
    steps = math.ceil(len(shard) / batch_size(options, len(shard)))
    expected = [
        options.lr * options.lr_decay ** (visit[1] + epoch * options.lr_decay_in_round)
        for epoch in range(options.epochs)
        for _ in range(steps)
    ]
    assert schedule.tables["rate"].tolist() == pytest.approx(expected, rel=1e-6)


@given(OPTIONS, SHARDS, VISITS, st.integers(0, 5))
def test_augmentation_is_drawn_from_the_clients_stream_batch_by_batch(
    task: Task, options: TrainOptions, shard: np.ndarray, visit: tuple[int, int], slack: int
) -> None:
    task = trained_with(task, options)
    before = torch.get_rng_state()
    schedule = make_schedule(task, shard, *visit, batch_size(options, len(shard)) + slack)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = {name for name in schedule.tables if name.startswith("draw/")}
    wanted = {"draw/flip/flipped": options.flip, "draw/crop/place": options.crop}
    assert drawn == {name for name, asked in wanted.items() if asked}
    with torch_stream(task.seed, "client", *visit):
        for step, batch in enumerate(itertools.chain(*plain_batches(task, shard, *visit))):
            if options.flip:
                expected = torch.rand(len(batch)) < 0.5
                found = schedule.tables["draw/flip/flipped"][step, : len(batch)]
                assert torch.equal(found, expected)
            if options.crop:
                expected = torch.randint(0, 2 * options.crop + 1, (2, len(batch))).T
                found = schedule.tables["draw/crop/place"][step, : len(batch)]
                assert torch.equal(found, expected)


@settings(max_examples=40)
@given(st.lists(st.tuples(SHARDS, VISITS), min_size=2, max_size=6), OPTIONS)
def test_tables_of_the_same_mark_are_the_same(
    task: Task, visits: list[tuple[np.ndarray, tuple[int, int]]], options: TrainOptions
) -> None:
    task = trained_with(task, options)
    schedules = [make_schedule(task, shard, *visit, 40) for shard, visit in visits]
    again = [make_schedule(task, shard, visit[0] + 1, visit[1], 40) for shard, visit in visits]
    alike = 0
    for one, other in itertools.combinations([*schedules, *again], 2):
        for name in one.keys.keys() & other.keys.keys():
            if one.keys[name] == other.keys[name]:
                assert torch.equal(one.tables[name], other.tables[name]), name
                alike += 1
    assert alike >= len(visits)
    assert all(schedule.keys.keys() <= schedule.tables.keys() - {"rows"} for schedule in schedules)


@pytest.mark.parametrize("changes", [{}, {"train__flip": True, "train__crop": 2}])
def test_the_reference_engine_trains_on_what_is_scheduled(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    federation = tiny(
        "fedavg", train__epochs=2, train__iterations=3, train__batch_size=0, **changes
    )
    task, drawn, seen = federation.task, [], []
    draw, loss = task.transforms.draw, task.method.loss

    def spying_draw(images):
        drawn.append(draw(images))
        return drawn[-1]

    def spying_loss(network, batch, visit):
        seen.append(batch)
        return loss(network, batch, visit)

    monkeypatch.setattr(task.transforms, "draw", spying_draw)
    monkeypatch.setattr(task.method, "loss", spying_loss)
    down = Down(4, federation.method.broadcast(federation.state))
    assert isinstance(ReferenceEngine(task).attempt(Job(1, down, {}, False)), Reply)
    shard = task.clients.shards.train[1].numpy()
    schedule = make_schedule(task, shard, 1, 4, len(shard))
    assert schedule.steps == len(seen) == 6
    # The schedule has drawn once more.
    del drawn[6:]
    for step, (batch, draws) in enumerate(zip(seen, drawn, strict=True)):
        real = schedule.tables["weight"][step] == 1
        rows = schedule.tables["rows"][step][real]
        assert torch.equal(task.clients.data.train_y[rows], batch.y)
        if not changes:
            assert torch.equal(task.clients.data.images(task.clients.data.train_x[rows]), batch.x)
        assert draws.keys() == ({"flip/flipped", "crop/place"} if changes else set())
        assert all(
            torch.equal(schedule.tables[f"draw/{name}"][step][real], value)
            for name, value in draws.items()
        )


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.randoms(),
)
def test_losses_are_the_sample_weighted_means_of_the_last_epoch(
    sizes, epochs, spare, random
) -> None:
    steps = epochs * len(sizes)
    schedule = Schedule({"rows": torch.zeros(steps, 9)}, np.array(sizes) / sum(sizes), {})
    log = torch.tensor(
        [[random.uniform(-5, 5), random.uniform(-5, 5)] for _ in range(steps + spare)]
    )
    losses = schedule.losses(("ce", "pull"), log.numpy())
    last = log[steps - len(sizes) : steps].tolist()
    assert list(losses) == ["ce", "pull"]
    for index, name in enumerate(losses):
        expected = sum(n * terms[index] for n, terms in zip(sizes, last, strict=True)) / sum(sizes)
        assert losses[name] == pytest.approx(expected, abs=1e-12)


def padded_cost(sizes: list[int], widths: list[int]) -> float:
    return sum(min(width for width in widths if width >= size) + STEP_COST for size in sizes)


def least_cost(sizes: list[int], number: int) -> float:
    """The cheapest of all sets of so many widths that cover every size."""
    points = sorted(set(sizes))
    subsets = itertools.combinations(points[:-1], number - 1)
    return min(padded_cost(sizes, [*subset, points[-1]]) for subset in subsets)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=9), st.integers(1, 8))
def test_widths_cover_every_size_at_the_least_cost_with_no_more_than_are_needed(
    sizes: list[int], most: int
) -> None:
    widths = choose_widths(sizes, most)
    assert widths == sorted(set(widths))
    assert widths[-1] == max(sizes)
    assert len(widths) <= most
    assert padded_cost(sizes, widths) == pytest.approx(least_cost(sizes, len(widths)))
    enough = ACCEPTED_COST * sum(size + STEP_COST for size in sizes)
    assert all(least_cost(sizes, fewer) > enough for fewer in range(1, len(widths)))
    if len(widths) < min(most, len(set(sizes))):
        assert padded_cost(sizes, widths) <= enough * (1 + 1e-12)


@given(st.integers(1, 500), st.integers(1, 200), st.integers(1, 8))
def test_equal_sizes_need_one_width(size: int, clients: int, most: int) -> None:
    assert choose_widths([size] * clients, most) == [size]


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_more_sizes_than_are_told_apart_are_covered_all_the_same(most: int, seed: int) -> None:
    sizes = np.random.default_rng(seed).permutation(3000)[: 4 * MOST_SIZES] + 1
    widths = choose_widths(sizes.tolist(), most)
    assert widths == sorted(set(widths))
    assert len(widths) <= most
    assert widths[-1] == sizes.max()
    assert padded_cost(sizes.tolist(), widths) <= padded_cost(sizes.tolist(), [int(sizes.max())])
