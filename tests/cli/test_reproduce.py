import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cafedcl.cli.main import app
from cafedcl.compare.study import read_study, study_names
from cafedcl.config.format import FORMAT
from cafedcl.config.split_options import parse_split
from cafedcl.core.errors import CafedclError
from cafedcl.report.paper import paper_position
from cafedcl.report.run_summary import flat
from cafedcl.report.setting import Setting as Shown
from cafedcl.task.resolve import resolve


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.slow
@pytest.mark.usefixtures("shared_processes")
def test_table_1_is_run_gone_on_with_and_set_beside_the_paper(tmp_path: Path) -> None:
    """At the smoke scale. Three methods stand for all."""
    methods = ["fedavg", "fedproto", "cafedcl+gan"]
    assert set(methods) <= set(read_study("table1").methods)
    out = str(tmp_path / "out")
    part = ["--scale", "smoke", "--out", out, "--jobs", "1", "--devices", "cpu"]
    first = run("table1", *part, "--only", "cifar10-practical", "--methods", "fedavg")
    assert first.exit_code == 0, first.output
    assert "written" in first.output
    metrics = next(Path(out).rglob("metrics.jsonl"))
    before = metrics.stat().st_mtime_ns
    second = run("table1", *part, "--methods", ",".join(methods), "--quiet")
    assert second.exit_code == 0, second.output
    assert metrics.stat().st_mtime_ns == before, "what is there is kept"
    text = Path(out, "table.md").read_text(encoding="utf-8")
    assert "cafedcl+gan" in text
    assert "The clients' own models" in text
    results = json.loads(Path(out, "results.json").read_text(encoding="utf-8"))
    assert [
        (it["setting"], it["method"], it["split"], it["seed"], it["rounds"])
        for it in results["runs"]
    ] == [
        (f"cifar10-{kind}", method, split, 0, 2)
        for kind, split in (
            ("practical", "dirichlet:0.1"),
            ("pathological", "pathological:3,ir=10"),
        )
        for method in sorted(methods, key=read_study("table1").methods.index)
    ]
    assert results["unfinished"] == {}
    command = " ".join(results["environment"]["command"])
    assert command.startswith("cafedcl reproduce table1 --scale smoke --seeds 1")
    assert results["environment"]["device"] == "cpu"
    one, two = (
        next(it for it in results["runs"] if it["method"] == name)
        for name in ("fedavg", "cafedcl+gan")
    )
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert one["own"] == {
        name: value and round(value, 6) for name, value in lines[-1]["own"].items()
    }
    assert one["best"]["server"] == round(max(line["server"]["accuracy"] for line in lines), 6)
    assert one["curves"] == {
        part: [[n, round(line[part][score], 6)] for n, line in enumerate(lines, 1)]
        for part, score in (("server", "accuracy"), ("own", "client_mean"))
    }
    assert one["seconds"] == pytest.approx(
        sum(sum(line["seconds"].values()) for line in lines), abs=1e-3
    )
    assert one["options"] == {"split.kind": "dirichlet", "model.name": "mlp", "train.epochs": 1}
    assert two["options"]["augment.steps"] == 2
    assert max(len(json.dumps(it)) for it in results["runs"]) < 1600
    metrics.write_text(json.dumps(lines[0]) + "\n", encoding="utf-8")
    assert run("table1", "--scale", "smoke", "--out", out, "--gather", "--quiet").exit_code == 0
    again = json.loads(Path(out, "results.json").read_text(encoding="utf-8"))
    assert again["runs"] == [it for it in results["runs"] if it != one]
    assert again["unfinished"] == {"cifar10-practical/fedavg/s0": "1 of 2 rounds are done"}
    other = run("table1", *part, "--set", "train.lr=0.2")
    assert other.exit_code != 0
    assert "holds another plan" in str(other.exception)


