import math

import pytest

from cafedcl.config.train_options import TrainOptions
from cafedcl.core.errors import CafedclError
from cafedcl.task.local_schedule import LocalSchedule
from cafedcl.task.resolve import resolve


def rates(rounds: int, epoch: int = 0, **options: object) -> list[float]:
    schedule = LocalSchedule(TrainOptions(**options), 10, pooled=False, rounds=rounds)
    return [schedule.learning_rate(round, epoch) for round in range(rounds)]


def test_the_rate_falls_by_a_factor_after_every_round() -> None:
    assert rates(4, lr=0.2, lr_decay=0.5) == [0.2, 0.1, 0.05, 0.025]
    assert rates(3, 2, lr=0.2, lr_decay=0.5) == [0.2, 0.1, 0.05]
    assert rates(2, 2, lr=0.8, lr_decay=0.5, lr_decay_in_round=True) == [0.2, 0.1]


def test_a_cosine_ends_at_zero_after_the_last_round() -> None:
    found = rates(4, lr=0.2, schedule="cosine")
    assert found == pytest.approx([0.1 * (1 + math.cos(math.pi * t / 4)) for t in range(4)])
    assert found[0] == 0.2


@pytest.mark.parametrize("schedule", ["exponential", "cosine"])
def test_the_rate_rises_in_the_warm_up(schedule: str) -> None:
    found = rates(10, lr=0.4, schedule=schedule, warmup=3)
    assert found[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(found) == found[3]
    assert found[3:] == sorted(found[3:], reverse=True)
    if schedule == "cosine":
        assert found[3] == 0.4
        assert found[9] == pytest.approx(0.2 * (1 + math.cos(math.pi * 6 / 7)))


def test_a_warm_up_longer_than_the_run_never_ends() -> None:
    assert rates(2, lr=0.3, schedule="cosine", warmup=5) == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"optimizer": "adamw", "momentum": 0.9, "lr": 0.001}, "momentum = 0.9.*'adamw'.*sgd"),
        ({"beta1": 0.5}, "beta1 = 0.5.*'sgd'.*adamw"),
        ({"schedule": "cosine", "lr_decay": 0.9}, "lr_decay = 0.9.*'cosine'.*exponential"),
        ({"optimizer": "adamw"}, "lr = 0.1: AdamW needs a smaller learning rate"),
        ({"optimizer": "adamw", "lr": 0.001, "encoder_lr": 0.1}, "lr = 0.1: AdamW needs"),
        ({"optimizer": "lion"}, "optimizer.*lion"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"rotate": 200}, "rotate"),
    ],
)
def test_options_that_contradict_each_other_are_refused(train: dict, message: str) -> None:
    with pytest.raises(CafedclError, match=message):
        resolve({"train": train})
