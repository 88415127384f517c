"""Where the anchors go: the measure itself, and that nothing is run twice."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FILE = Path(__file__).parents[2] / "experiments" / "anchors.py"


@pytest.fixture(scope="module")
def anchors() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def test_the_mean_cosine_is_over_pairs_of_different_classes(anchors: dict[str, Any]) -> None:
    p = np.random.default_rng(0).standard_normal((5, 7))
    pairs = [
        (a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for i, a in enumerate(p) for b in p[i + 1 :]
    ]
    assert anchors["cosine"](torch.from_numpy(p)) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert anchors["cosine"](torch.eye(4)) == 0


def test_what_a_file_of_the_same_settings_has_is_known(
    anchors: dict[str, Any], tmp_path: Path
) -> None:
    path, same = tmp_path / "anchors.json", {"images": 5, "seed": 0}
    assert anchors["earlier"](path, same) == {}
    path.write_text(json.dumps({**same, "rounds": {"fixed": [{"cosine": 0.0}]}}), encoding="utf-8")
    assert anchors["earlier"](path, same) == {"fixed": [{"cosine": 0.0}]}
    assert anchors["earlier"](path, {**same, "seed": 1}) == {}
