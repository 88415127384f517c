"""The command experiments/theory_figure.py, its figure, and the page that quotes it."""

import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import theory as of
from theory_figure import main

from cafedcl.core.errors import CafedclError

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "theory.md").read_text(encoding="utf-8")
QUICK = ["--rounds", "3", "--repetitions", "50"]


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command and return its output."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        main(words)
        return capsys.readouterr().out

    return call


@pytest.fixture
def found(run):
    """Run the command and return its JSON output."""

    def call(*words):
        return json.loads(run(*words, "--json"))

    return call


def test_json_has_every_round_and_every_weighting(found):
    numbers = found(
        "--counts", "9,4", "--sigma", "1,2", "--weights", "uniform", "--rho", "0.25", *QUICK
    )
    v = 0.25 * (1 / 9 + 4 / 4)
    assert numbers["injected"] == pytest.approx(v)
    assert numbers["gap"] == pytest.approx(1)
    assert [row["round"] for row in numbers["rounds"]] == [1, 2, 3]
    first, second = numbers["rounds"][:2]
    assert first["exact"] == pytest.approx(0.5625 + v)
    assert second["exact"] == pytest.approx((1 - 0.25**2) ** 2 + v * (1 + 0.25**2))
    assert second["printed"] == pytest.approx(0.0625 * first["exact"] + 2 * 0.5625 + 2 * v)
    assert second["corrected"] == pytest.approx(0.25 * first["exact"] + 0.75 + v)
    assert second["printed_holds"] is second["corrected_holds"] is True
    assert abs(second["simulated"] - second["exact"]) < 6 * second["standard_error"]
    assert numbers["stationary"]["exact"] == pytest.approx(1 + v / (1 - 0.0625))
    assert numbers["limits"]["printed"] == pytest.approx(2 * 0.75 / 1.25 + 2 * v / (1 - 0.0625))
    assert numbers["limits"]["corrected"] == pytest.approx(1 + v / 0.75)
    ways = {way["name"]: way for way in numbers["weights"]}
    assert list(ways) == ["uniform", "counts", "confidence", "inverse-variance", "optimal"]
    assert ways["optimal"]["alpha"] == pytest.approx([0.9, 0.1])
    assert ways["uniform"]["effective_clients"] == pytest.approx(2)
    assert ways["optimal"]["ratio"] == pytest.approx(1)


def test_one_seed_makes_the_simulation(found):
    assert found("--seed", "3", *QUICK) == found("--seed", "3", *QUICK)
    assert found("--seed", "3", *QUICK)["rounds"] != found("--seed", "4", *QUICK)["rounds"]


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ([], [100, 10, 1]),
        (["--clients", "1"], [100]),
        (["--clients", "5"], [100, 32, 10, 3, 1]),
        (["--clients", "2", "--counts", "7"], [7, 7]),
        (["--counts", "7"], [7]),
        (["--counts", "7", "--sigma", "1,2,3"], [7, 7, 7]),
    ],
)
def test_the_number_of_clients_follows_from_what_is_given(words, counts, found):
    assert found(*words, *QUICK)["counts"] == counts


@pytest.mark.parametrize("gap", ["0", "2.5"])
def test_the_gap_is_what_was_asked_for(gap, found):
    assert found("--gap", gap, "--clients", "6", *QUICK)["gap"] == pytest.approx(
        float(gap), abs=1e-12
    )


def test_the_tables_say_what_fails(run):
    out = run("--rounds", "30", "--repetitions", "50")
    assert "Eq. 8 as printed fails in 28 of 30 rounds, the corrected bound in 0." in out
    assert re.search(r"^30 .* fails .* holds", out, re.MULTILINE)
    assert re.search(r"^confidence +0\.056890", out, re.MULTILINE)
    assert "0.083 0.083 0.083 0.083 …" in run("--clients", "12", *QUICK)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rho", "1"], "rho: 1.0 is not in [0, 1)"),
        (["--rho", "nan"], "rho: nan is not in [0, 1)"),
        (["--clients", "0"], "--clients: 0 is too small; give at least 1"),
        (["--counts", "10,x"], "--counts: '10,x' is not a list of numbers; write it like 100,10,1"),
        (["--counts", ""], "--counts: '' is not a list"),
        (["--counts", "10,0"], "--counts: 10, 0; give finite numbers of more than 0"),
        (["--counts", "inf"], "--counts: inf; give finite numbers"),
        (["--sigma", "0"], "--sigma: 0; give finite numbers of more than 0"),
        (["--uncertainty=-1"], "--uncertainty: -1; give finite numbers of at least 0"),
        (
            ["--counts", "1,2", "--sigma", "1,2,3"],
            "--counts: has 2 numbers for 3 clients; give one, or one per client",
        ),
        (["--clients", "4", "--counts", "1,2"], "--counts: has 2 numbers for 4 clients"),
        (["--weights", "count"], "--weights: there is no 'count'; did you mean 'counts'?"),
        (["--gap", "-1"], "--gap: -1.0 is not a squared distance"),
        (["--dim", "0"], "--dim: 0 is too small; give at least 1"),
        (["--rounds", "0"], "--rounds: 0 is too small"),
        (["--repetitions", "1"], "--repetitions: 1 is too small; give at least 2"),
        (["--seed", "-1"], "--seed: -1 is too small"),
        (
            ["--rounds", "1000000", "--repetitions", "1000"],
            "1,000,000,000 exceed 100,000,000; give fewer",
        ),
        (
            ["--figure", "theory.jpg"],
            "--figure: theory.jpg does not end in .svg, .png, .pdf; choose one of them",
        ),
        (
            ["--figure", "no/such/folder/theory.png"],
            "the figure cannot be written: No such file or directory",
        ),
    ],
)
def test_a_mistake_is_one_line(words, says, run):
    with pytest.raises(SystemExit, match=re.escape(says)) as caught:
        run(*QUICK, *words)
    assert "\n" not in str(caught.value)


