from pathlib import Path

import pytest

from cafedcl.compare.study import (
    STUDIES,
    Study,
    StudyScale,
    StudySetting,
    read_scales,
    read_study,
    study_names,
)
from cafedcl.config.options import to_toml
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.report.paper import COLUMNS_2, FIRST
from cafedcl.task.build import prepare
from cafedcl.task.resolve import gather

PROTOCOLS = ["creff", "fedloge"]
"""Studies that repeat the protocols of other papers, with their own networks and rounds."""
USUAL_SCALES = {**dict.fromkeys(PROTOCOLS, "protocol"), "resnet": "large"}
"""The scales that studies are made for; that of all others is short."""
NAMES = [
    "ablation",
    "best_parts",
    "creff",
    "fedloge",
    "flamby",
    "long_tail",
    "resnet",
    "sensitivity",
    "sensitivity_plain",
    "skin",
    "standins",
    "table1",
    "table2",
    "tuned",
]


def test_every_study_opens_with_the_command_that_runs_it() -> None:
    assert study_names() == NAMES
    for name in NAMES:
        first = (STUDIES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        scale = USUAL_SCALES.get(name, "short")
        assert first == f"# cafedcl reproduce {name} --scale {scale}"


@pytest.mark.parametrize(
    ("name", "model", "clients", "sampled", "rounds"),
    [("creff", "resnet8", 20, 8, 200), ("fedloge", "resnet18", 40, 8, 500)],
)
def test_a_protocol_of_another_paper_is_run_with_its_own_sizes(
    name: str, model: str, clients: int, sampled: int, rounds: int
) -> None:
    for setting in read_study(name).at(read_scales()["protocol"]).settings:
        words = [f"{key}={to_toml(value)}" for key, value in setting.options.items()]
        config = gather(data=setting.data, split=setting.split, settings=words)
        federation = config.federation
        assert (config.model.name, federation.clients, federation.rounds) == (
            model,
            clients,
            rounds,
        )
        assert federation.participants(clients) == sampled
        assert config.split.ir in (10, 50, 100)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_every_run_of_every_study_is_a_config_that_can_be(
    name: str, scale: str, tmp_path: Path
) -> None:
    size = read_scales()[scale]
    study = read_study(name).at(size)
    for setting in study.settings:
        jobs = list(study.jobs(tmp_path, setting, size.seeds, ()))
        assert len({job.folder for job in jobs}) == len(jobs)
        assert len(jobs) % (size.seeds * len(study.methods)) == 0
        assert {job.rounds for job in jobs} == {int(size.options["federation.rounds"])}


def test_the_tables_have_the_methods_and_settings_of_the_paper() -> None:
    one, two = (read_study(name) for name in ("table1", "table2"))
    printed = set(FIRST["dirichlet", "cifar10"])
    for study in (one, two):
        assert printed <= set(study.methods)
    assert {(s.split.partition(":")[0], s.data.partition("-")[0]) for s in one.settings} == set(
        FIRST
    )
    assert [s.name for s in two.settings] == ["-".join(column) for column in COLUMNS_2]
    for name, without in (("no-confagg-uniform", 1), ("no-confagg-counts", 1), ("no-geo", 1)):
        assert sum(name in method for method in read_study("ablation").methods) == without + 1


def test_an_option_is_varied_alone_and_its_usual_value_is_run_once(tmp_path: Path) -> None:
    study = Study(
        "",
        ("cafedcl",),
        (StudySetting("one", "digits", "iid"),),
        {"method.beta": [0.1, 0.5], "method.w": [[1.0, 0.0, 0.0]]},
    )
    jobs = list(study.jobs(tmp_path, study.settings[0], 2, ["train.lr=0.3"]))
    below = [str(job.folder.relative_to(tmp_path / "one")) for job in jobs]
    assert below == [
        f"{part}digits/iid/cafedcl/s{seed}"
        for part in ("", "beta=0.1/", "w=-1.0,-0.0,-0.0/")
        for seed in (0, 1)
    ]
    assert all("train.lr=0.3" in job.arguments for job in jobs)


def test_settings_that_become_the_same_at_a_scale_are_run_once() -> None:
    settings = (
        StudySetting("a", "cifar10", "dirichlet:0.1"),
        StudySetting("b", "emnist", "dirichlet:0.1"),
        StudySetting("c", "x", "iid", "natural"),
    )
    study = Study("", ("fedavg",), settings)
    smoke = study.at(StudyScale("", 1, "digits", {"federation.rounds": 1}))
    assert [(one.name, one.data, one.split) for one in smoke.settings] == [
        ("a", "digits", "dirichlet:0.1"),
        ("c", "digits", "natural"),
    ]
    assert [one.split for one in study.at(StudyScale("", 1)).settings] == [
        "dirichlet:0.1",
        "dirichlet:0.1",
        "iid",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_at_the_smoke_scale_the_digits_can_be_dealt_in_every_setting(
    name: str, digits: Dataset
) -> None:
    for setting in read_study(name).at(read_scales()["smoke"]).settings:
        clients = setting.options["federation.clients"]
        prepare(
            gather(data=setting.data, split=setting.split, clients=clients, device="cpu"), digits
        )


def test_a_method_may_have_options_of_its_own(tmp_path: Path) -> None:
    text = """
title = "tuned"
methods = ["fedavg", "cafedcl"]
[each]
cafedcl = { "method.tau" = 0.2, "train.lr" = 0.05 }
[[settings]]
name = "one"
data = "digits"
split = "iid"
"""
    (tmp_path / "tuned.toml").write_text(text, encoding="utf-8")
    study = read_study(str(tmp_path / "tuned.toml"))
    jobs = {
        job.place: job.arguments
        for job in study.jobs(tmp_path, study.settings[0], 1, ["train.epochs=1"])
    }
    assert [any("train.lr" in word for word in words) for words in jobs.values()] == [False, True]
    assert all("train.epochs=1" in words for words in jobs.values())
    (tmp_path / "bad.toml").write_text(text.replace("cafedcl = {", "cafedc = {"), encoding="utf-8")
    with pytest.raises(CafedclError, match=r"each: cafedc: .*did you mean 'cafedcl'"):
        read_study(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('methods = ["fedavg"]\nsettings = 3', r"settings: tables \[\[settings\]\] are expected"),
        ('methods = "fedavg"\n{one}', "methods: a list of names is expected"),
        ("{one}", r"a study needs methods and \[\[settings\]\]"),
        ('methods = ["fedavg"]\n{one}{one}', "two are called a; give each its own name"),
    ],
)
def test_a_study_that_is_written_wrongly_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    one = '[[settings]]\nname = "a"\ndata = "digits"\nsplit = "iid"\n'
    file = tmp_path / "mine.toml"
    file.write_text('title = "mine"\n' + text.replace("{one}", one))
    with pytest.raises(CafedclError, match=said):
        read_study(str(file))


def test_a_value_is_left_out_only_if_every_method_has_it_in_this_study(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'title = "Mine"\nmethods = ["cafedcl", "cafedcl:best"]\n'
        'options = { "train.lr" = 0.5 }\n'
        '[[settings]]\nname = "one"\ndata = "digits"\nsplit = "iid"\n'
        '[each."cafedcl:best"]\n"train.lr" = 0.5\n'
        '[vary]\n"method.tau" = [0.1, 0.3]\n"train.lr" = [0.1, 0.5]\n'
        '"method.margin" = [1.0, 2.0]\n',
        encoding="utf-8",
    )
    assert list(read_study(str(file)).changes()) == [
        {"method.tau": 0.1},
        {"method.tau": 0.3},
        {"train.lr": 0.1},
        {"method.margin": 2.0},
    ]
