import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cafedcl.task.resolve import gather

FILE = Path(__file__).parents[2] / "benchmarks" / "study.py"


@pytest.fixture
def study() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def test_the_runs_that_are_timed_are_the_ones_that_the_page_describes(
    study: dict[str, Any], tmp_path: Path
) -> None:
    words = study["options"](tmp_path, 40)
    config = gather(settings=words[1::2], data=study["NAME"])
    assert (config.federation.clients, config.federation.rounds) == (20, 40)
    assert (config.model.name, config.train.batch_size) == ("cnn4", 50)
    study["write_images"](tmp_path)
    with np.load(tmp_path / f"{study['NAME']}.npz") as stored:
        assert stored["x_train"].shape == (5_000, 32, 32, 3)
        assert stored["x_test"].dtype == np.uint8


def test_the_numbers_are_seconds_per_run_with_the_command_beside_them(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def seconds_of(_folder: Path, *words: str) -> float:
        command = words[2] if words[0] == "-m" else "python"
        timed.append(command)
        if command == "run":
            out = Path(words[words.index("--out") + 1])
            out.mkdir()
            rounds = [{"seconds": {"train": 1.0, "evaluate": 0.5}}] * 2
            text = "".join(json.dumps(line) + "\n" for line in rounds)
            (out / "metrics.jsonl").write_text(text)
        return 60.0 if command == "compare" else 10.0 - len(timed)

    main = study["main"]
    monkeypatch.setitem(main.__globals__, "seconds_of", seconds_of)
    out = tmp_path / "study.json"
    asked = ["--devices", "cpu", "--jobs", "2", "--seeds", "5", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["benchmarks/study.py", *asked])
    main()
    result = json.loads(out.read_text())
    assert (result["open_s"], result["single_s"], result["single_rounds_s"]) == (8.0, 5.0, 3.0)
    assert result["studies"]["2"] == {"runs": 10, "seconds": 60.0, "seconds_per_run": 6.0}
    assert result["command"][:2] == ["python", "benchmarks/study.py"]
    assert timed == ["python", "python", "run", "run", "run", "compare"]


def test_bytecode_is_kept_where_python_is_told_not_to(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "some_module.py").write_text("")
    assert study["seconds_of"](tmp_path, "-c", "import some_module") > 0
    assert list((tmp_path / "bytecode").rglob("some_module.*.pyc"))
