"""Result files that grow run by run."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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


def test_an_interrupt_does_not_wait_for_runs_that_have_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def run_one(key: Key) -> dict[str, Any]:
        begun.append(key.seed)
        go_on.wait()
        return {"seed": key.seed}

    def interrupted(waiting: list[Future[Any]]) -> Iterator[Future[Any]]:
        threading.Timer(0.1, go_on.set).start()
        raise KeyboardInterrupt
        yield from waiting

    monkeypatch.setattr("growing.as_completed", interrupted)
    result = GrowingResult(tmp_path / "result.json", Key, {})
    result.executor = ThreadPoolExecutor
    with pytest.raises(KeyboardInterrupt):
        result.run_missing([Key(seed) for seed in range(9)], run_one, 1)
    assert begun in ([], [0])
