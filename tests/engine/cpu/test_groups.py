import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cafedcl.core.contract import Down, Job
from cafedcl.data import Dataset
from cafedcl.engine.choose import settle_stack
from cafedcl.engine.cpu.groups import (
    WINDOW,
    choose_size,
    grid,
    make_groups,
    stacking_obstacle,
    widths,
)
from cafedcl.models import Network
from cafedcl.task.build import Setup, prepare
from cafedcl.task.cost import operations
from cafedcl.task.resolve import resolve
from cafedcl.task.task import Task

DOWN = Down(0, {})
Make = Callable[..., Setup]


@pytest.fixture(scope="module")
def make(digits: Dataset) -> Make:
    def setup(method: str = "fedavg", **sections: Any) -> Setup:
        tables = {
            "method": {"name": method},
            "split": {"kind": "dirichlet", "form": "class", "alpha": 0.3},
            "model": {"name": "cnn8"},
            "federation": {"clients": 30},
            "engine": {"device": "cpu"},
        }
        for name, table in sections.items():
            # Another kind of split does not take the options of this one.
            kept = {} if name == "split" else tables.get(name, {})
            tables[name] = {**kept, **table}
        return prepare(resolve(tables), digits)

    return setup


@pytest.fixture(scope="module")
def task(make: Make) -> Task:
    """Thirty clients of unequal size with batches of ten: they differ in their steps."""
    return make(train={"batch_size": 10}).task


def jobs(clients: list[int], memory: dict[int, int] | None = None) -> list[Job]:
    return [
        Job(k, DOWN, {"kept": torch.zeros(memory[k])} if memory else {}, False) for k in clients
    ]


