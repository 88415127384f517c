from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from comparing import plan

from cafedcl.compare.plan import Comparison, data_names, planned, split_names
from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.core.slug import slug


def test_a_plan_is_methods_times_data_times_splits_times_seeds(tmp_path: Path) -> None:
    made = plan(
        splits=["dirichlet:0.1,pathological:2,ir=10"],
        data=["digits", "mnist"],
        seeds=3,
        first_seed=5,
    )
    places = [job.place for job in made.jobs(tmp_path)]
    assert len(places) == len(set(places)) == 2 * 2 * 2 * 3
    assert places[0] == "digits/dirichlet-0.1/fedavg/s5"
    assert places[3] == "digits/pathological-2,ir=10/cafedcl/s5"
    assert places[-1] == "mnist/pathological-2,ir=10/cafedcl/s7"
    first = made.jobs(tmp_path)[0]
    assert first.rounds == 3
    command = " ".join(first.command("cpu"))
    assert command.startswith("run --method fedavg --data digits --seed 5")
    assert '--set split.kind="dirichlet" --set split.alpha=0.1' in command
    assert "--set engine.workers=1" in command
    assert command.endswith(f"--device cpu --out {tmp_path}/{first.place} --quiet")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["iid"], ["iid"]),
        (["dirichlet:0.1,pathological:2"], ["dirichlet:0.1", "pathological:2"]),
        (
            ["pathological:2,ir=10,dirichlet:1", "iid"],
            ["pathological:2,ir=10", "dirichlet:1", "iid"],
        ),
    ],
)
def test_splits_may_have_commas_of_their_own(given: list[str], names: list[str]) -> None:
    assert split_names(given) == names


def test_a_path_that_exists_may_have_commas(tmp_path: Path) -> None:
    folder = tmp_path / "scans, 2024"
    assert data_names([f"{folder}"]) == [f"{tmp_path}/scans", "2024"]
    folder.mkdir()
    assert data_names([f"{folder}", "digits, mnist"]) == [f"{folder}", "digits", "mnist"]


def test_names_of_folders_are_plain() -> None:
    assert slug("cafedcl:no-geo") == "cafedcl-no-geo"
    assert slug("../a b/ü") == "a-b-ü"
    assert slug("//") == "-"


def test_options_go_to_the_methods_that_have_them() -> None:
    tables = {
        "method": {"name": "cafedcl", "lam_geo": 0.5},
        "train": {"lr": 0.2},
        "engine": {"device": "cpu"},
    }
    made = plan(
        methods=["fedavg", "fedprox", "cafedcl:no-geo", "cafedcl"],
        tables=tables,
        settings=["method.mu=0.3"],
    )
    assert made.options == {
        "fedavg": {},
        "fedprox": {"method.mu": 0.3},
        "cafedcl:no-geo": {"method.lam_geo": 0.5},
        "cafedcl": {"method.lam_geo": 0.5},
    }
    assert made.settings == {"train.lr": 0.2}, "the device is not part of the plan"


def test_augmentations_are_part_of_a_methods_name_and_their_options_go_to_those_that_have_them(
    tmp_path: Path,
) -> None:
    made = plan(
        methods=["fedavg", "fedproto+gan", "cafedcl:no-geo+none"],
        tables={"augment": {"name": "mixup", "alpha": 0.3}},
        settings=["augment.steps=7"],
    )
    assert made.options == {
        "fedavg+mixup": {"augment.alpha": 0.3},
        "fedproto+gan": {"augment.steps": 7},
        "cafedcl:no-geo+none": {},
    }
    places = [job.place for job in made.jobs(tmp_path)]
    assert places == [
        f"digits/auto/{name}/s0" for name in ("fedavg+mixup", "fedproto+gan", "cafedcl-no-geo+none")
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["fedavg", "fedavg"]}, "'fedavg' is given twice"),
        ({"methods": ["fedvg"]}, "did you mean 'fedavg'"),
        ({"splits": ["dirichlt:0.1"]}, "did you mean 'dirichlet'"),
        ({"splits": ["iid,iid"]}, "given twice"),
        ({"seeds": 0}, "--seeds 0"),
        ({"first_seed": -1}, "--first-seed -1"),
        ({"settings": ["method.lam_geoo=1"]}, "none of fedavg, cafedcl has such an option"),
        (
            {"settings": ["augment.steps=1"]},
            "--set augment.steps: none of fedavg, cafedcl has such an option",
        ),
        ({"methods": ["fedavg+gna"]}, "did you mean 'gan'"),
        ({"settings": ["train.lr=-1"]}, "train.lr = -1: it must be greater than 0"),
        ({"tables": {"trian": {}}}, "[trian]: there is no such section"),
        ({"tables": {"train": 3}}, "a section is expected"),
        ({"data": ["a/x.npz", "b/x.npz"]}, "two runs would share the folder x/auto/cafedcl/s0"),
        ({"settings": ["run.seed=4"]}, "--set run.seed: use --seeds N and --first-seed N"),
        (
            {"settings": ["split.alpha=3"], "splits": ["iid", "dirichlet:0.1"]},
            "--set split.alpha: --splits says how to split",
        ),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CafedclError) as error:
        plan(**changes).jobs(tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"seeds": 5}, "To add seeds: --first-seed 2 --seeds 3 --out OTHER; then `cafedcl table "),
        (
            {"methods": ["fedavg", "cafedcl", "fedprox"]},
            "To add methods: --methods fedprox --out OTHER; then `cafedcl table ",
        ),
        ({"seeds": 1}, ""),
        ({"methods": ["fedprox"]}, ""),
        ({"seeds": 5, "methods": ["fedavg", "cafedcl", "fedprox"]}, ""),
        ({"methods": ["fedavg", "cafedcl", "fedprox"], "settings": ["method.tau=0.5"]}, ""),
    ],
)
def test_how_seeds_and_methods_are_added_is_said(
    changes: dict[str, Any], added: str, tmp_path: Path
) -> None:
    with hold(tmp_path / "out", plan(seeds=2)):
        pass
    with (
        pytest.raises(CafedclError) as error,
        hold(tmp_path / "out", plan(**{"seeds": 2, **changes})),
    ):
        pass
    assert added in str(error.value)
    assert ("To add" in str(error.value)) == bool(added)


def hold(out: Path, made: Comparison) -> AbstractContextManager[None]:
    return planned(out, made.to_plain(), "compare.toml", "compare")


def test_the_plan_is_kept_and_another_one_is_refused(tmp_path: Path) -> None:
    made, out = plan(splits=["iid"], settings=["train.lr=0.2", "method.tau=0.3"]), tmp_path / "out"
    with (
        hold(out, made),
        pytest.raises(CafedclError, match="in use by another run"),
        hold(out, made),
    ):
        pass
    with hold(out, made):
        assert Comparison.from_plain(read_file(out / "compare.toml")) == made
    other = plan(splits=["iid"], settings=["train.lr=0.3", "method.tau=0.3"])
    said = r"settings: train.lr is 0.2 there and 0.3 here\); resume it with"
    with pytest.raises(CafedclError, match=said), hold(out, other):
        pass
    with pytest.raises(CafedclError, match="not a plan of `cafedcl compare`"):
        Comparison.from_plain({"methods": []})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(CafedclError, match="holds no plan"), hold(tmp_path / "full", other):
        pass
