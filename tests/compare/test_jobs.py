from pathlib import Path

import pytest

from cafedcl.compare.jobs import sharing_code
from cafedcl.compare.plan import Comparison


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
