"""The Flower app: the one in pyproject.toml, for `flwr run .`, and the small one that is handed to
a SuperLink.
"""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.app import COMPONENTS, RUN_CONFIG, write_app
from cafedcl.deploy.flower.server_app import read_config

ROOT = Path(__file__).parents[2]


def app_of(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
        "app"
    ]


def test_both_apps_have_the_same_components_and_the_same_run_config(tmp_path):
    here = app_of(ROOT)
    there = app_of(write_app(tmp_path / "cafedcl-run"))
    assert here["components"] == there["components"] == COMPONENTS
    assert here["config"] == there["config"] == RUN_CONFIG
    assert here["publisher"] == there["publisher"]
    assert here["fab-format-version"] == there["fab-format-version"]


def test_flower_accepts_both_and_the_one_that_is_shipped_is_small(tmp_path):
    for folder in (ROOT, write_app(tmp_path / "cafedcl-run")):
        config, warnings = load_and_validate(folder / "pyproject.toml")
        assert config["tool"]["flwr"]["app"]["components"] == COMPONENTS
        assert warnings == []
    assert len(build_fab_from_disk(tmp_path / "cafedcl-run")) < 2000


def test_a_run_config_stands_for_the_flags_of_a_run(tmp_path):
    assert read_config(RUN_CONFIG).engine.name == "flower"
    given = {
        "method": "fedavg",
        "split": "iid",
        "clients": 4,
        "rounds": 7,
        "seed": 0,
        "settings": "train.lr=0.5",
    }
    config = read_config({**RUN_CONFIG, **given})
    assert (config.method.name, config.split.kind, config.train.lr) == ("fedavg", "iid", 0.5)
    assert (config.federation.clients, config.federation.rounds, config.run.seed) == (4, 7, 0)
    file = tmp_path / "run.toml"
    file.write_text("[federation]\nrounds = 3\n[run]\nseed = 9\n")
    config = read_config({**RUN_CONFIG, "config-file": str(file)})
    assert (config.federation.rounds, config.run.seed) == (3, 9)


def test_a_mistake_in_the_run_config_is_one_line():
    with pytest.raises(CafedclError, match="fedavq"):
        read_config({**RUN_CONFIG, "method": "fedavq"})