def record(method: str, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    scores = dict.fromkeys(("accuracy", "client_mean", "client_std", "client_worst"), accuracy)
    plain = {
        "setting": "cifar10-practical", "data": "cifar10", "split": "dirichlet:0.1",
        "method": method, "changed": {}, "seed": seed, "rounds": 100, "server": scores,
        "own": scores, "clients": 20, "options": {"model.width": 0.5},
    }  # fmt: skip
    return plain | changes


def results_file(path: Path, runs: list[dict[str, Any]], **changes: Any) -> str:
    place = {"command": ["x"], "set": ["train.crop=4"], "device_name": "one"}
    content = {"study": "table1", "scale": {"name": "short"}, "environment": place, "runs": runs}
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return str(path)


def test_runs_from_elsewhere_are_gathered_in_the_studys_order_and_the_last_one_counts(
    tmp_path: Path,
) -> None:
    first = [record("cafedcl:literal", 0, 0.9), record("cafedcl", 1, 0.7), record("fedavg", 0, 0.1)]
    later = [
        record("fedavg", 0, 0.3),
        record("cafedcl", 0, 0.5),
        record("fedavg", 0, 0.2, changed={"method.x": 1}),
    ]
    sources = [
        results_file(tmp_path / "a.json", first),
        results_file(
            tmp_path / "b.json",
            later[:2],
            environment={"command": ["x"], "device_name": "two", "set": []},
        ),
        results_file(tmp_path / "c.json", later[2:]),
    ]
    out = tmp_path / "out"
    done = run(
        "table1",
        "--gather",
        "--out",
        str(out),
        *(word for path in sources for word in ("--from", path)),
    )
    assert done.exit_code == 0, done.output
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [
        (it["method"], it["changed"], it["seed"], it["server"]["accuracy"])
        for it in content["runs"]
    ] == [
        ("fedavg", {}, 0, 0.3),
        ("fedavg", {"method.x": 1}, 0, 0.2),
        ("cafedcl", {}, 0, 0.5),
        ("cafedcl", {}, 1, 0.7),
        ("cafedcl:literal", {}, 0, 0.9),
    ]
    assert content["environment"]["device_name"] == "one"
    assert content["environment"]["command"][-2:] == ["--set", "train.crop=4"]
    assert [it.get("environment") for it in content["runs"]] == [
        *({"device_name": "two", "set": []} if at in (0, 2) else None for at in range(5))
    ]
    assert "60.00 ± 14.14" in (out / "table.md").read_text(encoding="utf-8")
    whole = (out / "results.json").read_bytes()
    run(
        "table1",
        "--gather",
        "--quiet",
        "--out",
        str(tmp_path / "copy"),
        "--from",
        str(out / "results.json"),
    )
    assert (tmp_path / "copy" / "results.json").read_bytes() == whole, "nothing is lost on the way"


def test_a_results_file_says_that_test_labels_are_skewed_and_replies_were_lost(
    tmp_path: Path,
) -> None:
    known = {"imbalance": 58.0, "failed_visits": 3, "skipped_rounds": 0}
    runs = [{**record("cafedcl", 0, 0.5), **known}, record("fedavg", 0, 0.4)]
    out = tmp_path / "out"
    words = ["--gather", "--quiet", "--out", str(out)]
    run("table1", *words, "--from", results_file(tmp_path / "a.json", runs))
    text = " ".join((out / "table.md").read_text(encoding="utf-8").split())
    assert "the largest class has 58 times as many test images" in text
    assert "cafedcl: 3 replies failed or were rejected" in text


def test_runs_that_two_studies_share_are_taken_from_either(tmp_path: Path) -> None:
    runs = [
        record("cafedcl", 0, 0.5),
        record("fedavg", 0, 0.4),
        record("cafedcl", 0, 0.3, split="dirichlet:0.3"),
        record("cafedcl", 0, 0.2, setting="alpha-1"),
        record("cafedcl", 0, 0.1, changed={"method.tau": 0.2}),
        record("cafedcl", 1, 0.1, options={"train.lr": 0.2}),
        record("cafedcl", 2, 0.6, options={"train.crop": 4}),
    ]
    out = tmp_path / "out"
    done = run(
        "ablation", "--gather", "--out", str(out), "--from", results_file(tmp_path / "a.json", runs)
    )
    assert done.exit_code == 0, done.output
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [(it["method"], it["server"]["accuracy"]) for it in content["runs"]] == [
        ("cafedcl", 0.5),
        ("cafedcl", 0.6),
    ]


@pytest.mark.usefixtures("shared_processes")
def test_what_was_run_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    part = [
        "--scale",
        "smoke",
        "--only",
        "cifar10-practical",
        "--methods",
        "local,fedavg",
        "--jobs",
        "1",
        "--quiet",
    ]
    assert run("table1", *part, "--seeds", "1", "--out", str(tmp_path / "one")).exit_code == 0
    earlier = tmp_path / "one" / "results.json"
    assert (
        run(
            "table1", *part, "--seeds", "2", "--out", str(tmp_path / "two"), "--from", str(earlier)
        ).exit_code
        == 0
    )
    assert {path.name for path in (tmp_path / "two" / "cifar10-practical").glob("*/*/*/s*")} == {
        "s1"
    }
    content = json.loads((tmp_path / "two" / "results.json").read_text(encoding="utf-8"))
    assert [(it["method"], it["seed"]) for it in content["runs"]] == [
        *[("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1)]
    ]
    assert json.loads(earlier.read_text(encoding="utf-8"))["runs"] == [
        it for it in content["runs"] if not it["seed"]
    ]
    table = (tmp_path / "two" / "table.md").read_text(encoding="utf-8")
    assert table.count("\n| fedavg | ") >= 2, "in one row for both seeds, per part"
    assert "| fedavg (" not in table
    some = [
        "--scale",
        "smoke",
        "--gather",
        "--methods",
        "fedavg",
        "--quiet",
        "--from",
        str(earlier),
    ]
    assert run("table1", *some, "--out", str(tmp_path / "three")).exit_code == 0
    content = json.loads((tmp_path / "three" / "results.json").read_text(encoding="utf-8"))
    assert [it["method"] for it in content["runs"]] == ["fedavg"]
    assert "--methods fedavg" in " ".join(content["environment"]["command"])


def test_runs_of_another_preset_of_the_same_name_are_not_taken_from_elsewhere(
    tmp_path: Path,
) -> None:
    """`cafedcl:best` has no class prior since format 5; results files before 4 had no number."""
    study = tmp_path / "mine.toml"
    setting = '[[settings]]\nname = "mine"\ndata = "digits"\nsplit = "iid"\n'
    study.write_text(f'title = "Mine"\nmethods = ["cafedcl:best"]\n{setting}', encoding="utf-8")
    made = record(
        "cafedcl:best",
        0,
        0.5,
        setting="mine",
        data="digits",
        split="iid",
        rounds=3,
        options={"train.epochs": 1},
    )
    own = {"study": "mine", "scale": {"name": "smoke"}, "environment": {"set": []}}
    words = [str(study), "--scale", "smoke", "--seeds", "1", "--quiet"]
    for number in ({}, {"format": 4}):
        old = results_file(tmp_path / "old.json", [made], **own, **number)
        answer = run(*words, "--out", str(tmp_path / "one"), "--from", old)
        assert isinstance(answer.exception, CafedclError)
        said = str(answer.exception)
        assert "method.calibrate = 0.5, which is 0.0 today" in said
        assert "mine/cafedcl:best/s0" in said
    new = results_file(tmp_path / "new.json", [made], **own, format=FORMAT)
    out = tmp_path / "two"
    assert run(*words, "--out", str(out), "--from", new).exit_code == 0
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert content["format"] == FORMAT
    assert [one["server"]["accuracy"] for one in content["runs"]] == [0.5]


def test_runs_of_a_results_file_and_of_run_folders_stand_in_one_table(tmp_path: Path) -> None:
    """A line of a results file has no options of the data; they are those of its scale."""
    fewer = ("--set", "data.images=200", "--set", "federation.rounds=1")
    some = ("--scale", "smoke", "--seeds", "1", "--only", "cifar10-practical", "--quiet", *fewer)
    first = tmp_path / "first"
    assert run("table1", *some, "--methods", "fedavg", "--out", str(first)).exit_code == 0
    content = json.loads((first / "results.json").read_text(encoding="utf-8"))
    assert "data.images" not in content["runs"][0]["options"]
    content["environment"]["set"].remove("data.images=200")
    content["scale"]["options"]["data.images"] = 200
    by_scale = tmp_path / "by-scale.json"
    by_scale.write_text(json.dumps(content), encoding="utf-8")
    for number, source in enumerate((first / "results.json", by_scale)):
        out = tmp_path / f"both-{number}"
        words = ["--methods", "fedavg,local", "--out", str(out), "--from", str(source)]
        assert run("table1", *some, *words).exit_code == 0
        assert not (out / "cifar10-practical" / "fedavg").exists(), "it is not run again"
        text = (out / "table.md").read_text(encoding="utf-8")
        head, *_ = [line for line in text.splitlines() if line.startswith("| method")]
        assert head.count("Acc. ↑") == 1, "all runs are in one setting"
        assert "digits (data.images=200)" in head
        table = text[text.index(head) :].split("\n\n")[0]
        assert "| fedavg |" in table
        assert "| local |" in table


def test_what_cannot_be_gathered_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    other = results_file(tmp_path / "other.json", [], scale={"name": "paper"})
    nothing = str(tmp_path / "nothing")
    for words, said in (
        (["--gather"], "there are no runs to gather"),
        (["--from", other], "it holds runs of table1 at scale paper, not at scale short"),
        (
            ["--gather", "--from", other],
            "it holds runs of table1 at scale paper, not at scale short",
        ),
        (["--gather", "--from", str(tmp_path / "broken.json")], "not a results.json"),
        (["--gather", "--from", str(tmp_path / "no.json")], "cannot be read"),
        (["--gather", "--from", str(tmp_path / "empty")], "no reproduce.toml"),
    ):
        error = run("table1", "--out", nothing, *words).exception
        assert isinstance(error, CafedclError), words
        assert said in str(error)


def test_the_papers_figures_stand_beside_ours() -> None:
    practical = read_study("table1").settings[0]
    config = resolve(
        {
            "data": {"name": practical.data},
            "split": parse_split(practical.split),
            "federation": {"clients": 20},
        }
    )
    shown = Shown.of(flat(config.to_plain()))
    assert paper_position(shown).figures["cafedcl"] == (91.15, 4.87)


def test_data_that_cannot_be_had_is_left_out_and_said(tmp_path: Path) -> None:
    done = run(
        "skin",
        "--scale",
        "short",
        "--out",
        str(tmp_path / "out"),
        "--data-dir",
        str(tmp_path),
        "--set",
        "data.download=false",
    )
    assert done.exit_code == 1
    assert "skipped: ham10000: data set 'ham10000'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel1"], "did you mean 'table1'"),
        (["table1", "--scale", "shrt"], "did you mean 'short'"),
        (["table1", "--only", "cifar10-practicl"], "did you mean 'cifar10-practical'"),
        (["table1", "--methods", "fedvg"], "did you mean 'fedavg'"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], said: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, CafedclError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = 'x'\nmethods = ['fedavg']\n", "a study needs methods and"),
        ("title = 'x'\nmethods = ['fedavg']\n[[settings]]\nname = 'a'\ndata = 'digits'\n", "split"),
        ("title = 'x'\nmethod = ['fedavg']\n", "method: there is no such entry"),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CafedclError, match=said):
        read_study(str(path))


