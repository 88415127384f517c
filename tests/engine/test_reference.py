"""The reference engine's own choices; what it computes is tested with every method."""

import numpy as np
import pytest
import torch

from cafedcl.data import Dataset
from cafedcl.engine.reference import ReferenceEngine, image_layout
from cafedcl.federation.rounds import Federation
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import resolve

LAST = torch.channels_last
USUAL = torch.contiguous_format


def setup(model: str = "cnn4", onednn: str = "on") -> Setup:
    """Two clients with colour images of 16×16."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (40, 3, 16, 16), dtype=np.uint8))
    y = torch.arange(40) % 4
    config = resolve(
        {
            "method": {"name": "fedavg"},
            "model": {"name": model, "width": 0.1},
            "split": {"kind": "iid"},
            # The last round is also scored by the model as it is exported.
            "federation": {"clients": 2, "rounds": 2},
            "train": {"epochs": 1, "iterations": 2},
            "engine": {"name": "reference", "device": "cpu", "onednn": onednn},
        }
    )
    return prepare(config, Dataset.of(x, y, x, y, tuple("abcd")))


@pytest.mark.parametrize(
    ("model", "onednn", "arm", "layout"),
    [
        ("cnn4", "on", False, LAST),
        ("cnn4", "on", True, USUAL),
        ("cnn4", "off", False, USUAL),
        ("resnet8", "on", False, USUAL),
    ],
)
def test_channels_are_last_where_onednn_is_faster_with_that(
    monkeypatch: pytest.MonkeyPatch, model: str, onednn: str, arm: bool, layout: torch.memory_format
) -> None:
    monkeypatch.setattr("cafedcl.engine.reference.is_arm", lambda: arm)
    assert image_layout(setup(model, onednn).task) == layout


def test_the_encoder_sees_channels_last_in_training_and_scoring_and_learns_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(layout: torch.memory_format) -> dict[str, torch.Tensor]:
        monkeypatch.setattr("cafedcl.engine.reference.image_layout", lambda _: layout)
        made = setup()
        seen: list[bool] = []
        made.task.network.encoder.conv1.register_forward_pre_hook(
            lambda _, given: seen.append(given[0].is_contiguous(memory_format=layout))
        )
        federation = Federation(made, engine=ReferenceEngine(made.task))
        federation.step()
        # Two clients of two steps each, and the test images.
        assert len(seen) > 4
        assert all(seen)
        return dict(federation.state)

    last = run(LAST)
    for name, value in run(USUAL).items():
        torch.testing.assert_close(last[name], value, rtol=1e-4, atol=1e-5)
