from statistics import mean
from typing import Any

from reproduction_parts import part_label, parts_table


def row(changed: dict[str, Any], seed: int, accuracy: float) -> dict[str, Any]:
    scores = dict.fromkeys(("accuracy", "balanced", "client_mean", "client_std"), accuracy)
    return {
        "setting": "cifar10-ir50",
        "data": "cifar10",
        "split": "pathological:2,ir=50",
        "method": "cafedcl:best",
        "changed": changed,
        "seed": seed,
        "rounds": 40,
        "server": scores,
        "own": scores,
        "images": 10000,
        "clients": 20,
        "model": "cnn4",
        "width": 1.0,
        "lr": 0.025,
        "epochs": 5,
        "options": {},
    }


def test_every_change_is_compared_with_the_unchanged_method() -> None:
    whole = [0.40, 0.42, 0.44]
    averaged = [0.35, 0.36, 0.40]
    cold = [0.41, 0.40, 0.41]
    levels = [({}, whole), ({"method.anchors": "averaged"}, averaged), ({"method.tau": 0.1}, cold)]
    rows = [
        row(changed, seed, value) for changed, values in levels for seed, value in enumerate(values)
    ]
    lines = parts_table(rows).splitlines()
    for label, values in ((r'anchors="averaged"', averaged), ("tau=0.1", cold)):
        (line,) = [line for line in lines if label in line]
        gap = 100 * mean(a - b for a, b in zip(values, whole, strict=True))
        assert line.startswith(f"| `cafedcl:best with {label}` − `cafedcl:best` | {gap:+.2f} ± ")
        assert line.endswith("| 3 |")
    assert not parts_table(rows[:3])


def test_what_was_changed_is_told_in_short() -> None:
    assert part_label("cafedcl:best", {}) == "cafedcl:best"
    changed = {"server.momentum": 0.0, "method.tau": 0.1}
    assert part_label("cafedcl:best", changed) == "cafedcl:best with server.momentum=0.0, tau=0.1"
