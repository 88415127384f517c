"""The arithmetic of the comparison."""

from typing import Any

import pytest


def result(
    system: str, job: str, seconds: list[float], wall: float, **parts: Any
) -> dict[str, Any]:
    rest = {"accuracy": 0.9, "loss": 0.5, "steps": [10] * len(seconds), "cores": "2"}
    return {"system": system, "job": job, "seconds": seconds, "wall": wall, **rest, **parts}


def test_ratios(run: Any) -> None:
    runs = [
        result("ours", "a", [9.0, 2.0, 2.0, 5.0], 20.0),
        result("plain", "a", [9.0, 6.0, 6.0], 30.0),
        result("flower", "a", [9.0, 4.0, 4.0], 50.0),
        {"system": "pfl", "job": "a", "failed": "no such module"},
        result("ours", "digits", [1.0, 0.5], 4.0),
        result("plain", "digits", [1.0, 0.25], 1.0),
        result("ours", "a", [9.0, 2.0, 2.0], 20.0),
        result("plain", "a", [9.0, 8.0, 8.0], 40.0),
    ]
    compared = run.compare(runs)
    rows = compared["jobs"]["a"]
    assert [rows[system]["round"] for system in ("ours", "plain", "flower")] == [2.0, 7.0, 4.0]
    assert [rows[system]["ratio"] for system in ("ours", "plain", "flower")] == [1.0, 3.5, 2.0]
    assert rows["plain"]["wall_ratio"] == 1.75
    assert rows["pfl"] == {"failed": "no such module"}
    assert compared["fastest_peer"]["a"]["fastest"] == "flower"
    assert compared["fastest_peer"]["a"]["fastest_wall"] == "plain"
    assert compared["fastest_peer"]["digits"]["ratio"] == 0.5
    assert compared["geometric_mean"]["ratio"] == pytest.approx(1.0)
    assert compared["geometric_mean"]["wall_ratio"] == pytest.approx((1.75 * 0.25) ** 0.5)
    assert compared["warnings"] == []


def test_jobs_that_are_measured_later_are_added(run: Any) -> None:
    def measured(command: str, *runs: dict[str, Any]) -> dict[str, Any]:
        return {
            "measured": {r["job"]: {"command": command} for r in runs},
            "runs": list(runs),
            **run.compare(runs),
        }

    old = measured(
        "old",
        *(
            result(s, job, [1.0, n], 2.0)
            for s, n in (("ours", 1), ("pfl", 2))
            for job in ("a", "c")
        ),
    )
    new = measured("new", result("ours", "a", [1.0, 1.0], 2.0), result("pfl", "a", [1.0, 8.0], 2.0))
    both = run.together(old, new)
    assert {job: about["command"] for job, about in both["measured"].items()} == {
        "a": "new",
        "c": "old",
    }
    assert {job: lead["ratio"] for job, lead in both["fastest_peer"].items()} == {
        "a": 8.0,
        "c": 2.0,
    }
    assert both["geometric_mean"]["ratio"] == pytest.approx(4.0)
    assert len(both["runs"]) == 4


def test_other_work_is_warned_about(run: Any) -> None:
    runs = [result(system, "a", [1.0, 1.0], 2.0) for system in ("ours", "plain", "pfl", "fluke")]
    runs += [
        result("flower", "a", [1.0, 1.0], 2.0, accuracy=0.5),
        result("fedjax", "a", [1.0, 1.0], 2.0, steps=[9, 9]),
    ]
    warnings = run.compare(runs)["warnings"]
    assert len(warnings) == 2
    assert "flower ends with accuracy 0.500" in warnings[0]
    assert "fedjax did 9 steps per round" in warnings[1]


def test_every_system_gets_its_fastest_setting(run: Any) -> None:
    timed = [(1, True, 30.0), (1, False, 20.0), (2, True, 15.0), (2, False, 18.0)]
    settings = [{"threads": t, "onednn": o, "milliseconds": ms} for t, o, ms in timed]
    assert run.fastest(settings, "plain", "fastest") == settings[2]
    assert run.fastest(settings, "flower", "fastest") == settings[1]
    assert run.fastest(settings, "flower", "on") == settings[0]
    assert (
        run.fastest([settings[1], {**settings[3], "milliseconds": 19.0}], "plain", "fastest")
        == settings[1]
    )
