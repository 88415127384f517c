"""Runs of a study that were made elsewhere may stand beside those that are planned, or not."""

import dataclasses
from pathlib import Path

import pytest

from cafedcl.compare.elsewhere import check_same_options, done_elsewhere, read_elsewhere
from cafedcl.compare.study import read_scales, read_study
from cafedcl.core.errors import CafedclError

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def found_and_planned(name, home):
    """Return the runs of a result file of the repository, and the planned ones, of seed 0."""
    study = read_study(name)
    size = read_scales()["short"]
    plan = {"study": name, "scale": "short", "settings": []}
    members = read_elsewhere(RESULTS / f"{name}-short.json", study, plan, size)
    known = done_elsewhere(home, study, size, [members])
    chosen = study.at(size)
    jobs = [job for one in chosen.settings for job in chosen.jobs(home, one, 1, [])]
    return known, jobs


@pytest.mark.parametrize("name", ["best_parts", "ablation", "table1"])
def test_the_result_files_of_the_repository_fit_their_studies(name, tmp_path):
    known, jobs = found_and_planned(name, tmp_path)
    assert {job.folder for job in jobs} & known.keys()
    check_same_options(jobs, known)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("train.lr", 0.7),
        ("model.width", 0.25),
        ("split.validation", 0.3),
        ("federation.participation", 0.3),
        ("evaluate.protocol", "pfllib"),
        ("attack.kind", "sign-flip"),
        ("privacy.kind", "clients"),
    ],
)
def test_a_run_with_another_option_that_matters_is_refused(option, value, tmp_path):
    known, jobs = found_and_planned("best_parts", tmp_path)
    folder = jobs[0].folder
    run = known[folder].run
    other = dataclasses.replace(run, settings={**run.settings, option: value})
    changed = {**known, folder: dataclasses.replace(known[folder], run=other)}
    with pytest.raises(CafedclError, match=f"was made with {option} = "):
        check_same_options(jobs, changed)
