"""Methods, models, augmentations and data of your own, named as `module:name`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.task.build import prepare
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
            "Python module in this folder or installed; execute this in the folder that "
            "fedavgg.py is in, or set PYTHONPATH to that folder",
        ),
        (
            {"method": {"name": "stats:Stats"}},
            "method 'stats:Stats': 'stats' is neither a method nor a Python module in this folder "
            "or installed; execute this in the folder that stats.py is in, or set PYTHONPATH to "
            "that folder",
        ),
        (
            {"method": {"name": "no_such.module:Fast"}},
            "method 'no_such.module:Fast': cannot be imported: there is no Python module "
            "'no_such.module', neither in this folder nor installed; execute this in the folder "
            "that no_such/module.py is in, or set PYTHONPATH to that folder",
        ),
        (
            {"method": {"name": "json:loads"}},
            "method 'json:loads': it is not a class derived from cafedcl.extend.Method",
        ),
        (
            {"augment": {"name": "json:loads"}},
            "augment 'json:loads': it is not a class derived from cafedcl.extend.Augmenter",
        ),
    ],
)
def test_a_name_that_is_not_found_names_what_it_could_have_been(tables, words) -> None:
    with pytest.raises(CafedclError) as caught:
        resolve(tables)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("section", "name", "meant"),
    [
        ("method", "my_method", "my_method:Pull"),
        ("method", "my_method.Pull", "my_method:Pull"),
        ("method", "my_method.py", "my_method:Pull"),
        ("method", "my_method.py:Pull", "my_method:Pull"),
        ("method", "./my_method.py:Pull", "my_method:Pull"),
        ("augment", "my_tail", "my_tail:Again"),
        ("augment", "my_tail.py:Again", "my_tail:Again"),
        ("model", "my_net.py:make", "my_net:make"),
    ],
)
def test_a_file_of_ones_own_that_was_named_in_another_way_is_found(
    section, name, meant, folder: Path, monkeypatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(CafedclError, match=rf"; did you mean '{meant}'\?$"):
        prepare(resolve({section: {"name": name}}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lossless", r"method 'steps_in_test:Lossless': it defines no loss$"),
        (
            "Short",
            r"its scores takes \(self, model, x\); \(self, model, x, anchors, memory\) is ex",
        ),
        ("Made", r"its __init__ takes \(self\); \(self, options, classes, dim, clients\) is ex"),
        ("Idle", r"augment 'steps_in_test:Idle': it defines no make$"),
        ("Eager", r"its make takes \(self\); \(self, client\) is expected \(steps_in_test\.py, li"),
        ("Plain", "it is not a class derived from cafedcl.extend.Method"),
    ],
)
def test_a_class_whose_steps_cannot_be_called_is_refused_before_a_run(
    name, words, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "steps_in_test.py").write_text(
        "from cafedcl.extend import Augmenter, FedAvg, Method\n\n"
        "class Lossless(Method):\n    name = 'lossless'\n\n"
        "class Short(FedAvg):\n    def scores(self, model, x):\n        return model(x)\n\n"
        "class Made(FedAvg):\n    def __init__(self):\n        pass\n\n"
        "class Plain:\n    Options = object\n\n"
        "class Idle(Augmenter):\n    name = 'idle'\n\n"
        "class Eager(Augmenter):\n    def make(self):\n        pass\n\n"
        "class Fine(FedAvg):\n    def __init__(self, *words, more=None, **named):\n"
        "        super().__init__(*words, **named)\n\n"
        "    @staticmethod\n    def scores(model, x, anchors, memory, more=None):\n"
        "        return model(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    section = "augment" if name in ("Idle", "Eager") else "method"
    with pytest.raises(CafedclError, match=words):
        resolve({section: {"name": f"steps_in_test:{name}"}})
    assert resolve({"method": {"name": "steps_in_test:Fine"}})


def test_a_module_without_a_dot_is_no_preset(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    config = resolve({"method": {"name": "my_method:Pull+my_tail:Again"}})
    assert (config.method.name, config.augment.name) == ("my_method:Pull", "my_tail:Again")


def test_a_method_of_ones_own_has_presets(folder: Path, monkeypatch) -> None:
    file = folder / "my_presets.py"
    file.write_text(
        PLUG_INS["my_method"] + "    presets = {'slow': {'train.lr': 0.01}, 'odd': {'mu': 1.0}}\n"
    )
    monkeypatch.syspath_prepend(folder)
    chosen = resolve({"method": {"name": "my_presets:Pull:slow"}})
    assert (chosen.train.lr, chosen.method.name) == (0.01, "my_presets:Pull:slow")
    assert resolve({"method": {"name": "my_presets:Pull"}}).train.lr == 0.1
    with pytest.raises(CafedclError, match="there is no such preset"):
        resolve({"method": {"name": "my_presets:Pull:slwo"}})
    with pytest.raises(CafedclError, match="mu"):
        resolve({"method": {"name": "my_presets:Pull:odd"}})
