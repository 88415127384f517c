"""Result files that grow run by run."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from growing import GrowingResult


class Key(NamedTuple):
    seed: int


def one_fails(key: Key) -> dict[str, Any]:
    if key.seed == 1:
        raise RuntimeError("seed 1 is on fire")
    return {"seed": key.seed, "score": 10 * key.seed}


def test_a_run_that_fails_costs_no_other_and_is_told(tmp_path: Path) -> None:
    result = GrowingResult(tmp_path / "result.json", Key, {"about": "a test"})
    result.executor = ThreadPoolExecutor
    with pytest.raises(RuntimeError, match="seed 1 is on fire"):
        result.run_missing([Key(0), Key(1), Key(2)], one_fails, 1)
    written = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert written["runs"] == [{"seed": 0, "score": 0}, {"seed": 2, "score": 20}]