@given(st.sets(st.integers(0, 29), min_size=1), st.integers(2, 12))
def test_every_job_is_in_one_group_and_groups_are_nearly_equal_and_in_falling_order(
    task: Task, clients: set[int], size: int
) -> None:
    groups = list(make_groups(task, jobs(sorted(clients)), size))
    assert sorted(job.client for group in groups for job in group) == sorted(clients)
    for window in (
        sorted(clients)[start : start + WINDOW * size]
        for start in range(0, len(clients), WINDOW * size)
    ):
        inside = [group for group in groups if group[0].client in window]
        assert {job.client for group in inside for job in group} == set(window)
        lengths = [len(group) for group in inside]
        assert max(lengths) <= size
        assert max(lengths) - min(lengths) <= 1
        assert len(inside) == -(-len(window) // size)
        steps = [
            task.schedule.steps(len(task.clients.shards.train[job.client]))
            for group in inside
            for job in group
        ]
        assert steps == sorted(steps, reverse=True)


def test_groups_follow_from_the_jobs_alone(task: Task) -> None:
    one, other = (list(make_groups(task, jobs(list(range(30))), 7)) for _ in range(2))
    assert [[job.client for job in group] for group in one] == [
        [job.client for job in group] for group in other
    ]


def test_clients_whose_memories_differ_in_form_are_kept_apart(task: Task) -> None:
    memory = {k: 2 if k % 3 else 5 for k in range(12)}
    groups = list(make_groups(task, jobs(list(range(12)), memory), 4))
    assert sorted(len(group) for group in groups) == [4, 4, 4]
    assert all(len({len(job.memory["kept"]) for job in group}) == 1 for group in groups)


def test_the_order_of_what_a_client_remembers_is_no_reason_to_be_kept_apart(task: Task) -> None:
    """A memory that comes from a snapshot may have another."""
    one, other = torch.zeros(3), torch.zeros(4)
    memories = [{"a": one, "b": other}, {"b": other, "a": one}]
    assert (
        len(list(make_groups(task, [Job(k, DOWN, memories[k], False) for k in range(2)], 4))) == 1
    )


def test_personal_weights_are_no_reason_to_be_kept_apart(task: Task) -> None:
    own = [Job(k, DOWN, {"model/w": torch.zeros(3)} if k else {}, False) for k in range(4)]
    assert len(list(make_groups(task, own, 4))) == 1


def test_one_at_a_time_is_in_order(task: Task) -> None:
    assert [[job.client for job in group] for group in make_groups(task, jobs([4, 2, 9]), 1)] == [
        [4],
        [2],
        [9],
    ]


@given(st.integers(1, 5000))
def test_widths_are_few_and_waste_little(width: int) -> None:
    assert width <= grid(width) < 1.25 * width + 1
    assert grid(grid(width)) == grid(width)


def test_there_are_four_widths_to_a_doubling() -> None:
    assert sorted({grid(width) for width in range(16, 65)}) == [16, 20, 24, 28, 32, 40, 48, 56, 64]


# how many


def test_operations_by_hand(make: Make) -> None:
    """8×8 images: 16 filters of 9 numbers at 16 places, 32 of 144 at 4, then 64 of 128."""
    setup = make()
    encoder = setup.task.network.encoder
    assert operations(encoder, (1, 8, 8)) == 2 * (16 * 9 * 16 + 32 * 144 * 4 + 64 * 128)


def test_counting_leaves_the_network_as_it_was(make: Make) -> None:
    encoder = make().task.network.encoder.train()
    operations(encoder, (1, 8, 8))
    assert encoder.training
    assert not any(module._forward_hooks for module in encoder.modules())


@pytest.mark.parametrize(
    ("batch", "size"), [(8, 10), (500, 10), (1000, 5), (3000, 2), (20000, 2), (30000, 1)]
)
def test_large_steps_are_stacked_less_and_very_large_ones_not_at_all(
    make: Make, batch: int, size: int
) -> None:
    """A step of ``batch`` images takes 57,856 operations for each."""
    setup = make(train={"batch_size": batch})
    assert setup.task.onednn is False
    assert choose_size(setup.task) == size


def test_what_auto_stands_for_is_written_into_the_config(make: Make) -> None:
    assert settle_stack(make(train={"batch_size": 8})).engine.stack == 10
    assert settle_stack(make(engine={"stack": 3})).engine.stack == 3
    assert settle_stack(make(engine={"stack": 1})).engine.stack == 1


def test_onednns_convolutions_are_not_stacked_of_its_own_accord(make: Make) -> None:
    assert settle_stack(make(engine={"onednn": "on"})).engine.stack == 1
    assert settle_stack(make(engine={"onednn": "on"}, model={"name": "mlp"})).engine.stack == 10


def test_what_stands_in_the_way(make: Make) -> None:
    task = make().task
    assert stacking_obstacle(task) is None
    normal = Network(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), nn.Linear(64, 10))
    assert (
        stacking_obstacle(replace(task, network=normal))
        == "'encoder.1.running_mean' is not trained, and a stack holds trained weights only"
    )
    assert choose_size(replace(task, network=normal)) == 1
    fixed = copy.deepcopy(task.network)
    fixed.encoder.conv1.bias.requires_grad_(False)
    assert (
        stacking_obstacle(replace(task, network=fixed))
        == "'encoder.conv1.bias' is not trained, and a stack holds trained weights only"
    )
    assert stacking_obstacle(make("central").task) == "one client has all data"
    assert settle_stack(make("central")).engine.stack == 1


def test_clients_with_synthetic_images_train_one_after_another(make: Make) -> None:
    setup = make("cafedcl+mixup")
    assert stacking_obstacle(setup.task) == "tail augmentation gives clients images of their own"
    assert settle_stack(setup).engine.stack == 1
    assert settle_stack(make("cafedcl")).engine.stack > 1


def test_few_sizes_of_batches_are_not_padded_and_many_share_widths(make: Make) -> None:
    exact = widths(
        make(split={"kind": "iid"}, train={"batch_size": 50}, federation={"clients": 4}).task
    )
    assert [exact(size) for size in (50, 37)] == [50, 37]
    shared = widths(make(split={"kind": "quantity", "alpha": 0.5}, federation={"clients": 40}).task)
    assert [shared(size) for size in (50, 37)] == [56, 40]
