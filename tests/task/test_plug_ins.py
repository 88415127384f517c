"""Methods, models, augmentations and data of your own, named as `module:name`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.task.resolve import resolve

PLUG_INS = {
    "my_method": (
        "from cafedcl.extend import FedAvg\n\n\n"
        "class Pull(FedAvg):\n    '''Like FedAvg.'''\n\n    name = 'pull'\n"
    ),
    "my_data": (
        "from cafedcl.config.sections import DataOptions\n"
        "from cafedcl.data import load_dataset\n\n\n"
        "def load():\n    return load_dataset(DataOptions())\n"
    ),
    "my_tail": (
        "from cafedcl.augment.base import Resample\n\n\n"
        "class Again(Resample):\n    '''Like resample.'''\n\n    name = 'again'\n"
    ),
    "my_net": (
        "from cafedcl.models.small import MLP\n\n\n"
        "def make(shape, width):\n    return MLP(shape, width)\n"
    ),
}
NAMES = (
    *("--method", "my_method:Pull", "--data", "my_data:load", "--augment", "my_tail:Again"),
    *("--set", "model.name=my_net:make", "--set", "model.width=0.1"),
)
SMALL = ("--rounds", "1", "--clients", "2", "--split", "iid", "--device", "cpu")


COMMANDS = (
    (
        *("compare", "--methods", "my_method:Pull", "--data", "my_data:load", "--splits", "iid"),
        *("--rounds", "1", "--clients", "2", "--devices", "cpu", "--out", "compared"),
    ),
    (
        *("run", *NAMES, *SMALL, "--set", "train.epochs=1", "--set", "engine.workers=2"),
        *("--out", "run", "--json"),
    ),
)
CONSOLE_SCRIPT = """
import json, sys
from cafedcl.cli.main import main

paths = list(sys.path)
for words in json.loads(sys.argv[1]):
    sys.argv = ["cafedcl", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    # The next command finds nothing that this one has found.
    sys.path[:] = paths
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in PLUG_INS.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


@pytest.mark.slow
def test_modules_of_the_current_folder_are_found_by_a_run_its_workers_and_the_jobs_of_a_comparison(
    folder: Path,
) -> None:
    """As in a console script, the current folder is not on the path. Both commands run in one
    process, since PyTorch takes seconds to import.
    """
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", CONSOLE_SCRIPT, json.dumps(COMMANDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(list((folder / "compared").rglob("metrics.jsonl"))) == 1
    assert json.loads(done.stdout.splitlines()[-1])["round"] in (0, 1)
    assert (folder / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"method": {"name": "fedavgg:Fast"}},
            "method 'fedavgg:Fast': 'fedavgg' is neither a method (did you mean 'fedavg'?) nor a "
            "Python module in this folder or installed",
        ),
        (
            {"method": {"name": "no_such.module:Fast"}},
            "method 'no_such.module:Fast': cannot be imported: there is no Python module "
            "'no_such.module', neither in this folder nor installed",
        ),
        (
            {"method": {"name": "json:loads"}},
            "method 'json:loads': it is not a class derived from cafedcl.extend.Method",
        ),
        (
            {"augment": {"name": "json:loads"}},
            "augment 'json:loads': it is not a class derived from cafedcl.augment.base.Augmenter",
        ),
    ],
)
def test_a_name_that_is_not_found_names_what_it_could_have_been(tables, words) -> None:
    with pytest.raises(CafedclError) as caught:
        resolve(tables)
    assert str(caught.value) == words


def test_a_module_without_a_dot_is_no_preset(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    config = resolve({"method": {"name": "my_method:Pull+my_tail:Again"}})
    assert (config.method.name, config.augment.name) == ("my_method:Pull", "my_tail:Again")