def test_without_a_name_all_studies_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = run().output
    for name in (*study_names(), "--scale smoke", "--scale paper"):
        assert name in listed


@pytest.mark.usefixtures("shared_processes")
def test_what_a_study_costs_is_measured_and_only_what_fits_is_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    part = ["--scale", "smoke", "--out", str(out), "--jobs", "1", "--devices", "cpu"]
    part += ["--only", "cifar10-practical", "--methods", "fedavg", "--seeds", "2"]
    shown = run("table1", *part, "--cost")
    assert shown.exit_code == 0, shown.output
    assert "cifar10-practical: 2 runs of about " in shown.output
    assert "in all 2 runs, 1 at a time: about " in shown.output
    assert not list(out.rglob("metrics.jsonl")), "nothing is run"
    none = run("table1", *part, "--budget", "0.001s")
    assert none.exit_code == 0, none.output
    assert "% of them fit into 0 s: one seed of every method first" in none.output
    assert "2 runs did not fit into the time; repeat the command to run them" in none.output
    assert not list(out.rglob("metrics.jsonl"))
    whole = run("table1", *part, "--budget", "1h", "--quiet")
    assert whole.exit_code == 0, whole.output
    assert len(list(out.rglob("metrics.jsonl"))) == 2
    assert "all runs are finished" in run("table1", *part, "--cost").output


def test_a_budget_that_is_no_time_is_one_line(tmp_path: Path) -> None:
    ended = run("table1", "--out", str(tmp_path / "out"), "--budget", "soon")
    assert isinstance(ended.exception, CafedclError)
    assert "--budget soon: a time is expected, such as 90s, 30m or 1h30m" in str(ended.exception)


def test_runs_with_several_threads_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(devices: object, jobs: object, threads: int, ray: object) -> None:
        raise CafedclError(f"{devices}, {jobs}, {ray}: {threads} threads")

    monkeypatch.setattr("cafedcl.compare.run.choose_launcher", refuse)
    part = ["--scale", "smoke", "--only", "cifar10-practical", "--methods", "fedavg", "--quiet"]
    answer = run("table1", *part, "--set", "engine.threads=2", "--out", str(tmp_path / "out"))
    assert ": 2 threads" in str(answer.exception)
