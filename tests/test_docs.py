import dataclasses
import json
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest
import torch

from cafedcl.augment import AUGMENTERS
from cafedcl.core.contract import Up
from cafedcl.core.tensors import floats
from cafedcl.methods import find_method, method_names
from cafedcl.methods._readings import PRESETS, CAFedCLOptions
from cafedcl.speed.measure import WORKLOADS
from cafedcl.task.build import build
from cafedcl.task.resolve import resolve

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
CAFEDCL = (HOME / "docs" / "cafedcl.md").read_text(encoding="utf-8")
METHODS = (HOME / "docs" / "methods.md").read_text(encoding="utf-8")
SPEED = (HOME / "docs" / "speed.md").read_text(encoding="utf-8")
EXTENDING = (HOME / "docs" / "extending.md").read_text(encoding="utf-8")


def measured(name: str) -> dict[str, Any]:
    """What a result file of a benchmark says."""
    return json.loads(
        (HOME / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
    )


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readme_example_works(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = python_blocks(README)
    assert len([line for line in block.splitlines() if line]) <= 10
    settings = {"engine.workers": 1, "train.epochs": 1, "train.iterations": 1}
    exec(block.replace("rounds=20", f"rounds=1, settings={settings}"), {})
    out = capsys.readouterr().out
    assert "server.client_std" in out
    assert "torch.Size([10, 64])" in out


def test_the_method_in_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cafedcl

    method, test = python_blocks(EXTENDING)[:2]
    (tmp_path / "pull.py").write_text(method, encoding="utf-8")
    (tmp_path / "test_pull.py").write_text(test, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"method.mu": 0.1, "train.epochs": 1, "model.name": "mlp", "engine.workers": 1}
    run = cafedcl.run("pull:Pull", clients=3, rounds=1, settings=settings)
    runpy.run_path(str(tmp_path / "test_pull.py"))["test_pull"]()
    assert run.records[0]["failed"] == []
    assert run.records[0]["loss"]["pull"] > 0


def test_every_method_and_preset_is_on_the_page_of_the_methods() -> None:
    for name in method_names():
        assert f"`{name}`" in METHODS, name
    for preset in PRESETS:
        assert f"`cafedcl:{preset}`" in METHODS, preset


def test_the_front_page_says_how_many_methods_there_are_to_compare_with() -> None:
    assert f"[{len(method_names()) - 1} methods](docs/methods.md)" in README


def test_every_reading_is_explained() -> None:
    for field in dataclasses.fields(CAFedCLOptions):
        if field.metadata["limits"].choices:
            assert f"`{field.name}`" in CAFEDCL, field.name
            for choice in field.metadata["limits"].choices:
                assert f"`{choice}`" in CAFEDCL, f"{field.name} = {choice}"


def test_the_number_of_advanced_options_on_the_page_is_right() -> None:
    advanced = [field.metadata["advanced"] for field in dataclasses.fields(CAFedCLOptions)]
    assert f"{sum(advanced)} of the {len(advanced)} options are marked as advanced" in CAFEDCL
    assert f"# all {len(advanced)} options\n" in CAFEDCL


def test_every_method_names_its_paper() -> None:
    for name in method_names():
        method, _ = find_method(name)
        assert method.__doc__
        assert method.paper
        assert 2016 < method.year < 2030 or (name in ("local", "central") and not method.year)


@pytest.mark.parametrize("page", ["README.md", "docs/cafedcl.md"])
def test_the_numbers_on_the_page_are_those_of_the_result_file(page: str) -> None:
    runs = json.loads((HOME / "experiments" / "results" / "digits.json").read_text())["runs"]
    text = (HOME / page).read_text(encoding="utf-8")
    for method in ("fedavg", "cafedcl", "cafedcl:no-confagg-counts"):
        for key in ("accuracy", "client_std"):
            values = [100 * run["server"][key] for run in runs if run["method"] == method]
            assert len(values) == 20
            assert f"{mean(values):.2f} ± {stdev(values):.2f}" in text, (method, key)


def test_the_speeds_on_the_page_are_those_of_the_result_files() -> None:
    found = []
    for name in ("h200-resnet-fused", "h200-cnn"):
        result = measured(name)
        found += [
            (WORKLOADS[m["task"]].title, m["method"], m["step_ms"], m["overhead"])
            for m in result["measurements"]
        ]
    assert len(found) == 8
    for title, method, step, ratio in found:
        digits = 3 if step < 0.1 else 2
        assert f"| {title} | `{method}` | {step:.{digits}f} | {ratio:.2f} |" in SPEED, (
            title,
            method,
        )


MOST_MS = {"resnet-250": 3.0, "resnet-50": 1.0, "cnn-50": 0.11, "cnn-10": 0.055}
"""What a client-step may take on an H200."""


@pytest.mark.parametrize("name", ["h200-resnet-fused", "h200-cnn"])
def test_a_client_step_and_what_a_round_adds_to_training_keep_within_their_bounds(
    name: str,
) -> None:
    result = measured(name)
    for m in result["measurements"]:
        assert m["step_ms"] <= MOST_MS[m["task"]], m
        assert m["overhead"] <= 1.25, m


@pytest.mark.parametrize(
    "path", sorted((HOME / "benchmarks" / "results").glob("h200-*.json")), ids=lambda p: p.stem
)
def test_the_command_of_every_speed_stands_on_the_page(path: Path) -> None:
    command = measured(path.stem)["environment"]["command"]
    words, out = " ".join(command[:-2]), f"benchmarks/results/{path.name}"
    assert command[-2:] == ["--out", out]
    lines = SPEED.splitlines()
    assert any(line.startswith(f"{words} ") and f"# {out}" in line for line in lines)


def test_the_speeds_of_all_methods_on_the_page_are_those_of_the_result_files() -> None:
    found = {}
    # The newest file that has a method counts.
    for name in ("h200-methods", "h200-methods-again", "h200-server-3"):
        result = measured(name)
        found |= {m["method"]: m for m in result["measurements"]}
    assert found.keys() <= set(method_names())
    for m in found.values():
        assert f"| `{m['method']}` | {m['step_ms']:.3f} | {m['overhead']:.2f} |" in SPEED, m[
            "method"
        ]


def test_the_ranges_over_three_runs_are_those_of_the_result_files() -> None:
    text = " ".join(SPEED.split())
    runs = [measured(f"h200-server-{number}")["measurements"] for number in (1, 2, 3)]
    ratios = {
        method: sorted(m["overhead"] for run in runs for m in run if m["method"] == method)
        for method in ("cafedcl", "fedtgp", "mp-fedcl", "scaffold")
    }
    least, most = ([f"{its[end]:.2f}" for its in ratios.values()] for end in (0, -1))
    for title, low, high in zip(
        ("CAFedCL", "FedTGP", "MP-FedCL", "SCAFFOLD"), least, most, strict=True
    ):
        assert re.search(rf"{low} to {high} (times its training )?with {title}", text), title


def test_the_speed_of_resnet_before_and_with_one_kernel_is_told_as_it_was() -> None:
    text = " ".join(SPEED.split())
    small, large = measured("h200-resnet-again")["measurements"]
    assert (
        f"FedAvg took {large['step_ms']:.2f} ms with batch 250, and {small['step_ms']:.2f} ms with "
        "batch 50." in text
    )
    small, _, large, _ = measured("h200-resnet-fused")["measurements"]
    assert (large["task"], large["method"]) == ("resnet-250", "fedavg")
    assert f"at {100 * large['ceiling']:.0f} % of the rate" in text
    assert f"and at {100 * small['ceiling']:.0f} % with batch 50" in text


def test_the_steps_with_more_streams_are_those_of_the_result_files() -> None:
    runs = [measured(f"h200-resnet-streams-{number}")["measurements"] for number in (0, 8, 12)]
    small, large = ([f"{run[at]['step_ms']:.2f}" for run in runs] for at in (0, 1))
    text = " ".join(SPEED.split())
    assert f"a step takes {small[0]}, {small[1]} and {small[2]} ms with batch 50" in text
    assert f"and {large[0]}, {large[1]} and {large[2]} ms with batch 250." in text
    assert {m["task"] for run in runs for m in run[:1]} == {"resnet-50"}


def test_the_kernels_of_a_step_are_those_of_the_result_file() -> None:
    result = measured("kernels")
    assert f"{' '.join(result['command'])} # benchmarks/results/kernels.json" in SPEED
    its = result["tasks"]["resnet-250"]
    for kind, took in its["kernels_ms"].items():
        assert f"| {kind} | {took:.2f} |" in SPEED, kind
    alone = sum(its["kernels_ms"].values())
    text = " ".join(SPEED.split())
    assert f"They take {alone:.2f} ms per step in total." in text
    assert f"With all clients it is {its['together_ms']:.2f} ms" in text


def test_all_systems_trained_the_same_model_on_the_gpu() -> None:
    rows = measured("peers-gpu")["jobs"]["d"].values()
    assert len({row["accuracy"] for row in rows}) == 1
    losses = sorted(row["loss"] for row in rows)
    text = " ".join(SPEED.split())
    assert f"cross-entropies between {losses[0]:.3f} and {losses[-1]:.3f}" in text


def test_the_seconds_of_a_study_on_the_page_are_those_of_the_result_file() -> None:
    result = measured("study")
    ((jobs, study),) = result["studies"].items()
    text = " ".join(SPEED.split())
    assert jobs == "12"
    assert "Twelve of them ran at a time" in text
    seconds = study["runs"] * study["seconds_per_run"]
    assert f"{study['runs']} runs of four methods took {seconds:.0f} s from" in text
    assert f"that is {study['seconds_per_run']:.2f} s per run" in text
    assert f"single run of FedAvg took {result['single_s']:.1f} s" in text
    assert f"{result['single_rounds_s']:.1f} s were its rounds" in text
    assert f"puts one number on the GPU takes {result['open_s']:.1f} s." in text
    assert " ".join(result["command"]) in SPEED


def test_the_steps_of_large_encoders_on_the_page_are_those_of_the_result_file() -> None:
    result = measured("encoders")
    titles = {"vit-s": "ViT-S", "resnet-50": "ResNet-50"}
    assert (result["compile"], result["pixels"], result["batch"]) == ("off", 224, 32)
    assert [*result["rows"][0]["step_ms"]] == ["ours", "fp32", "amp", "amp+compile"]
    for row in result["rows"]:
        ours, *plain = row["step_ms"].values()
        cells = [f"**{ours:.1f}**", *(f"{ms:.1f}" for ms in plain)]
        how = "frozen" if row["frozen"] else "fine-tuned"
        assert f"| {titles[row['encoder']]}, {how} | {' | '.join(cells)} |" in SPEED
    assert " ".join(result["command"]) in SPEED


def test_the_gain_over_the_eager_engine_on_the_page_is_that_of_the_result_file() -> None:
    text = " ".join(SPEED.split())
    result = measured("h200-eager")
    fast, slow, ours, theirs = result["measurements"]
    assert [m["method"] for m in result["measurements"]] == [
        "fedavg",
        "fedavg",
        "cafedcl",
        "cafedcl",
    ]
    assert [m["engine"] for m in result["measurements"]] == ["graphs bf16", "eager fp32"] * 2
    assert f"needs {slow['step_ms']:.2f} ms per client-step" in text
    times = slow["round_s"] / fast["round_s"]
    assert (
        f"the `cuda` engine {fast['step_ms']:.3f} ms. A whole round takes {times:.0f} times as long"
        in text
    )
    times = theirs["round_s"] / ours["round_s"]
    assert (
        f"it is {theirs['step_ms']:.2f} ms against {ours['step_ms']:.3f} ms, "
        f"and a round takes {times:.0f} times as long" in text
    )


@pytest.mark.parametrize(
    ("name", "has", "title"),
    [("peers", "digits", ""), ("peers-gpu", "d", ""), ("peers-x86", "c", "x86, ")],
)
def test_the_ratios_to_peers_on_the_page_are_those_of_the_result_files(
    name: str, has: str, title: str
) -> None:
    """Whichever jobs a file has: a round's ratios, and those of the whole job's wall time behind
    them.
    """
    result = measured(name)
    assert has in result["jobs"]
    for job, rows in result["jobs"].items():
        rows_of_job = (f"| {title}{job}:", f"| {title}{job},")
        lines = [line for line in SPEED.splitlines() if line.startswith(rows_of_job)]
        for line, key in zip(lines, ("ratio", "wall_ratio"), strict=True):
            assert re.findall(r"\d+\.\d\d", line) == [f"{row[key]:.2f}" for row in rows.values()], (
                job
            )
        assert result["measured"][job]["command"] in SPEED


def test_on_x86_another_simulator_is_as_fast_in_one_job() -> None:
    result = measured("peers-x86")
    assert result["fastest_peer"]["c"]["fastest"] == "pfl"
    ours, pfl = (result["jobs"]["c"][system] for system in ("ours", "pfl"))
    assert abs(pfl["ratio"] - 1) < 0.005, "the page says that its rounds are as fast"
    text = " ".join(SPEED.split())
    words = [[f"{seconds:.1f}" for seconds in it["rounds"]] for it in (pfl, ours)]
    said = "Its rounds took {}, {} and {} s in three repeats, and ours {}, {} and {} s."
    assert said.format(*words[0], *words[1]) in text


def test_the_growth_on_the_page_is_that_of_the_result_file() -> None:
    result = measured("growth-cpu")
    for key, cases in (
        ("round_s", ("time-20", "time-500")),
        ("peak_mib", ("memory-100", "memory-10000")),
    ):
        few, many = (median(run[key] for run in result["runs"][case]) for case in cases)
        form = ".1f" if key == "round_s" else ".0f"
        assert f"| {few:{form}} | {many:{form}} | {many / few:.2f} |" in SPEED, key


def test_the_growth_to_a_million_clients_on_the_page_is_that_of_the_result_file() -> None:
    result = measured("growth-many-cpu")
    cases = [runs[0] for runs in result["runs"].values()]
    assert [case["task"]["clients"] for case in cases] == [10_000, 100_000, 1_000_000]
    for key, form in (
        ("setup_s", ".1f"),
        ("round_s", ".1f"),
        ("peak_mib", ".0f"),
        ("folder_kib_per_round", ".0f"),
    ):
        row = " | ".join(f"{case[key]:{form}}" for case in cases)
        assert f"| {row} |" in SPEED, key
    assert f"{result['growth']['bytes_per_further_client']:.0f} bytes of memory" in SPEED
    assert " ".join(result["environment"]["command"]) in SPEED


def test_the_excess_drifts_on_the_page_are_those_of_the_result_file() -> None:
    result = json.loads(
        (HOME / "experiments" / "results" / "bias_loop.json").read_text(encoding="utf-8")
    )
    text, runs = (HOME / "docs" / "loop.md").read_text(encoding="utf-8"), result["runs"]
    for row in result["summary"]:
        mine = [
            r for r in runs if (r["weights"], r["feedback"]) == (row["weights"], row["feedback"])
        ]
        drift = {
            (r["kind"], r["seed"]): [mean(round["drift"]) for round in r["rounds"]] for r in mine
        }
        for at, key in ((6, "at_once"), (7, "next_round"), (11, "five_rounds_later")):
            excess = mean(
                drift[row["kind"], seed][at] - drift["none", seed][at] for seed in range(3)
            )
            assert row[key] == pytest.approx(excess, abs=1e-5)
        numbers = " | ".join(
            f"{row[key]:.4f}" for key in ("at_once", "next_round", "five_rounds_later")
        )
        line = next(
            x
            for x in text.splitlines()
            if x.startswith(f"| `{row['kind']}` | `{row['weights']}` |")
        )
        assert (
            line.endswith(f"{numbers} |") if not row["feedback"] else f"` | {numbers} |" in line
        ), line


def test_the_numbers_on_tail_augmentation_are_those_of_the_result_file() -> None:
    result = json.loads(
        (HOME / "experiments" / "results" / "augmentation.json").read_text(encoding="utf-8")
    )
    text, runs = (HOME / "docs" / "augmentation.md").read_text(encoding="utf-8"), result["runs"]
    for kind in ("none", "resample", "mixup", "cutmix", "gaussian", "gan"):
        mine = [run for run in runs if (run["method"], run["augment"]) == ("cafedcl", kind)]
        assert sorted(run["seed"] for run in mine) == [0, 1, 2, 3, 4]
        cells = []
        for key in ("accuracy", "few", "client_std", "own_client_mean"):
            values = [100 * run[key] for run in mine]
            cells.append(f"{mean(values):.2f} ± {stdev(values):.2f}")
        assert (
            f"| `{kind}` | {' | '.join(cells)} | {mean(run['seconds'] for run in mine):.0f} |"
            in text
        ), kind
    told = [run["recognised"] for run in runs if run["recognised"]]
    assert f"takes {100 * mean(each['mean'] for each in told):.0f} % of them" in text
    assert f"{sum(each['pairs'] for each in told)} pairs" in text
    for row in result["summary"]:
        for key in ("accuracy_p", "few_p", "client_std_p"):
            if row.get(key, 1) < 0.05:
                assert f"p = {row[key]:.3f}" in text, (row["augment"], key)


def test_the_augmentation_in_the_guide_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cafedcl

    (tmp_path / "guide_tail.py").write_text(python_blocks(EXTENDING)[2], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"train.epochs": 1, "model.name": "mlp", "engine.workers": 1}
    run = cafedcl.run(
        "fedavg", augment="guide_tail:Brighter", clients=3, rounds=1, settings=settings
    )
    assert run.records[0]["failed"] == []


def test_every_augmentation_is_on_its_page() -> None:
    text = (HOME / "docs" / "augmentation.md").read_text(encoding="utf-8")
    for name in AUGMENTERS:
        assert f"| `{name}` |" in text, name


def test_links_lead_somewhere() -> None:
    for page in [*HOME.glob("*.md"), *(HOME / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("https://"):
                continue
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_wheel_holds_the_whole_package_and_works(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        HOME / "cafedcl", source / "cafedcl", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOME / name, source / name)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(source),
    ]
    done = subprocess.run(build, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("cafedcl/")}
        archive.extractall(tmp_path / "installed")
    package = HOME / "cafedcl"
    files = [
        *package.rglob("*.py"),
        *(package / "report" / "static").iterdir(),
        *(package / "compare" / "studies").glob("*.toml"),
    ]
    assert packed == {str(file.relative_to(HOME)) for file in files} | {"cafedcl/py.typed"}
    code = (
        "import cafedcl, sys; assert cafedcl.__file__.startswith(sys.path[0]), cafedcl.__file__\n"
        "from cafedcl.compare.study import read_scales, read_study, study_names\n"
        "assert read_scales() and [read_study(name) for name in study_names()]\n"
        "from cafedcl.methods import find_method, method_names\n"
        "print([find_method(name)[0].name for name in method_names()])"
    )
    check = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n" + code,
    ]
    done = subprocess.run(
        check, capture_output=True, text=True, timeout=600, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cafedcl" in done.stdout


SENT = {
    "FedAvg, FedProx, FedLC, FedRCL": ["fedavg", "fedprox", "fedlc", "fedrcl"],
    "SCAFFOLD": ["scaffold"],
    "MOON": ["moon"],
    "FedProc": ["fedproc"],
    "MP-FedCL, k = 2, K = 20": ["mp-fedcl"],
    "FedNH": ["fednh"],
    "FedProto, FedTGP": ["fedproto", "fedtgp"],
    "CAFedCL": ["cafedcl"],
    "FedVLS, FedYoYo": ["fedvls", "fedyoyo"],
    "Fed-RoD": ["fedrod"],
    "FedLoGe": ["fedloge"],
    "FedETF": ["fedetf"],
    "FedIIC": ["fediic"],
    "CReFF": ["creff"],
    "CCVR": ["ccvr"],
    "SphereFed": ["spherefed"],
    "q-FFL": ["qffl"],
}


@pytest.mark.parametrize("row", SENT)
def test_the_table_of_what_is_sent_is_true(row: str) -> None:
    """With replies of the form that the server insists on, from 20 clients that hold all ten
    classes.
    """
    up, down = re.search(rf"\| {re.escape(row)} \| ([\d,]+) \| ([\d,]+) \|", METHODS).groups()
    for name in SENT[row]:
        options = {"mp-fedcl": {"k": 2}, "fedloge": {"steps": 1}}.get(name, {})
        config = resolve({"method": {"name": name, **options}, "model": {"name": "resnet18"}})
        method, network, state = build(config, (3, 32, 32), 10)
        personal = re.compile(method.personal)
        shared = {
            f"model/{n}": w for n, w in network.state_dict().items() if not personal.fullmatch(n)
        }
        classes = torch.arange(10).repeat_interleave(options.get("k", 1))
        fields = method.fields(network)
        reply = {
            n: torch.zeros((*([len(classes)] if f.per_class else []), *f.shape))
            for n, f in fields.items()
        }
        assert floats({**shared, **reply}) == int(up.replace(",", "")), name
        if name == "mp-fedcl":
            state |= method.update(
                state, [Up(k, 1, {"classes": classes, **reply}) for k in range(20)]
            )
        assert floats(method.broadcast({**shared, **state})) == int(down.replace(",", "")), name


def test_the_table_of_anchors_is_that_of_the_result_file() -> None:
    result = json.loads(
        (HOME / "experiments" / "results" / "anchors.json").read_text(encoding="utf-8")
    )
    text = (HOME / "docs" / "reproduction.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:averaged|fixed).*\| (\d\.\d\d) \| (\d\d\.\d) \|$", text, re.MULTILINE
    )
    last = [rounds[-1] for rounds in result["rounds"].values()]
    assert rows == [(f"{abs(row['cosine']):.2f}", f"{100 * row['accuracy']:.1f}") for row in last]


def attack_results(data: str) -> dict[str, Any]:
    file = HOME / "experiments" / "results" / f"attacks-{data}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def attacks_on(method: str) -> set[str]:
    runs = attack_results("digits")["runs"]
    return {run["attack"] for run in runs if run["method"] == method} - {"none"}


def points_lost(
    data: str, method: str, attack: str, first: int = 0, defence: str = "peers"
) -> tuple[float, float]:
    """Points of accuracy lost under a defence, paired by seed, and their error.

    ``first`` is the first seed that counts.
    """
    runs = {
        (run["method"], run["attack"], run["defence"], run["seed"]): 100 * run["accuracy"]
        for run in attack_results(data)["runs"]
    }
    seeds = [key[3] for key in runs if key[:3] == (method, attack, defence) and key[3] >= first]
    lost = [
        runs[method, "none", "none", seed] - runs[method, attack, defence, seed] for seed in seeds
    ]
    return mean(lost), stdev(lost) / len(lost) ** 0.5


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_the_tables_of_attacks_are_those_of_the_result_files(data: str) -> None:
    text = (HOME / "docs" / "attacks.md").read_text(encoding="utf-8")
    found: dict[tuple[str, ...], list[float]] = {}
    for run in attack_results(data)["runs"]:
        key = (run["method"], run["attack"], run["defence"])
        found.setdefault(key, []).append(100 * run["accuracy"])
    for (method, attack, defence), values in found.items():
        error = stdev(values) / len(values) ** 0.5
        assert f"{mean(values):.1f} ± {error:.1f}" in text, (method, attack, defence)


def test_the_recommended_defence_keeps_its_promise() -> None:
    text = " ".join((HOME / "docs" / "attacks.md").read_text(encoding="utf-8").split())
    words = {
        "cafedcl:best": (
            "it loses at most {} points of accuracy",
            "nobody lies it costs {} points",
        ),
        "cafedcl": ("CAFedCL as in the paper loses at most {} points", "where it costs {} points"),
    }
    for method, (losing, costing) in words.items():
        worst = max(points_lost("digits", method, attack) for attack in attacks_on(method))
        cost = points_lost("digits", method, "none")
        assert worst[0] <= 5
        assert cost[0] <= 1
        assert losing.format(f"{worst[0]:.1f} ± {worst[1]:.1f}") in text
        assert costing.format(f"{cost[0]:.1f} ± {cost[1]:.1f}") in text
    attacks = attacks_on("cafedcl")
    again = max(points_lost("digits", "cafedcl", attack, 4) for attack in attacks)
    cost = points_lost("digits", "cafedcl", "none", 4)
    assert f"it loses at most {again[0]:.1f} ± {again[1]:.1f} points, and costs nothing" in text
    assert f"(−{-cost[0]:.1f} ± {cost[1]:.1f})" in text
    late = points_lost("digits", "cafedcl", "sign-flip:4,claim=most,since=11")
    assert f"costs {late[0]:.1f} ± {late[1]:.1f} points (CAFedCL)" in text
    flipped = [points_lost(*which, "label-flip:4")[0] for which in FLIPPED]
    assert [f"{points:.1f}" for points in flipped] == ["1.8", "3.0", "5.9", "11.0"]
    lies = [points_lost("digits", "cafedcl:best", "sums:4", 0, kind) for kind in ("none", "peers")]
    open_to, defended = (f"{points:.1f} ± {error:.1f}" for points, error in lies)
    assert f"who send the opposite of theirs cost {open_to} points" in text
    assert f"With `peers` or `clip` they cost {defended}." in text
    page = " ".join((HOME / "docs" / "cafedcl-best.md").read_text(encoding="utf-8").split())
    without, behind = (f"{points:.1f}" for points, _ in lies)
    assert f"send the opposite of theirs cost {without} points on the digits" in page
    assert f"with `--defence peers`, {behind} (" in page
    assert lies[1] == points_lost("digits", "cafedcl:best", "sums:4", 0, "clip")
    fewer = [
        points_lost("digits", method, "scale:4,claim=most")
        for method in ("cafedcl:best", "cafedcl", "fedavg")
    ]
    said = [f"{points:.1f} ± {error:.1f}" for points, error in fewer]
    assert f"{said[0]} points for `cafedcl:best`, {said[1]} for CAFedCL and {said[2]}" in text


@pytest.mark.parametrize(
    ("data", "rounds", "share"), [("digits", 20, "0.7"), ("cifar10", 40, "3.3")]
)
def test_peers_finds_liars_and_leaves_few_others_out(data: str, rounds: int, share: str) -> None:
    found = ("sign-flip:4,claim=most", "scale:4,claim=most", "noise:4,claim=most")
    honest: dict[tuple[str, str], list[float]] = {}
    for run in attack_results(data)["runs"]:
        if run["defence"] != "peers":
            continue
        if run["attack"] in found:
            assert run["liars_left_out"] == 4 * rounds
        others = 20 if run["attack"] == "none" else 16
        left_out = 100 * run["honest_left_out"] / (others * rounds)
        honest.setdefault((run["method"], run["attack"]), []).append(left_out)
    assert f"{max(mean(values) for values in honest.values()):.1f}" == share


FLIPPED = (
    ("digits", "cafedcl:best"),
    ("digits", "cafedcl"),
    ("cifar10", "cafedcl"),
    ("digits", "fedavg"),
)


@pytest.mark.parametrize("name", ["overview", "table1", "skin", "long_tail", "ablation"])
def test_the_figures_of_the_reproduction_are_drawn_from_the_files_that_are_there(name: str) -> None:
    drawing = runpy.run_path(str(HOME / "docs" / "make_reproduction_images.py"))
    picture = (HOME / "docs" / "images" / f"reproduction-{name}.svg").read_text(encoding="utf-8")
    assert drawing["sources"](name)
    for source in drawing["sources"](name):
        assert drawing["digest"](source) in picture, "run python docs/make_reproduction_images.py"
