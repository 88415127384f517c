import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benching import SMALL
from rich.console import Console

from cafedcl.cli import main as cli
from cafedcl.cli.speed import bench, legend, measurement_table
from cafedcl.core.errors import CafedclError
from cafedcl.speed import measure as bench_module
from cafedcl.speed.measure import Measurement

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="auto would choose the GPU")

# the table


def measured(task: str, method: str, engine: str, step_ms: float, **others: float) -> Measurement:
    numbers = {
        "samples_per_s": 1234.5,
        "round_s": 0.25,
        "own_s": 0.125,
        "overhead": 1.5,
        "ceiling": 0.875,
    }
    return Measurement(
        task,
        method,
        engine,
        step_ms=step_ms,
        phases={},
        **{**numbers, "memory_mib": 77.0, "start_s": 3.0, **others},
    )


def rows_of(found: list[Measurement], compared: bool) -> list[dict[str, str]]:
    shown = measurement_table(found, compared)
    columns = {str(column.header): list(column.cells) for column in shown.columns}
    return [{head: str(cells[row]) for head, cells in columns.items()} for row in range(len(found))]


def test_a_ratio_is_against_the_other_engine_in_the_same_task_with_the_same_method() -> None:
    found = [
        measured("digits", "fedavg", "cuda bf16", 0.5),
        measured("digits", "fedavg", "reference fp32", 2.0),
        measured("digits", "cafedcl", "cuda bf16", 1.0),
        measured("digits", "cafedcl", "reference fp32", 7.0),
        measured("cnn-50", "fedavg", "cuda bf16", 0.25),
        measured("cnn-50", "fedavg", "reference fp32", 2.5),
    ]
    assert [row["faster"] for row in rows_of(found, True)] == [
        "4.0×",
        "1.0×",
        "7.0×",
        "1.0×",
        "10.0×",
        "1.0×",
    ]


def test_a_table_of_one_engine_has_no_ratio_and_readable_numbers() -> None:
    (row,) = rows_of([measured("digits", "fedavg", "reference fp32", 0.5)], False)
    assert "faster" not in row
    assert (row["task"], row["method"], row["engine"], row["step"]) == (
        "digits",
        "fedavg",
        "reference fp32",
        "0.500",
    )
    assert (row["round"], row["+own"], row["peak"]) == ("250", "125", "88%")
    assert (row["MiB"], row["start"]) == ("77", "3.0")


@pytest.mark.parametrize("compared", [True, False])
def test_a_table_and_its_legend_fit_into_a_terminal_of_80_columns(compared: bool) -> None:
    large = {
        "samples_per_s": 234567.0,
        "round_s": 98.7654,
        "own_s": 12.3456,
        "overhead": 12.34,
        "memory_mib": 98765.0,
    }
    found = [
        measured("resnet-250", "scaffold", engine, 123.4, **large)
        for engine in ("workers fp32", "cuda bf16")
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(measurement_table(found, compared))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "…" not in "".join(lines)
    for row, engine in zip(lines[1:], ("workers fp32", "cuda bf16"), strict=True):
        assert row.split()[:3] == ["resnet-250", "scaffold", engine.split()[0]]
        assert "98765" in row
    columns = [lines[0].index(head) + len(head) for head in ("step", "round", "+own")]
    for row in lines[1:]:
        assert [row[end - 1 : end + 1] for end in columns] == ["3 ", "5 ", "6 "], (
            "numbers are aligned to the right"
        )
    said = legend(found)
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "resnet-250  ResNet-18-GN, batch 250, 20 clients" in said


# the command


@pytest.fixture
def command(small: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The command as a function, on a CPU and with one timed round."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(**options: Any) -> None:
        given = {
            "tasks": "digits",
            "methods": "fedavg",
            "device": "cpu",
            "rounds": 1,
            "settings": ["engine.workers=1"],
        }
        bench(**{**given, **options})

    return run


def check(result: dict[str, Any], methods: list[str]) -> None:
    assert result.keys() == {"ceiling_tflops", "measurements", "environment"}
    assert result["ceiling_tflops"] == {"fp32": 0.002}
    assert [each["method"] for each in result["measurements"]] == methods
    assert all(each["step_ms"] > 0 for each in result["measurements"])
    assert result["environment"]


def test_the_command_prints_a_table_and_writes_its_numbers(
    command: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new folder" / "numbers.json"
    command(methods="fedavg,fedprox", out=out)
    shown = capsys.readouterr().out
    check(json.loads(out.read_text(encoding="utf-8")), ["fedavg", "fedprox"])
    assert SMALL.title in shown
    assert "step" in shown
    assert str(out) in shown


def test_as_json_the_numbers_are_all_that_is_printed(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(as_json=True)
    printed = capsys.readouterr()
    check(json.loads(printed.out), ["fedavg"])
    assert printed.err == ""


def test_against_another_engine_both_are_measured(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(against="reference", as_json=True)
    check(json.loads(capsys.readouterr().out), ["fedavg", "fedavg"])
    command(against="reference")
    assert "faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tasks": "digitz"}, "did you mean 'digits'"),
        ({"tasks": "digits,"}, "there is no such task"),
        ({"methods": "fedavg,fedprx"}, "did you mean 'fedprox'"),
        ({"engine": "eagre"}, "engine"),
        pytest.param({"engine": "cuda", "device": "auto"}, "needs a CUDA device", marks=NO_GPU),
        pytest.param({"against": "cuda", "device": "auto"}, "needs a CUDA device", marks=NO_GPU),
        ({"against": "eagre"}, "engine"),
        ({"device": "nowhere"}, "there is no such device"),
        ({"settings": ["train.lr"]}, "section.key=value is expected"),
        ({"settings": ["train.rate=1"]}, "train"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(
        bench_module, "measure", lambda *_: pytest.fail("nothing should be measured")
    )
    with pytest.raises(CafedclError) as told:
        command(**options)
    assert reason in str(told.value)


def test_a_file_that_cannot_be_written_is_named(
    command: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CafedclError, match="cannot be written"):
        command(out=tmp_path / "file" / "numbers.json")


def test_on_the_command_line_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cafedcl", "bench", "--device", "cpu", "--tasks", "digitz"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (2, "")
    assert err == "error: --tasks digitz: there is no such task; did you mean 'digits'?\n"
