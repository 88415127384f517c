"""A client and a federation that have tail classes, for the tests of tail augmentation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cafedcl.augment.base import ClientImages
from cafedcl.federation.rounds import Federation

SHORT: dict[str, dict[str, Any]] = {"gan": {"augment__steps": 3, "augment__least": 2}}


def client_of(
    counts: list[int], synthetic: list[int], size: int = 8, seed: int = 0, **changes: Any
) -> ClientImages:
    """A client whose images of class c are all of the grey level 20·c + the image's number."""
    y = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(n) for n in counts])
    x = (
        torch.from_numpy(20 * y + numbers)
        .to(torch.uint8)[:, None, None, None]
        .expand(-1, 1, size, size)
        .clone()
    )
    client = ClientImages(
        x=x,
        y=torch.from_numpy(y),
        host_y=y,
        held_x=x[:0],
        held_y=torch.zeros(0, dtype=torch.int64),
        synthetic_counts=np.asarray(synthetic),
        memory={},
        features=lambda: x.flatten(1).float(),
        round=0,
        draws=np.random.default_rng(seed),
    )
    return replace(client, **changes)


def skewed(tiny: Callable[..., Federation], method: str, kind: str, **more: Any) -> Federation:
    settings = {
        "split__kind": "dirichlet",
        "split__alpha": 0.5,
        "split__form": "class",
        **SHORT.get(kind, {}),
        **more,
    }
    short = {"method__epochs": 5} if method == "fedtgp" else {}
    return tiny(method, augment__name=kind, **settings, **short)
