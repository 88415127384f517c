from pathlib import Path

import pytest

from cafedcl import api
from cafedcl.compare.jobs import RunSpec, other_option, sharing_code
from cafedcl.compare.plan import Comparison
from cafedcl.config.options import flattened
from cafedcl.core.errors import CafedclError
from cafedcl.task.resolve import resolve


@pytest.fixture
def plan() -> Comparison:
    """Two methods with three seeds under two splits: each method has six runs."""
    return Comparison.make(
        methods=["fedavg", "fedproto"],
        data=["digits"],
        splits=["dirichlet:0.1", "iid"],
        seeds=3,
        first_seed=0,
        tables={},
        settings=["federation.rounds=2"],
    )


def test_runs_of_one_method_model_and_data_set_share_compiled_code(
    plan: Comparison, tmp_path: Path
) -> None:
    jobs = sharing_code(plan.jobs(tmp_path))
    assert [job.alike for job in jobs] == [6] * 12


@pytest.mark.parametrize(
    ("option", "value", "same"),
    [
        ("method.tau", 0.2, False),
        ("train.momentum", 0.5, False),
        ("model.width", 0.5, False),
        ("train.lr", 0.2, True),
        ("train.epochs", 2, True),
        ("server.momentum", 0.5, True),
    ],
)
def test_runs_with_other_constants_in_their_code_are_compiled_anew(
    option: str, value: float, same: bool, tmp_path: Path
) -> None:
    section, _, name = option.partition(".")
    server = {"optimizer": "momentum"}
    usual = {"method": {"name": "cafedcl"}, "server": server}
    other = {**usual, section: {**usual.get(section, {}), name: value}}
    one, two = (RunSpec.of(tmp_path, "x/s0", tables) for tables in (usual, other))
    assert one.code == two.code
    assert (one.compiled == two.compiled) == same


def test_another_model_or_data_set_is_compiled_anew(plan: Comparison, tmp_path: Path) -> None:
    (job, *_) = plan.jobs(tmp_path)
    others = [("own", *job.code[1:]), (job.code[0], "mlp", job.code[2])]
    jobs = [job, *(job.__class__(job.out, "x/s0", (), 2, code) for code in others)]
    assert [one.alike for one in sharing_code(jobs)] == [1, 1, 1]


@pytest.mark.parametrize(("device", "told"), [("cuda", True), ("cpu", False), ("mps", False)])
def test_a_run_on_a_gpu_is_told_how_many_share_its_code(
    plan: Comparison, tmp_path: Path, device: str, told: bool
) -> None:
    job = sharing_code(plan.jobs(tmp_path))[0]
    assert ("engine.alike=6" in job.command(device)) == told


def test_a_single_run_is_told_nothing(plan: Comparison, tmp_path: Path) -> None:
    (job, *_) = plan.jobs(tmp_path)
    assert not any("engine.alike" in word for word in job.command("cuda"))


def test_a_run_that_is_there_must_have_the_planned_options(tmp_path: Path) -> None:
    tables = {
        "method": {"name": "cafedcl:best"},
        "model": {"name": "mlp", "width": 0.1},
        "train": {"epochs": 1},
        "federation": {"rounds": 1, "clients": 2},
    }
    job = RunSpec.of(tmp_path, "best/s0", tables)
    job.check()
    settings = {"model.name": "mlp", "model.width": 0.1, "train.epochs": 1, "engine.workers": 1}
    former = {**settings, "method.lam_distill": 0.0}
    for options, said in ((former, "method.lam_distill = 0.0, which is 3.0 today"), (settings, "")):
        folder = tmp_path / f"best/s{len(options)}"
        api.run("cafedcl:best", clients=2, rounds=1, settings=options, device="cpu", out=folder)
        one = RunSpec.of(tmp_path, f"best/s{len(options)}", tables)
        if said:
            with pytest.raises(CafedclError, match=said):
                one.check()
        else:
            one.check()
    (folder / "config.toml").write_text("", encoding="utf-8")
    one.check()  # The run itself says that its folder is damaged.


def test_options_that_change_no_result_may_differ() -> None:
    made = flattened(resolve({"method": {"name": "fedavg"}}).to_plain())
    assert other_option({"method": {"name": "fedavg"}, "engine": {"device": "cpu"}}, made) is None
    assert other_option({"method": {"name": "fedavg"}, "train": {"lr": 0.5}}, made) == (
        "train.lr = 0.1, which is 0.5"
    )
