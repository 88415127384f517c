import math

import broken_methods
import numpy as np
import pytest
import torch
from broken_methods import BROKEN, Pull
from torch import nn

from cafedcl.extend import (
    Augmenter,
    ClientImages,
    FedAvg,
    Shape,
    SyntheticImages,
    Tensors,
    Transform,
)
from cafedcl.testing import CHECKS, ConformanceError, check_method


def test_a_method_of_ones_own_conforms() -> None:
    check_method(Pull)
    check_method(Pull, {"method.mu": 0.5})
    check_method("broken_methods:Pull", only="rounds")


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: method.__name__)
def test_a_method_that_breaks_a_rule_is_told_which(method: type[FedAvg]) -> None:
    check, reason = BROKEN[method]
    with pytest.raises(ConformanceError) as told:
        check_method(method, only=check)
    assert reason in str(told.value)
    assert str(told.value).startswith(f"method 'broken_methods:{method.__name__}': ")


class Noise(Transform):
    def draw(self, images: int) -> Tensors:
        return {"shift": torch.from_numpy(np.random.rand(images))}

    def apply(self, x: torch.Tensor, draws: Tensors) -> torch.Tensor:
        return x + draws["shift"][:, None, None, None].to(x)


class Shaken(Augmenter):
    name = "shaken"

    def make(self, client: ClientImages) -> SyntheticImages:
        labels = client.synthetic_labels()
        images = client.images(client.draw_same_class(labels))
        noise = torch.from_numpy(np.random.randint(0, 9, images.shape))
        return SyntheticImages(
            (images.long() + noise).clamp(max=255).byte(), client.to_device(labels)
        )


def unrepeatable(shape: Shape, width: float) -> nn.Module:
    layer = nn.Linear(math.prod(shape), 8)
    layer.weight.data = torch.from_numpy(np.random.rand(8, math.prod(shape))).float()
    return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("train.transform", "Noise"),
        ("augment.name", "Shaken"),
        ("model.name", "unrepeatable"),
    ],
)
def test_other_parts_are_tested_with_a_method(option: str, name: str) -> None:
    part = f"{__name__}:{name}"
    with pytest.raises(ConformanceError) as told:
        check_method("fedavg", {option: part})
    assert str(told.value).startswith(
        f"method 'fedavg' with {option} = \"{part}\": two runs with the same seed differ in"
    )


def test_every_check_but_the_wire_is_seen_to_fail() -> None:
    assert {check for check, _ in BROKEN.values()} == CHECKS.keys() - {"wire"}
    assert {getattr(broken_methods, method.__name__) for method in BROKEN} == set(BROKEN)


def test_a_reply_that_changes_on_its_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from cafedcl.testing import checks

    def rounded(tensors: object, header: object) -> tuple[object, object]:
        assert isinstance(tensors, dict)
        return {n: v.round() if v.is_floating_point() else v for n, v in tensors.items()}, header

    monkeypatch.setattr(checks, "pack", rounded)
    monkeypatch.setattr(checks, "unpack", lambda packed: packed)
    with pytest.raises(ConformanceError, match="of its reply changes on the way"):
        check_method("fedavg", only="wire")
