import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attacks
import pytest

from cafedcl.task.resolve import gather


def test_every_attack_and_defence_is_one_that_there_is() -> None:
    for attack in attacks.ATTACKS:
        for defence in attacks.DEFENCES:
            config = gather(attack=attack, defence=defence)
            assert config.attack.clients in (0, 4)
    for method in attacks.METHODS:
        gather(method=method)


def test_only_what_is_missing_is_run_and_the_table_has_means_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "attacks.json"
    there = {"method": "fedavg", "attack": "none", "defence": "none", "seed": 0, "accuracy": 0.9}
    file.write_text(json.dumps({"settings": {}, "runs": [there]}))
    asked: list[Any] = []

    def run_one(key: Any) -> dict[str, Any]:
        asked.append(key)
        names = ("method", "attack", "defence", "seed")
        return {**dict(zip(names, key, strict=True)), "accuracy": 0.8}

    monkeypatch.setattr(attacks, "RESULT", file)
    monkeypatch.setattr(attacks, "run_one", run_one)
    monkeypatch.setattr(attacks, "ProcessPoolExecutor", ThreadPoolExecutor)
    words = [
        "--seeds",
        "2",
        "--methods",
        "fedavg",
        "--attacks",
        "none",
        "--defences",
        "none",
        "clip",
    ]
    monkeypatch.setattr(sys, "argv", ["attacks.py", *words])
    attacks.main()
    assert ("fedavg", "none", "none", 0) not in asked
    assert len(asked) == 3
    assert len(json.loads(file.read_text())["runs"]) == 4
    # 90 and 80 have the mean 85 and the standard error 7.07/√2.
    assert "| `none` | 85.0 ± 5.0 | 80.0 ± 0.0 |" in capsys.readouterr().out
