import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cafedcl.cli.session import folder_for
from cafedcl.core.errors import CafedclError
from cafedcl.methods import method_names
from cafedcl.task.resolve import resolve

SMALL = [
    *("--clients", "4", "--rounds", "2", "--device", "cpu"),
    *("--set", "model.name=mlp", "--set", "model.width=0.1"),
    *("--set", "train.epochs=1", "--set", "engine.workers=1"),
]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(invoke: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Run the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return invoke


def test_help_loads_no_large_library() -> None:
    large = {"torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "PIL", "flwr", "ray"}
    code = "import sys; sys.argv = ['cafedcl', '--help']\nfrom cafedcl.cli.main import main\n"
    code += f"try: main()\nfinally: assert not {large} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "resume" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lr", "0.1"], "No such option: --lr Did you mean --set train.lr=…?"),
        (["--batch-size", "5"], "Did you mean --set train.batch_size=…?"),
        (["--round", "5"], "--rounds"),
        (["--set", "train.learning_rate=1"], "no such option; did you mean 'lr'?"),
    ],
)
def test_who_takes_an_option_for_a_flag_is_told_how_to_set_it(
    words: list[str], says: str, call: Call
) -> None:
    code, out, err = call("run", *words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_run_ends_with_its_scores_and_names_its_files(call: Call, tmp_path: Path) -> None:
    code, out, err = call("run", "--method", "fedavg", "--seed", 3, *SMALL)
    assert (code, err) == (0, "")
    assert "round 1/2" in out
    assert "round 2/2  accuracy" in out
    assert "last round 2" in out
    assert "best round" in out
    assert "runs/fedavg-digits-s3" in out
    assert (tmp_path / "runs" / "fedavg-digits-s3" / "metrics.jsonl").exists()
    code, out, _ = call("run", "--method", "fedavg", "--seed", 3, *SMALL, "--quiet")
    assert (code, out) == (0, "")
    assert (tmp_path / "runs" / "fedavg-digits-s3-2").is_dir(), (
        "a second run gets a folder of its own"
    )


def test_commands_that_start_together_get_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with folder_for(None, "fedavg") as one, folder_for(None, "fedavg") as other:
        (one / "config.toml").touch()
    assert (one, other) == (Path("runs/fedavg"), Path("runs/fedavg-2"))
    assert one.is_dir()
    assert not other.exists(), "nothing was written into it"
    monkeypatch.chdir(one)
    Path("runs").touch()
    with pytest.raises(CafedclError, match=r"runs.*cannot be written"), folder_for(None, "fedavg"):
        pass


def test_json_output_is_one_object_per_round(call: Call) -> None:
    code, out, _ = call("run", *SMALL, "--json")
    assert code == 0
    assert [json.loads(line)["round"] for line in out.splitlines()] == [0, 1]


@pytest.mark.parametrize("way", ["--quiet", "--json"])
def test_a_fallback_is_a_warning_however_little_is_printed(call: Call, way: str) -> None:
    unstacked = ["--augment", "mixup", "--set", "engine.stack=4"]
    code, out, err = call("run", *SMALL, *unstacked, "--out", "out", way)
    assert code == 0
    assert err.startswith("warning: clients train one after another, not side by side (")
    assert "warning" not in out
    assert "note: clients train one after another" in call("show", "out")[1]


def test_settings_win_over_flags_and_flags_over_the_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[method]\nname = "fedproto"\nlam = 3\n[run]\nseed = 5\n[federation]\nrounds = 9\n'
    )
    code, _, err = call("run", "c.toml", *SMALL, "--set", "method.lam=2.5", "--out", "out", "-q")
    assert (code, err) == (0, "")
    stored = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert stored["method"] == {"name": "fedproto", "lam": 2.5, "prototypes": "moving"}
    assert stored["run"]["seed"] == 5
    assert stored["federation"]["rounds"] == 2


