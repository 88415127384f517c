"""The numbers of the comparison with other frameworks are those of the result files."""

import json
from pathlib import Path

from cafedcl.methods import find_method, method_names

HOME = Path(__file__).parents[2]
PAGE = " ".join((HOME / "docs" / "comparison.md").read_text(encoding="utf-8").split())


def test_the_speeds_are_those_of_the_result_file() -> None:
    file = HOME / "benchmarks" / "results" / "peers.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    fastest = result["fastest_peer"]
    assert fastest.keys() == {"digits", "a", "b", "c"}
    assert f"are {result['geometric_mean']['ratio']:.2f} times as fast" in PAGE
    assert f"the gain is larger ({fastest['digits']['ratio']:.2f} times)" in PAGE
    others = sorted(fastest[job]["ratio"] for job in ("a", "b", "c"))
    assert f"it is small ({others[0]:.2f} to {others[-1]:.2f} times)" in PAGE


def test_the_speed_on_a_gpu_is_that_of_the_result_file() -> None:
    file = HOME / "benchmarks" / "results" / "peers-gpu.json"
    fastest = json.loads(file.read_text(encoding="utf-8"))["fastest_peer"]["d"]
    assert fastest["fastest"] == "flower"
    assert f"rounds are {fastest['ratio']:.2f} times as fast as those of Flower" in PAGE


def test_the_number_of_methods_is_right() -> None:
    references = {"local", "central"}
    methods = [name for name in method_names() if name not in references]
    assert all(find_method(name)[0].name == name for name in references)
    assert f"| cafedcl | {len(methods)}, and two references: `local`, `central` |" in PAGE
