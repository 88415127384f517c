import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "encoders.py"


@pytest.fixture(scope="module")
def encoders() -> dict[str, Any]:
    pytest.importorskip("transformers")
    return runpy.run_path(str(FILE))


def test_a_frozen_encoder_has_a_head_that_learns_and_nothing_else(
    encoders: dict[str, Any], tmp_path: Path
) -> None:
    asked = argparse.Namespace(
        device="cpu", compile="off", size=32, clients=2, images=10, batch=4, rounds=1
    )
    model = encoders["write_encoder"]("tiny", tmp_path)
    trained = {}
    for frozen in (False, True):
        network = encoders["make_setup"](model, asked, frozen=frozen).task.network
        trained[frozen] = {name for name, w in network.named_parameters() if w.requires_grad}
    assert trained[True] == {"head.weight", "head.bias"}
    assert trained[True] < trained[False]
    once = encoders["make_setup"](model, asked, frozen=True, once=True).task
    assert {*once.network.state_dict()} == trained[True]


def test_ours_and_plain_pytorch_are_timed_and_the_command_stands_beside_the_numbers(
    encoders: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "encoders.json"
    words = "--device cpu --encoders tiny --plain fp32,amp --size 32 --clients 2 --images 8"
    words += f" --batch 4 --rounds 1 --out {out}"
    monkeypatch.setattr(sys, "argv", ["benchmarks/encoders.py", *words.split()])
    encoders["main"]()
    result = json.loads(out.read_text())
    assert [(row["encoder"], row["frozen"]) for row in result["rows"]] == [
        ("tiny", False),
        ("tiny", True),
    ]
    for row in result["rows"]:
        ways = {"ours", "fp32", "amp"} | ({"features"} if row["frozen"] else set())
        assert row["step_ms"].keys() == ways
        assert min(row["step_ms"].values()) > 0
        assert ("pass_ms" in row) == row["frozen"]
    assert result["command"][:2] == ["python", "benchmarks/encoders.py"]


def test_the_encoders_have_the_size_of_those_that_are_named(encoders: dict[str, Any]) -> None:
    """ViT-S/16 has 22 million weights, ResNet-50 without its classifier 23.5."""
    import transformers

    for name, millions in (("vit-s", 21.8), ("resnet-50", 23.5)):
        kind, options = encoders["CONFIGS"][name]
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(getattr(transformers, kind)(**options))
        weights = sum(weight.numel() for weight in model.parameters())
        assert weights / 1e6 == pytest.approx(millions, rel=0.02)