@pytest.mark.parametrize("method", ["cafedcl", "fedavg", "cafedcl:literal"])
def test_the_printed_config_can_be_fed_back(call: Call, tmp_path: Path, method: str) -> None:
    code, short, _ = call("config", "--method", method)
    assert code == 0
    assert resolve(tomllib.loads(short)) == resolve({"method": {"name": method}})
    code, out, _ = call("config", "--method", method, "--advanced")
    assert code == 0
    assert resolve(tomllib.loads(out)) == resolve({"method": {"name": method}})
    assert len(short) < len(out)
    assert "lam_geo" in short or not method.startswith("cafedcl")
    assert ("geo_reduction" in out) == method.startswith("cafedcl")
    assert ("geo_reduction" in short) == (method == "cafedcl:literal")
    options = [line for line in out.splitlines() if " = " in line and not line.startswith("#")]
    explained = [line for line in out.splitlines() if line.startswith("# ")]
    assert len(explained) == len(options) + 1, "every option has its meaning above it"


def test_lists_name_everything_there_is(call: Call) -> None:
    code, out, _ = call("methods")
    assert code == 0
    assert all(name in out for name in [*method_names(), ":literal", "McMahan"])
    assert "temperature τ" in call("methods", "cafedcl")[1]
    assert "11,168,832" in call("models")[1]
    assert "digits" in call("datasets")[1]
    assert call("--version")[1].startswith("cafedcl ")


