from typing import Any

from reproduction_curves import curves_table


def row(method: str, seed: int, server: list[tuple[int, float]], own: Any = ()) -> dict[str, Any]:
    curves = {"server": [list(point) for point in server], "own": [list(point) for point in own]}
    return {
        "setting": "cifar10-practical",
        "method": method,
        "changed": {},
        "seed": seed,
        "curves": curves,
    }


def test_curves_are_means_over_seeds_where_all_seeds_were_scored() -> None:
    rows = [
        row("fedavg", 0, [(5, 0.2), (10, 0.4)], own=[(10, 0.8)]),
        row("fedavg", 1, [(5, 0.3), (10, 0.5), (15, 0.6)], own=[(10, 0.9)]),
        row("fedproto", 0, [], own=[(10, 0.7)]),
    ]
    server, own = curves_table(rows).split("**cifar10-practical, own: client mean**")
    assert "**cifar10-practical, server: accuracy** after so many rounds" in server
    assert "| method | 5 | 10 |\n" in server
    assert "| `fedavg` | 25.0 | 45.0 |\n" in server
    assert "| `fedproto` | – | – |\n" in server
    assert "| `fedavg` | 85.0 |\n| `fedproto` | 70.0 |\n" in own


def test_a_score_that_nobody_has_gets_no_table() -> None:
    old = row("fedavg", 0, [])
    del old["curves"]
    assert curves_table([old]) == ""
    assert "own" not in curves_table([row("fedavg", 0, [(5, 0.2)])])
    assert curves_table([]) == ""
