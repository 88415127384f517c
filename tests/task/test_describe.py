from dataclasses import replace

import pytest
import torch

from cafedcl.data import Dataset
from cafedcl.task import describe
from cafedcl.task.build import prepare
from cafedcl.task.cost import operations
from cafedcl.task.describe import cost_line, first_line, magnitude, scoring_line
from cafedcl.task.resolve import gather


@pytest.mark.parametrize(
    ("number", "words"),
    [(7, "7 "), (13100, "13.1 k"), (11168832, "11.2 M"), (999.6e6, "1 G"), (5.4e15, "5400 T")],
)
def test_numbers_have_three_digits_and_a_unit(number, words):
    assert magnitude(number) == words


def test_the_first_lines_name_model_device_clients_images_and_cost(digits):
    setup = prepare(gather(device="cpu", clients=4, split="iid"), digits)
    line = first_line(setup.config, setup.task, "reference")
    assert line.startswith("cafedcl on digits: cnn8, 13.1 k parameters; reference engine on cpu; ")
    assert "4 clients (iid), 1,292 training and 359 test images of 8×8 pixels, 10 classes" in line
    cost = cost_line(setup.config, setup.task)
    assert cost.startswith("cnn8, chosen for images of 8×8: 57.9 kFLOP per image, ")
    assert "MFLOP per training step of" in cost


def test_a_frozen_part_and_a_named_model_are_told(digits):
    config = gather(device="cpu", model="cnn8", method="fedavg", settings=["model.freeze=full"])
    setup = prepare(config, digits)
    assert " trained); cpu engine" in (first_line(setup.config, setup.task, "cpu"))
    assert cost_line(setup.config, setup.task).startswith("cnn8: ")


@pytest.mark.parametrize(
    ("rounds", "model", "words"),
    [(1000, None, "; without a GPU that takes about "), (1, None, ""), (1000, "resnet18", "")],
)
def test_a_faster_model_is_named_where_the_chosen_one_takes_hours(
    rounds, model, words, monkeypatch
):
    monkeypatch.setattr(describe, "cores", lambda: 2)
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8, generator=draws)
    y = torch.arange(300) % 3
    data = Dataset.of(x, y, x[:30], y[:30], ("a", "b", "c"))
    config = gather(device="cpu", clients=3, split="iid", rounds=rounds, model=model)
    setup = prepare(config, data)
    line = cost_line(setup.config, setup.task)
    if not words:
        assert line.endswith(" images")
        return
    # 90 images are left of a client's 100, five times a round; a forward pass is half the work of
    # the gradient.
    forward = operations(setup.task.network.encoder, (3, 32, 32))
    hours = 3 * forward * 5 * 90 * 3 * rounds / (2 * 5e10) / 3600
    assert line.endswith(f"{words}{hours:.1f} h, and --model cnn4 far less")
    private = replace(setup.config, privacy=replace(setup.config.privacy, kind="records"))
    slow = words.replace("about", "far more than")
    assert f"{slow}{hours:.1f} h" in cost_line(private, setup.task)


def test_scoring_that_takes_long_is_announced_with_what_shortens_it(digits, monkeypatch):
    setup = prepare(gather(device="cpu", clients=4, settings=["engine.workers=2"]), digits)
    assert scoring_line(setup.config, setup.task) == ""
    monkeypatch.setattr(describe, "MANY_IMAGES", 1000)
    assert scoring_line(setup.config, setup.task) == "", "it takes less than a second"
    monkeypatch.setattr(describe, "seconds_per_image", lambda _: 0.5)
    line = scoring_line(setup.config, setup.task)
    assert line.startswith("scoring 4 own models on 359 test images each takes about 6 min")
    assert "evaluate.own_images" in line
    pooled = prepare(gather(method="central", device="cpu", clients=4), digits)
    assert scoring_line(pooled.config, pooled.task) == ""


def test_an_image_is_timed_and_the_network_left_as_it_was(digits):
    setup = prepare(gather(device="cpu", clients=4), digits)
    setup.task.network.train()
    assert 0 < describe.seconds_per_image(setup.task) < 1
    assert setup.task.network.training