def test_a_method_of_ones_own_has_neither_the_paper_nor_the_words_of_the_one_it_is_derived_from(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "from cafedcl.extend import FedAvg\n\nclass Pull(FedAvg):\n    name = 'pull'\n"
    (tmp_path / "pull_in_test.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = call("methods", "pull_in_test:Pull")
    assert (code, out.split()) == (0, ["pull_in_test:Pull", "derived", "from", "FedAvg"])


def test_show_tells_last_and_best_and_compares_several(call: Call) -> None:
    for method in ("fedavg", "cafedcl", "fedproto"):
        assert call("run", "--method", method, *SMALL, "--out", method, "-q")[0] == 0
    code, out, _ = call("show", "fedavg", "--split")
    assert code == 0
    assert "2 of 2 rounds, finished" in out
    assert "images" in out
    _, out, _ = call("show", "fedavg", "cafedcl", "fedproto")
    assert all(word in out for word in ("fedavg", "cafedcl", "fedproto", "–", "own"))
    _, out, _ = call("show", "fedavg", "--json")
    summary = json.loads(out)
    assert summary["rounds"] == 2
    assert summary["last"]["round"] == 1
    assert summary["best"]["server"]["accuracy"] >= summary["last"]["server"]["accuracy"]


def test_predict_refuses_a_model_that_no_round_has_trained(call: Call, tmp_path: Path) -> None:
    never = [f"{t}:{client}" for t in range(2) for client in range(4)]
    call("run", *SMALL, "--set", f"federation.drop={json.dumps(never)}", "--out", "run", "-q")
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    code, out, err = call("predict", "run", "x.png")
    assert (code, out) == (2, "")
    assert err.startswith("error: run: no round was aggregated, so the model has learned nothing")
    assert len(err.splitlines()) == 1


def test_a_method_without_a_server_model_predicts_with_a_clients(
    call: Call, tmp_path: Path
) -> None:
    assert call("run", "--method", "fedproto", *SMALL, "--out", "run", "-q")[0] == 0
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    code, _, err = call("predict", "run", "x.png")
    assert code == 2
    assert "choose a client's model with --client" in err
    assert call("predict", "run", "x.png", "--client", 1)[0] == 0
    assert "client 9" in call("predict", "run", "x.png", "--client", 9)[2]


def test_resuming_a_finished_run_says_so_and_changes_nothing(call: Call, tmp_path: Path) -> None:
    call("run", *SMALL, "--out", "run", "-q")
    before = {
        file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*") if file.is_file()
    }
    code, out, _ = call("resume", "run")
    assert code == 0
    assert "already finished" in out
    assert before == {
        file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*") if file.is_file()
    }


BAD = {
    "unknown method": (["run", "--method", "cafedc"], "did you mean 'cafedcl'?"),
    "unknown preset": (["run", "--method", "cafedcl:no-goe"], "did you mean 'no-geo'?"),
    "unknown data": (["run", "--data", "digit"], "did you mean 'digits'?"),
    "unknown model": (["run", "--set", "model.name=resnet19"], "did you mean 'resnet18'?"),
    "unknown section": (["run", "--set", "trian.lr=1"], "did you mean 'train'?"),
    "unknown key": (["run", "--set", "train.epoch=1"], "did you mean 'epochs'?"),
    "unknown method key": (["run", "--set", "method.lambda_geo=1"], "did you mean 'lam_geo'?"),
    "unknown split": (["run", "--split", "dirichlett:1"], "did you mean 'dirichlet'?"),
    "unknown engine": (["run", "--engine", "referense"], "did you mean 'reference'?"),
    "no such device": (["run", "--device", "cuda:99"], "this machine cannot use it"),
    "wrong type": (["run", "--set", "train.lr=fast"], "a number is expected"),
    "wrong list": (["run", "--set", "method.w=[1]"], "3 values are expected"),
    "bool for number": (["run", "--set", "train.epochs=true"], "a whole number is expected"),
    "not a setting": (["run", "--set", "lr"], "section.key=value is expected"),
    "alpha 0": (["run", "--split", "dirichlet:0"], "greater than 0"),
    "alpha negative": (["run", "--split", "dirichlet:-1"], "greater than 0"),
    "alpha nan": (["run", "--split", "dirichlet:nan"], "finite"),
    "too many classes": (["run", "--split", "pathological:11"], "there are only 10 classes"),
    "too few to cover": (
        ["run", "--split", "pathological:2", "--clients", "3"],
        "cannot cover 10 classes",
    ),
    "more clients than images": (["run", "--clients", "5000"], "too few for 5000 clients"),
    "0 rounds": (["run", "--rounds", "0"], "at least 1"),
    "participation above 1": (["run", "--set", "federation.participation=1.5"], "at most 1"),
    "participation 0": (["run", "--set", "federation.participation=0"], "greater than 0"),
    "negative seed": (["run", "--seed", "-1"], "at least 0"),
    "w does not sum": (["run", "--set", "method.w=[1.0, 1.0, 0.0]"], "must sum to 1"),
    "head without head": (["run", "--set", "method.inference=head"], "there is no head"),
    "bad drop": (["run", "--set", 'federation.drop=["1;2"]'], 'is not "round:client,client"'),
    "drop nobody": (["run", "--set", 'federation.drop=["1:99"]'], "there is no client 99"),
    "no config": (["run", "nowhere.toml"], "No such file"),
    "syntax error": (["run", "broken.toml"], "line 2"),
    "not text": (["run", "binary.toml"], "not UTF-8"),
    "section is a value": (["run", "flat.toml"], "a section is expected"),
    "own model missing": (["run", "--set", "model.name=nowhere.nets:make"], "cannot be imported"),
    "own model wrong": (["run", "--set", "model.name=builtins:dict"], "building it"),
    "own model wrong kind": (
        ["run", "--set", "model.name=operator:ne"],
        "must return a torch.nn.Module",
    ),
    "resume nothing": (["resume", "nowhere"], "no such folder"),
    "no colon": (
        ["run", "--defence", "clip,cross_check=true"],
        "a colon is expected after 'clip': clip:cross_check=true",
    ),
    "late attack": (
        ["run", "--rounds", "2", "--attack", "scale:2,since=9"],
        "the run has 2 rounds, so nobody would lie; use at most 2",
    ),
    "resumed comparison": (
        ["compare", "--resume", "x", "--rounds", "8"],
        "only --jobs, --devices, --ray, --quiet and --json can be added",
    ),
    "resumed sweep": (
        ["sweep", "--resume", "x", "--rounds", "8"],
        "only --jobs, --devices, --ray, --tune, --quiet and --json can be added",
    ),
    "resume no run": (["resume", "."], "there is no run here"),
    "show nothing": (["show", "nowhere"], "no such folder"),
    "predict nothing": (["predict", "nowhere", "x.png"], "no such folder"),
    "out is a file": (["run", "--out", "broken.toml"], "not an empty folder"),
    "out below a file": (["run", "--out", "broken.toml/run"], "Not a directory"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_clear_line_and_exit_code_2(
    call: Call, tmp_path: Path, case: str
) -> None:
    (tmp_path / "broken.toml").write_text("[train]\nlr = = 3\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "flat.toml").write_text("train = 3\n")
    arguments, expected = BAD[case]
    code, out, err = call(*arguments)
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert expected in err
    assert not (tmp_path / "runs").exists(), "nothing is written for a run that cannot start"


def test_an_existing_run_folder_is_refused_and_untouched(call: Call, tmp_path: Path) -> None:
    call("run", *SMALL, "--out", "run", "-q")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    code, _, err = call("run", *SMALL, "--out", "run")
    assert code == 2
    assert "already holds a run (2 rounds); resume it with `cafedcl resume run`" in err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    (tmp_path / "run").rename(tmp_path / "first run")
    _, _, err = call("run", *SMALL, "--out", "first run")
    assert "resume it with `cafedcl resume 'first run'`" in err, "it can be pasted into a shell"


def test_an_image_that_cannot_be_read_is_named(call: Call, tmp_path: Path) -> None:
    call("run", *SMALL, "--out", "run", "-q")
    (tmp_path / "bad.png").write_text("no image")
    assert call("predict", "run", "bad.png") == (
        2,
        "",
        "error: bad.png: not an image that can be read\n",
    )
    assert "No such file" in call("predict", "run", "none.png")[2]


def words() -> st.SearchStrategy[str]:
    sections = st.sampled_from(
        ["train", "method", "federation", "split", "model", "run", "engine", "x", ""]
    )
    keys = st.sampled_from(
        ["lr", "epochs", "alpha", "name", "w", "clip", "drop", "seed", "kind", "clients", "y", ""]
    )
    values = st.one_of(
        st.text(max_size=12),
        st.floats().map(str),
        st.integers().map(str),
        st.sampled_from(["[]", "{}", "[1, 'a']", "1979-05-27"]),
    )
    return st.builds("{}.{}={}".format, sections, keys, values)


@given(st.lists(words(), max_size=4), st.text(max_size=15))
def test_random_settings_never_end_in_a_traceback(settings: list[str], split: str) -> None:
    from cafedcl.core.errors import CafedclError
    from cafedcl.task.resolve import gather

    with contextlib.suppress(CafedclError):
        gather(settings=settings, split=split or None)


INTERRUPTED_RUNS = """
import sys
from cafedcl.cli.main import main

words = sys.argv[1:]
for folder in ("first", "second", "third"):
    sys.argv = ["cafedcl", "run", *words, "--out", folder]
    try:
        main()
    except SystemExit as end:
        print("exit status", end.code, flush=True)
"""


def test_an_interrupt_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    """One process for all signals, since PyTorch takes seconds to import."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_RUNS, *SMALL, "--rounds", "5000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for line in process.stdout:
            if line.startswith("round 3/"):
                break
        os.kill(process.pid, number)
        for line in process.stdout:
            if line.startswith("exit status"):
                assert line == "exit status 130\n"
                break
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0
    # On a slow machine other lines say what takes so long.
    said = [line for line in err.splitlines() if line.startswith("interrupted")]
    assert len(said) == 3
    for folder, line in zip(("first", "second", "third"), said, strict=True):
        assert re.fullmatch(
            r"interrupted; \d+ rounds? (is|are) saved\. Resume with: cafedcl resume " + folder, line
        )
        assert list((tmp_path / folder / "checkpoints").iterdir())


def test_the_demo_compares_two_methods_and_names_its_files(call: Call) -> None:
    code, out, _ = call("demo", "--rounds", 1, "--out", "demo")
    assert code == 0
    assert "fedavg" in out
    assert "written: demo/cafedcl" in out
    assert "global" in out


def test_a_split_is_shown_drawn_and_exported_before_training(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(
        "split",
        "pathological:3,ir=4",
        "--clients",
        5,
        "--figure",
        "f.png",
        "--export",
        "s.safetensors",
    )
    assert code == 0
    assert all(
        word in out
        for word in ("classes per client", "3 to 3", "label divergence", "written: f.png")
    )
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("split", "pathological:3,ir=4", "--clients", 5, "--json")
    numbers = json.loads(out)
    assert numbers["clients"] == 5
    from_file = ["run", "--split", "file:s.safetensors", *SMALL]
    assert "the file has 5" in call(*from_file)[2]
    assert call(*from_file, "--clients", 0, "--out", "run", "-q")[0] == 0
    code, out, _ = call("show", "run", "--split")
    stored = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert stored["federation"]["clients"] == 5, "the file decides how many clients there are"
    assert [sum(row) for row in numbers["counts"]] == [
        int(w) for w in re.findall(r"(\d+)\s*$", out, re.MULTILINE)
    ][-5:]


def test_a_natural_split_needs_data_with_clients(call: Call) -> None:
    assert "has no clients of its own" in call("split", "natural")[2]
    assert (
        "one data set at a time"
        in call("split", "--data", "digits", "--data", "digits", "--export", "x")[2]
    )


def test_your_own_images_with_clients_of_their_own(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.default_rng(0)
    for client in ("clinic A", "clinic B", "clinic C"):
        for label, level in (("dark", 60), ("light", 200)):
            (tmp_path / "photos" / client / label).mkdir(parents=True)
            for number in range(8):
                pixels = (level + draws.integers(-40, 40, (12, 10))).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / client / label / f"{number}.png")
    (tmp_path / "photos" / "clinic A" / "dark" / "0.png").write_bytes(b"broken")
    photos = ["run", "--data", "photos", "--data-dir", "cache", *SMALL, "--rounds", "3"]
    assert "the data have 3 natural clients" in call(*photos)[2]
    code, out, err = call(*photos, "--clients", 0)
    assert code == 0, err
    assert "0.png" in err, "the corrupt image is named"
    run = tmp_path / "runs" / "cafedcl-photos-s0"
    stored = tomllib.loads((run / "config.toml").read_text())
    assert (stored["split"]["kind"], stored["federation"]["clients"]) == ("natural", 3)
    assert stored["data"]["name"] == str(tmp_path / "photos"), "a run can be resumed from anywhere"
    code, out, _ = call("predict", run, "photos/clinic B/light/1.png", "--json")
    assert json.loads(out)["class"] in ("dark", "light")
    code, out, err = call("run", "--data", "photos", "--data-dir", "cache", "--strict", *SMALL)
    assert code == 2
    assert "0.png" in err


def test_a_folder_named_like_a_data_set_does_not_shadow_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    code, _, err = call("run", *SMALL, "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"]["name"] == "digits"


def test_rounds_are_also_logged_where_that_is_asked_for(call: Call, tmp_path: Path) -> None:
    code, _, err = call(
        "run", "--method", "fedavg", *SMALL, "--out", "logged", "--quiet", "--log", "tensorboard"
    )
    assert (code, err) == (0, "")
    assert len(list((tmp_path / "logged" / "tensorboard").iterdir())) == 1
    code, _, err = call("run", *SMALL, "--out", "elsewhere", "--log", "tensorbord")
    assert code == 2
    assert err.count("\n") == 1
    assert "tensorboard" in err
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans of comparisons and sweeps, which are not executed."""
    made: list[Any] = []

    def execute(plan: object, *_: object) -> list[object]:
        made.append(plan)
        return []

    monkeypatch.setattr("cafedcl.compare.run.run_comparison", execute)
    monkeypatch.setattr("cafedcl.compare.run.run_sweep", execute)
    monkeypatch.setattr("cafedcl.compare.run.end_sweep", lambda *_: None)
    return made


FULL = """
[run]
seed = 4

[train]
lr = 0.1
momentum = 0.0

[server]
optimizer = "none"
"""


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        (["compare", "--methods", "fedavg,cafedcl:best"], 4),
        (["compare", "--methods", "cafedcl:best", "--first-seed", "0"], 0),
        (["sweep", "--method", "cafedcl:best", "--grid", "model.width=1,2"], 4),
    ],
)
def test_a_file_that_replaces_options_of_a_preset_is_remarked_on_and_its_seed_is_the_first(
    tmp_path: Path, invoke: Call, plans: list[Any], words: list[str], seed: int
) -> None:
    (tmp_path / "full.toml").write_text(FULL)
    _, _, err = invoke(words[0], tmp_path / "full.toml", *words[1:], "--out", tmp_path / "out")
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert "full.toml replaces options of cafedcl:best: train.lr = 0.1 (cafedcl:best: 0." in warning
    assert "train.momentum = 0.0" in warning
    assert 'server.optimizer = "none" (cafedcl:best: "momentum")' in warning
    assert [plan.first_seed for plan in plans] == [seed]


def test_a_file_of_the_preset_itself_is_not_remarked_on(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[method]\nname = "cafedcl:best"\n[train]\nlr = 0.5\n')
    settings = ["--rounds", "1", "--clients", "3", "--model", "mlp", "--quiet"]
    code, _, err = call(
        "run", "own.toml", "--method", "cafedcl:best", *settings, "--out", tmp_path / "a"
    )
    assert (code, err) == (0, "")
    (tmp_path / "own.toml").write_text("[train]\nlr = 0.5\n")
    given = ["--method", "cafedcl:best", "--set", "train.lr=0.3", *settings]
    code, _, err = call("run", "own.toml", *given, "--out", tmp_path / "c")
    assert (code, err) == (0, "")
    code, _, err = call("run", "own.toml", "--method", "fedavg", *settings, "--out", tmp_path / "b")
    assert (code, err) == (0, "")


def test_a_folder_is_no_config_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    code, _, err = call("run", "photos")
    assert code == 2
    assert "photos: a config file is expected, and this is a folder; images are given by " in err


def test_a_folder_of_runs_names_one_of_them(call: Call, tmp_path: Path) -> None:
    for place in ("study/digits/iid/fedavg/s1", "study/digits/iid/fedavg/s0", "runs/first"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.toml").write_text("")
    _, _, err = call("show", "study")
    assert "no run here (no config.toml); did you mean study/digits/iid/fedavg/s0?" in err
    assert "did you mean runs/first?" in call("show", "runs")[2]


def test_a_section_that_is_a_number_is_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "flat.toml").write_text("run = 5\n")
    code, _, err = call("compare", "flat.toml", "--methods", "fedavg", "--out", tmp_path / "out")
    assert code == 2
    assert "run: a section is expected, such as [run]" in err


def test_no_methods_are_not_the_default_method(call: Call, tmp_path: Path) -> None:
    code, _, err = call("compare", "--methods", "", "--out", tmp_path / "out")
    assert code == 2
    assert "--methods: it is empty; name methods" in err


def test_a_model_is_chosen_by_its_flag_in_a_comparison_too(
    tmp_path: Path, invoke: Call, plans: list[Any]
) -> None:
    invoke("compare", "--methods", "fedavg", "--model", "mlp", "--out", tmp_path / "out")
    assert [plan.settings["model.name"] for plan in plans] == ["mlp"]
