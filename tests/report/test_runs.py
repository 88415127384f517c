import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.report.run_summary import read_run
from cafedcl.report.runs import base_method, read_runs
from cafedcl.report.table import score_table

Maker = Callable[..., Path]


def test_runs_that_differ_in_the_seed_alone_are_one_row(make_run: Maker, tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        make_run(tmp_path / "deep" / "er" / f"a{seed}", "fedavg", seed, 0.8 + 0.05 * seed)
    make_run(tmp_path / "b", "cafedcl", 0)
    make_run(tmp_path / "c", "fedavg", 0, data__name="cifar10")
    summary = read_runs([tmp_path])
    assert [group.setting.title for group in summary.groups] == [
        "cifar10, dirichlet:0.1, 6 clients",
        "digits, dirichlet:0.1, 6 clients",
    ]
    fedavg, cafedcl = summary.groups[1].rows
    assert (fedavg.label, cafedcl.label) == ("fedavg", "cafedcl")
    assert fedavg.scores("server", "accuracy") == pytest.approx({0: 0.8, 1: 0.85, 2: 0.9})
    assert list(fedavg.scores("server", "accuracy")) == [0, 1, 2]
    assert summary.set_aside == ()


def test_a_folder_given_twice_is_read_once(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "circle").symlink_to(tmp_path)
    assert len(read_runs([run, tmp_path, str(run)]).runs) == 1
    assert len(read_runs([tmp_path / "link"]).runs) == 1


def test_what_a_split_is_called(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", split__kind="pathological", split__classes=2, split__ir=10.0)
    make_run(tmp_path / "b", split__kind="iid")
    make_run(tmp_path / "c", split__form="class")
    assert {group.setting.split for group in read_runs([tmp_path]).groups} == {
        "pathological:2,ir=10",
        "iid",
        "dirichlet:0.1,form=class",
    }


def test_the_centre_of_a_sweep_keeps_the_plain_name(make_run: Maker, tmp_path: Path) -> None:
    for value in (0.0, 10.0, 1.0, 3.0):
        make_run(tmp_path / f"geo{value}", "cafedcl", method__lam_geo=value, method__tau=0.1)
    make_run(tmp_path / "tau", "cafedcl", method__lam_geo=1.0, method__tau=0.5)
    make_run(
        tmp_path / "word", "cafedcl", method__lam_geo=1.0, method__tau=0.1, method__geo="cross"
    )
    (group,) = read_runs([tmp_path]).groups
    labels = {row.label: row.swept for row in group.rows}
    assert list(labels)[:1] == ["cafedcl"]
    assert [label for label in labels if "lam" in label] == [
        f"cafedcl (lam_geo={v})" for v in (0.0, 3.0, 10.0)
    ]
    assert labels == {
        "cafedcl": None,
        "cafedcl (lam_geo=0.0)": ("method.lam_geo", 0.0),
        "cafedcl (lam_geo=3.0)": ("method.lam_geo", 3.0),
        "cafedcl (lam_geo=10.0)": ("method.lam_geo", 10.0),
        "cafedcl (tau=0.5)": ("method.tau", 0.5),
        "cafedcl (geo=cross)": None,
    }
    assert {row.label for row in group.main} == {"cafedcl", "cafedcl (geo=cross)"}


def test_every_row_of_a_grid_shows_its_values(make_run: Maker, tmp_path: Path) -> None:
    for value in (0.3, 0.03, 0.1):
        for seed in (0, 1):
            make_run(tmp_path / f"{value}-{seed}", "fedavg", seed, train__lr=value)
    make_run(tmp_path / "other", "fedprox", train__lr=0.1)
    (group,) = read_runs([tmp_path]).groups
    assert [row.label for row in group.rows] == [
        "fedavg (train.lr=0.03)",
        "fedavg (train.lr=0.1)",
        "fedavg (train.lr=0.3)",
        "fedprox",
    ]


def test_every_row_of_a_grid_of_two_options_shows_its_values(
    make_run: Maker, tmp_path: Path
) -> None:
    grid = [(lr, momentum) for lr in (0.1, 0.3) for momentum in (0.0, 0.5, 0.9)]
    for lr, momentum in grid:
        make_run(tmp_path / f"{lr}-{momentum}", train__lr=lr, train__momentum=momentum)
    (group,) = read_runs([tmp_path]).groups
    assert [row.label for row in group.rows] == [
        f"fedavg (train.lr={lr}, train.momentum={momentum})" for lr, momentum in grid
    ]
    shutil.rmtree(tmp_path / "0.3-0.5")
    (group,) = read_runs([tmp_path]).groups
    assert [row.label for row in group.rows].count("fedavg") == 1


def test_another_engine_is_the_same_experiment(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, engine__name="cpu")
    make_run(tmp_path / "b", seed=1, engine__name="cuda")
    (row,) = read_runs([tmp_path]).groups[0].rows
    assert len(row.runs) == 2


def test_an_unfair_comparison_is_named(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", train__lr=0.1)
    make_run(tmp_path / "b", "cafedcl", train__lr=0.5)
    assert read_runs([tmp_path]).groups[0].differing() == [
        "methods differ in train.lr: 0.1 (fedavg) / 0.5 (cafedcl)"
    ]
    make_run(tmp_path / "c", "fedavg", 1, train__lr=0.1)
    *_, seeds = read_runs([tmp_path]).groups[0].differing()
    assert seeds == "methods differ in seeds: 0 (cafedcl) / 0, 1 (fedavg)"


def test_the_same_experiment_twice_counts_once(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", done=2)
    make_run(tmp_path / "b")
    summary = read_runs([tmp_path])
    (row,) = summary.groups[0].rows
    assert [run.path.name for run in row.runs] == ["b"]
    assert [(run.path.name, run.state) for run in summary.set_aside] == [("a", "repeated")]


def test_an_unfinished_run_stands_in_only_where_no_other_does(
    make_run: Maker, tmp_path: Path
) -> None:
    make_run(tmp_path / "a", "fedavg", 0)
    make_run(tmp_path / "b", "fedavg", 1, done=2)
    make_run(tmp_path / "c", "moon", 0, done=1)
    make_run(tmp_path / "d", "fedprox", 0, done=0)
    summary = read_runs([tmp_path])
    found = {row.label: (len(row.runs), row.partial) for row in summary.groups[0].rows}
    assert found == {"fedavg": (1, False), "moon": (1, True)}
    assert {run.path.name: run.problem for run in summary.set_aside} == {
        "b": "2 of 3 rounds are done",
        "c": "1 of 3 rounds are done",
        "d": "0 of 3 rounds are done",
    }


def test_a_run_whose_rounds_were_all_skipped_has_failed(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    for found in lines:
        found |= {"status": "skipped", "failed": [{"client": 3, "reason": "NaN in\nits model"}]}
    (run / "metrics.jsonl").write_text("".join(json.dumps(found) + "\n" for found in lines))
    read = read_run(run)
    assert (read.state, read.problem) == (
        "failed",
        "all 3 rounds were skipped; client 3: NaN in its model",
    )


def test_scores_that_are_not_numbers_are_a_failed_run(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", accuracy=float("nan"))
    assert read_run(run).state == "failed"


DAMAGE = {
    "config is no TOML": ("config.toml", b"[[["),
    "config is no text": ("config.toml", b"\xff\xfe"),
    "config is of something else": ("config.toml", b"[tool]\nname = 1\n"),
    "config has words for numbers": (
        "config.toml",
        b'[method]\nname="x"\n[federation]\nclients="a"\nrounds=3\n',
    ),
    "metrics are noise": ("metrics.jsonl", bytes(range(256)) + b"\n" * 9),
    "metrics are numbers": ("metrics.jsonl", b"1\n2\n"),
    "metrics have parts of another kind": (
        "metrics.jsonl",
        b'{"round": 0, "traffic": [1], "seconds": 3}\n',
    ),
    "metrics start late": ("metrics.jsonl", b'{"round": 7}\n'),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_listed_and_breaks_nothing(
    make_run: Maker, tmp_path: Path, what: str
) -> None:
    make_run(tmp_path / "good")
    name, content = DAMAGE[what]
    (make_run(tmp_path / "bad", "moon") / name).write_bytes(content)
    summary = read_runs([tmp_path])
    assert [row.label for row in summary.groups[0].rows] == ["fedavg"]
    assert [(run.path.name, run.state) for run in summary.set_aside] == [("bad", "damaged")]
    assert summary.set_aside[0].problem


def test_a_line_cut_off_by_a_crash_is_no_damage(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", done=2)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"round": 2, "sta')
    assert read_run(run).state == "unfinished"


def test_no_run_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CafedclError, match=r"holds no run folder .* `cafedcl run`"):
        read_runs([tmp_path])
    with pytest.raises(CafedclError, match="there is no such folder"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(CafedclError, match=r"^no run folder is given$"):
        read_runs([])


def test_runs_on_other_images_are_not_repeats_but_another_setting(
    make_run: Maker, tmp_path: Path
) -> None:
    make_run(tmp_path / "all")
    make_run(tmp_path / "few", data__images=200)
    make_run(tmp_path / "held", split__validation=0.3)
    make_run(tmp_path / "usual", seed=1, data__images=0, split__validation=0.1)
    summary = read_runs([tmp_path])
    assert summary.set_aside == ()
    assert [group.setting.title for group in summary.groups] == [
        "digits, dirichlet:0.1, 6 clients",
        "digits, dirichlet:0.1, data.images=200, 6 clients",
        "digits, dirichlet:0.1, split.validation=0.3, 6 clients",
    ]
    assert len(summary.groups[0].rows[0].runs) == 2


def test_data_that_have_changed_between_runs_are_two_settings(
    make_run: Maker, tmp_path: Path
) -> None:
    make_run(tmp_path / "before", seed=0, classes=4)
    make_run(tmp_path / "later", seed=1, classes=5)
    damaged = make_run(tmp_path / "other", seed=2, classes=5)
    (damaged / "data.safetensors").write_bytes(b"")
    first, second = read_runs([tmp_path]).groups
    assert first.setting.title == "digits, dirichlet:0.1, 4 classes as in before, 6 clients"
    assert second.setting.title == "digits, dirichlet:0.1, 5 classes as in later, 6 clients"
    assert [run.path.name for run in first.rows[0].runs] == ["before", "other"]


def test_folders_of_the_same_name_have_titles_of_their_own(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name="/north/images")
    make_run(tmp_path / "b", data__name="/south/images")
    titles = [group.setting.title for group in read_runs([tmp_path]).groups]
    assert titles == [
        "images, dirichlet:0.1, in /north, 6 clients",
        "images, dirichlet:0.1, in /south, 6 clients",
    ]


def test_an_attack_on_one_method_only_is_named(make_run: Maker, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", attack__kind="none")
    make_run(tmp_path / "b", "cafedcl", attack__kind="sign-flip", attack__clients=1)
    (line,) = read_runs([tmp_path]).groups[0].differing()
    assert line == "methods differ in attack: none (fedavg) / sign-flip:1 (cafedcl)"


def test_what_a_run_does_not_use_is_no_difference(make_run: Maker, tmp_path: Path) -> None:
    used = {"server__optimizer": "momentum", "server__momentum": 0.8}
    make_run(tmp_path / "a", "fedavg", server__optimizer="none", server__momentum=0.9)
    make_run(tmp_path / "b", "cafedcl", **used)
    (line,) = read_runs([tmp_path]).groups[0].differing()
    assert line == "methods differ in server.optimizer: momentum (cafedcl) / none (fedavg)"
    make_run(tmp_path / "c", "moon", **{**used, "server__momentum": 0.5})
    assert len(read_runs([tmp_path]).groups[0].differing()) == 2


def test_many_methods_that_agree_are_counted(make_run: Maker, tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox", "moon", "fedlc", "fednh"):
        make_run(tmp_path / method, method, train__lr=0.1)
    make_run(tmp_path / "b", "cafedcl", train__lr=0.5)
    (line,) = read_runs([tmp_path]).groups[0].differing()
    assert line == "methods differ in train.lr: 0.1 (5 methods) / 0.5 (cafedcl)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cafedcl:best", "cafedcl"), ("fedavg", "fedavg"), ("mine:A", "mine:A"), ("mine:B", "mine:B")],
)
def test_classes_of_one_module_are_methods_of_their_own(name: str, expected: str) -> None:
    assert base_method(name) == expected


def test_lost_replies_and_rounds_are_counted(make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"status": "skipped", "failed": [{"client": 3, "reason": "NaN"}] * 2}
    (run / "metrics.jsonl").write_text("".join(json.dumps(found) + "\n" for found in lines))
    (row,) = read_runs([tmp_path]).groups[0].rows
    assert row.losses == "1 of 3 rounds did not count, 2 replies failed or were rejected"
    title = "digits, dirichlet:0.1, 6 clients"
    notes = score_table(read_runs([tmp_path])).notes
    assert f"warning: {title}: fedavg: {row.losses}." in notes
