"""The list of what leaves a site is made from real messages."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from cafedcl.core.contract import Up
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.disclosure import ENROLMENT, ROUND, disclosed, limits
from cafedcl.deploy.population import Enrolled
from cafedcl.methods import find_method, method_names
from cafedcl.task.resolve import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
METHODS = [name for name in method_names() if not find_method(name)[0].pooled]
SMALL = {"model": {"name": "mlp", "width": 0.25}}
QUICK = {"fedloge": {"steps": 1}}


def listed(method="cafedcl", **sections):
    return disclosed(resolved(method, **sections), (1, 8, 8), 3)


def resolved(method, **sections):
    options = {"name": method, **QUICK.get(method, {})}
    return resolve({"method": options, **SMALL, **sections})


@pytest.mark.parametrize("method", METHODS)
def test_everything_that_a_method_sends_is_listed_and_described(method):
    found = listed(method)
    assert not [entry.name for entry in found if entry.tells == "not described"]
    once = {entry.name for entry in found if entry.when == ENROLMENT}
    assert once == {field.name for field in fields(Enrolled)}
    names = {entry.name.partition("/")[0] for entry in found if entry.when == ROUND}
    plain = {field.name for field in fields(Up)} - {"tensors", "notes", "model"}
    assert plain <= names
    assert "notes" not in names


def test_notes_are_listed_where_they_are_sent():
    names = {entry.name for entry in listed(release={"notes": "on"})}
    assert {"notes/confidence", "notes/uncertainty", "notes/scatter"} <= names
    sizes = {entry.name: entry.shape for entry in listed()}
    assert sizes["up/prototypes"][0] == 3


@pytest.mark.parametrize("method", [*METHODS, "cafedcl:best"])
def test_the_table_of_the_page_is_what_is_sent(method):
    names = [entry.name for entry in listed(method, release={"notes": "on"}) if entry.when == ROUND]
    weights = "yes" if "model" in names else "no"
    cells = [f"`{method}`", weights]
    for prefix in ("up/", "notes/"):
        # The control variates of SCAFFOLD are one entry per weight.
        words = {name.split("/")[1]: None for name in names if name.startswith(prefix)}
        cells.append(", ".join(f"`{word}`" for word in words) or "–")
    assert f"| {' | '.join(cells)} |" in PAGE


def test_a_method_that_reveals_more_is_said():
    assert "mp-fedcl: clients send centroids" in " ".join(limits(resolved("mp-fedcl")))
    assert "clients send" not in " ".join(limits(resolved("cafedcl:best")))


def test_a_secure_sum_tells_a_masked_vector_instead_of_a_model():
    private = {"kind": "clients", "secure": True}
    found = [entry for entry in listed("fedavg", privacy=private) if entry.when == ROUND]
    assert {entry.name for entry in found} == {"client", "keys", "shares", "masked"}
    sizes = {entry.name: entry.bytes for entry in found}
    # Two public keys of 384 bits, and shares of two secrets for each of two others.
    assert sizes["keys"] > 2 * 2 * 48
    assert sizes["shares"] > 2 * 2 * 32
    weights = next(e.shape for e in listed("fedavg") if e.name == "model")
    assert next(e.shape for e in found if e.name == "masked") == (weights[0] + 1,)


@pytest.mark.parametrize(("kind", "said"), [("clients", "the counts of all"), ("records", "")])
def test_what_a_run_would_refuse_is_refused_here(kind, said):
    with pytest.raises(CafedclError, match=rf"privacy\.kind = {kind}: .*{said}"):
        listed("cafedcl", privacy={"kind": kind})


def test_the_limits_are_told_in_words():
    lines = limits(resolve({"method": {"name": "fedavg"}}))
    assert "fewer than 5 images are not reported; class counts are rounded" in lines[0]
    assert "no differential privacy" in lines[1]
    private = resolve({"method": {"name": "fedavg"}, "privacy": {"kind": "clients"}})
    assert "the server itself sees" in limits(private)[1]
    plain = {"fewest": 1, "counts": "exact", "prototypes": "raw", "notes": "on"}
    simulated = limits(resolve({"method": {"name": "fedavg"}, "release": plain}))
    assert "class counts are exact" in simulated[0]
    assert "that of a simulation" in simulated[1]
    assert not any("that of a simulation" in line for line in lines)


def test_the_command_prints_the_list(capsys, tmp_path):
    from cafedcl.cli.main import app

    file = tmp_path / "run.toml"
    file.write_text('[data]\nname = "sites"\n[model]\nname = "mlp"\nwidth = 0.25\n')
    words = ["privacy", str(file), "--method", "fedavg", "--classes", "2", "--shape", "1,8,8"]
    app([*words, "--json"], standalone_mode=False)
    entries = json.loads(capsys.readouterr().out)
    assert {"model", "samples", "losses", "counts"} <= {entry["name"] for entry in entries}
    app(words, standalone_mode=False)
    assert "every round" in capsys.readouterr().out


def test_the_command_takes_the_sizes_of_a_run_from_its_folder(capsys, tmp_path):
    from cafedcl import api
    from cafedcl.cli.main import app

    api.start(resolved("fedavg", federation={"clients": 2, "rounds": 1}), tmp_path / "run", ())
    config = str(tmp_path / "run" / "config.toml")
    app(["privacy", config], standalone_mode=False)
    assert capsys.readouterr().out.startswith("fedavg, 10 classes, images of 1×8×8\n")
    app(["privacy", config, "--classes", "3", "--shape", "1,9,9"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("fedavg, 3 classes, images of 1×9×9\n")
    with pytest.raises(CafedclError, match=r"--shape 1,9: three numbers are expected"):
        app(["privacy", config, "--shape", "1,9"], standalone_mode=False)
