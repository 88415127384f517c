import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from site_generator import methods

from cafedcl.methods import find_method, method_names

HOME = Path(__file__).parents[2]
PAGES = HOME / "docs" / "methods"
INDEX = (HOME / "docs" / "methods.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_a_page_with_idea_loss_server_and_source(name: str) -> None:
    page = PAGES / f"{name}.md"
    assert page.is_file(), f"write docs/methods/{name}.md as that of another method"
    text = page.read_text(encoding="utf-8")
    marks = ("<!-- generated: method-facts -->", "<!-- generated: method-details -->")
    for part in (*marks, "## Loss of a client", "## Server", "## What we follow", "$$"):
        assert part in text, part
    assert f"](methods/{name}.md)" in INDEX


def test_there_are_no_pages_of_methods_that_do_not_exist() -> None:
    assert sorted(page.stem for page in PAGES.glob("*.md")) == method_names()


@pytest.mark.parametrize("name", ["cafedcl", "fedavg", "scaffold", "qffl", "local", "fedtgp"])
def test_the_facts_are_those_of_the_class(name: str) -> None:
    text = methods.facts(name).replace("\\", "")
    method = find_method(name)[0]
    for words in (method.sends, method.predicts, method.paper):
        assert words in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg", "nothing"),
        ("cafedcl", "`prototypes` for each class, `confidence` for each class"),
        ("qffl", "`loss` once"),
        ("scaffold", "`control` for every weight"),
    ],
)
def test_what_a_client_sends_besides_is_listed(name: str, words: str) -> None:
    assert methods.sent(name) == words


def test_options_and_presets_of_a_method_are_on_its_page() -> None:
    text = methods.details("moon")
    assert "| `mu` | weight μ of the contrastive term | `1.0` | ≥ 0 | number |" in text
    assert "| `moon:cifar10` | `mu = 5.0` |" in text


def run(method: str, seed: int, accuracy: float) -> dict[str, object]:
    return {
        "setting": "small",
        "data": "digits",
        "split": "iid",
        "method": method,
        "changed": {},
        "seed": seed,
        "server": {"accuracy": accuracy, "client_std": 0.5},
        "own": {},
    }


def test_the_results_are_the_methods_own_rows_with_mean_and_spread(tmp_path: Path) -> None:
    found = [run("fedavg", seed, value) for seed, value in enumerate((0.5, 0.6, 0.9))]
    result = {
        "study": "one",
        "title": "One study",
        "scale": {"name": "short", "about": "few rounds"},
        "environment": {"command": ["cafedcl", "reproduce", "one"]},
        "runs": [*found, run("fedavg+mixup", 0, 0.7), run("fedavgm", 0, 0.1)],
    }
    (tmp_path / "one.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    text = methods.results("fedavg", tmp_path)
    values = (50, 60, 90)
    accuracy = f"{mean(values):.2f} ± {stdev(values):.2f}"
    assert f"| small | digits, `iid` | `fedavg` | {accuracy} |" in text
    assert "| `fedavg+mixup` | 70.00 |" in text
    assert "fedavgm" not in text
    assert "`cafedcl reproduce one`" in text
    assert "No result file has it yet" in methods.results("fedprox", tmp_path)
