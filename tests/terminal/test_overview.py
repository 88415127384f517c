import io

import pytest
from rich.console import Console

from cafedcl.terminal.overview import (
    amount,
    best_round,
    comparison_table,
    duration,
    headline,
    overview,
    percent,
    sparkline,
)


def line(number: int, accuracy: float | None, **more: object) -> dict[str, object]:
    server = (
        None
        if accuracy is None
        else {"accuracy": accuracy, "balanced": accuracy, "client_std": 0.1}
    )
    own = {"client_mean": 0.5 + number / 100, "client_std": 0.2}
    base = {"round": number, "status": "ok", "failed": [], "server": server, "own": own}
    return {
        **base,
        "traffic": {"up_bytes": 1000, "down_bytes": 3000},
        "seconds": {"train": 1.5},
        **more,
    }


def drawn(renderable: object, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_numbers_read_well() -> None:
    assert (percent(0.12345), percent(None), percent(1.0, 0)) == ("12.3", "–", "100")
    assert [amount(n) for n in (0, 999, 1000, 2_200_000, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.2 MB",
        "5000.0 GB",
    ]
    assert [duration(s) for s in (0.4, 61, 3661)] == ["0:00", "1:01", "1:01:01"]


def test_a_sparkline_rises_with_its_values_and_fits_its_width() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, float("nan"), 1.0]) == "▁ █"
    assert sparkline([]) == ""
    assert sparkline([-1.0, 2.0]) == "▁█"
    assert len(sparkline([i / 1000 for i in range(1000)], 40)) == 40
    assert sparkline([0.0] * 10 + [1.0] * 10, 2) == "▁█"


def test_the_best_round_is_the_first_of_the_highest() -> None:
    lines = [line(0, 0.3), line(1, 0.9), line(2, None), line(3, 0.9)]
    assert best_round(lines, "server.accuracy")["round"] == 1  # type: ignore[index]
    assert best_round([line(0, None)], "server.accuracy") is None
    lines[1]["server"]["client_missing"] = 1  # type: ignore[index]
    assert best_round(lines, "server.accuracy")["round"] == 3  # type: ignore[index]
    assert best_round(lines[:2], "server.accuracy")["round"] == 0  # type: ignore[index]
    assert best_round(lines[1:2], "server.accuracy")["round"] == 1  # type: ignore[index]
    # Own models are scored whether or not the server's is.
    assert best_round(lines, "own.client_mean")["round"] == 3  # type: ignore[index]
    assert headline(lines) == "server.accuracy"
    assert headline([line(0, None)]) == "own.client_mean"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_comparison_fits_the_terminal(width: int) -> None:
    text = drawn(
        comparison_table([("fedavg", [line(0, 0.5)]), ("fedproto", [line(0, None)])], width), width
    )
    assert all(len(row) <= width for row in text.splitlines())
    assert "fedavg" in text
    assert "50.0" in text
    assert "–" in text
    assert "4.0 kB" in text


def test_an_overview_tells_of_failures_and_skipped_rounds() -> None:
    failed = [{"client": 3, "reason": "NaN or Inf in 'w'"}]
    text = drawn(
        overview("fedavg", [line(0, 0.5), line(1, None, status="skipped", failed=failed)], 9, {})
    )
    assert "last round 1" in text
    assert "skipped rounds: 2" in text
    assert "client 3 failed: NaN or Inf in 'w'" in text
    assert "2 of 9 rounds, not finished" in text


def test_an_overview_names_attack_and_defence_and_whom_the_defence_left_out() -> None:
    lines = [line(0, 0.5, left_out=[4]), line(1, 0.6, left_out=[4, 7])]
    text = drawn(overview("fedavg", lines, 2, {}, "attack swap:2, defence peers"))
    assert "attack swap:2, defence peers" in text
    assert "left out by the defence: client 4 (2 rounds), client 7 (1 round)" in text


def test_an_overview_of_a_run_that_has_not_begun_is_empty_but_no_error() -> None:
    assert "0 of 5 rounds" in drawn(overview("fedavg", [], 5, {}))


def test_runs_of_different_length_say_so_row_by_row() -> None:
    one, two = [line(0, 0.5), line(1, 0.6)], [line(0, 0.4)]
    assert "After 2 rounds" in drawn(comparison_table([("a", one), ("b", one)], 160), 160)
    assert "row by row: 2, 1" in drawn(comparison_table([("a", one), ("b", two)], 160), 160)