def model(**change):
    two = np.array([0.5, 0.5])
    point = np.zeros(3)
    parts = {"rho": 0.5, "alpha": two, "centres": np.zeros((2, 3)), "counts": two, "sigma": two}
    return of.Model(**(parts | {"truth": point, "start": point} | change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alpha": np.array([0.5, 0.6])}, "alpha: weights must be at least 0 and sum to 1"),
        ({"alpha": np.array([1.5, -0.5])}, "alpha: weights"),
        ({"counts": np.array([1.0, 0.0])}, "counts: every client"),
        ({"sigma": np.array([1.0, -1.0])}, "sigma: a standard deviation"),
        ({"sigma": np.array([1.0, math.inf])}, "sigma: a standard deviation"),
        ({"centres": np.zeros(3)}, "centres: has shape (3,); give one row per client"),
        ({"sigma": np.ones(3)}, "sigma: has shape (3,); give 2 numbers"),
        ({"truth": np.zeros(2)}, "truth: has shape (2,); give 3 numbers"),
    ],
)
def test_an_impossible_model_is_refused_in_one_line(change, says):
    with pytest.raises(CafedclError, match=re.escape(says)) as caught:
        model(**change)
    assert "\n" not in str(caught.value)


def test_a_simulation_needs_two_repetitions():
    with pytest.raises(CafedclError, match="repetitions: 1 have no standard error"):
        of.simulate(model(), 3, 1, np.random.default_rng(0))


@pytest.mark.parametrize(("ending", "starts"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_figure_is_written_in_other_formats(tmp_path, ending, starts, run):
    path = tmp_path / f"theory.{ending}"
    assert f"written: {path}" in run("--figure", str(path), *QUICK).replace("\n", "")
    assert path.read_bytes().startswith(starts)


@pytest.mark.parametrize(
    "words",
    [["--gap", "0"], ["--clients", "1", "--rho", "0"], ["--rho", "0.99", "--clients", "30"]],
)
def test_extreme_instances_are_drawn_without_a_warning(tmp_path, words, found):
    found("--figure", str(tmp_path / "theory.svg"), *words, *QUICK)
    assert ET.parse(tmp_path / "theory.svg").getroot().tag.endswith("svg")


def test_the_same_figure_is_the_same_file(tmp_path, run):
    for name in ("a.svg", "b.svg"):
        path = tmp_path / name
        assert f"written: {path}" in run("--figure", str(path), *QUICK).replace("\n", "")
    written = (tmp_path / "a.svg").read_bytes()
    assert written.startswith(b"<?xml")
    assert written == (tmp_path / "b.svg").read_bytes()


def blocks():
    """The commands on the page, each with the lines of output quoted below it."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        command, *lines = (" ".join(line.split()) for line in block.strip().splitlines())
        yield command.removeprefix("$ python experiments/theory_figure.py "), lines


@pytest.mark.parametrize(("command", "lines"), list(blocks()))
def test_the_numbers_on_the_page_are_what_the_command_prints(command, lines, run):
    printed = [" ".join(line.split()) for line in run(*shlex.split(command)).splitlines()]
    assert lines
    for line in lines:
        assert line in printed


def test_the_two_factors_on_the_page_are_those_of_the_defaults():
    assert f"= {0.7 / (0.3 * math.exp(-0.5)):.2f}$ times" in PAGE
    assert f"{1 / (4 / 7 + 3 / 7 * math.exp(-0.5)):.3f} at most" in PAGE


def test_every_test_that_the_page_names_is_there():
    here = Path(__file__).parent
    files = (
        *("test_theory.py", "test_recall_loop.py"),
        *("../functional/test_ridge.py", "../functional/test_contrast.py"),
    )
    theory, *others = (
        set(re.findall(r"^def (test_\w+)", (here / file).read_text("utf-8"), re.MULTILINE))
        for file in files
    )
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert theory <= named <= theory.union(*others)
    ET.parse(HOME / "docs" / "images" / "theory.svg")
