import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attacks
import pytest

from cafedcl.task.resolve import gather


def test_every_attack_and_defence_is_one_that_there_is() -> None:
    for job in attacks.JOBS.values():
        settings = [f"{name}={json.dumps(value)}" for name, value in job.settings.items()]
        for attack in job.attacks:
            for defence in job.defences:
                config = gather(attack=attack, defence=defence, settings=settings)
                assert config.attack.clients in (0, 4)
        for method in job.methods:
            gather(method=method)


def test_only_what_is_missing_is_run_and_the_table_has_means_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"method": "fedavg", "attack": "none", "defence": "none", "seed": 0, "accuracy": 0.9}
    (tmp_path / "attacks-digits.json").write_text(json.dumps({"rounds": 20, "runs": [there]}))
    asked: list[attacks.Key] = []

    def run_one(data: str, folder: str, key: attacks.Key) -> dict[str, Any]:
        assert (data, folder) == ("digits", "")
        asked.append(key)
        return {**key._asdict(), "accuracy": 0.8 if key.defence == "none" else 0.75}

    job = attacks.JOBS["digits"]._replace(attacks=("none",), defences=("none", "peers"))
    monkeypatch.setattr(attacks, "RESULTS", tmp_path)
    monkeypatch.setattr(attacks, "JOBS", {"digits": job})
    monkeypatch.setattr(attacks, "run_one", run_one)
    monkeypatch.setattr(attacks.GrowingResult, "executor", ThreadPoolExecutor)
    words = ["--seeds", "2", "--methods", "fedavg"]
    monkeypatch.setattr(sys, "argv", ["attacks.py", *words])
    attacks.main()
    assert attacks.Key("fedavg", "none", "none", 0) not in asked
    assert len(asked) == 3
    assert len(attacks.results("digits").rows) == 4
    printed = capsys.readouterr().out
    # 90 and 80 have the mean 85 and the standard error 7.07/√2.
    assert "| `none` | 85.0 ± 5.0 | 75.0 ± 0.0 |" in printed
    # Paired by seed, 15 and 5 points are lost.
    assert "lost under peers by none: 10.0 ± 5.0" in printed
